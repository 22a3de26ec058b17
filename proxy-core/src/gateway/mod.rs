//! What becomes of one request, decided by its head alone: forwarded to an upstream, or answered here.
//!
//! Pure: values in, values out. The gateway knows heads, not sockets; the relay asks it and does what it says.

pub mod answers;
mod onward;
mod route;
mod vitals;

use std::sync::Arc;

use bytes::Bytes;
use staging::report::{Exit, Report};

use crate::config::Config;
use answers::{Failure, LocalAnswer, Shape};
pub use onward::OnwardPath;
use route::Table;
pub use route::Target;
pub use vitals::Vitals;

/// The routing table and the process's vital signs, shared by every relay thread.
pub struct Gateway {
    table: Table,
    vitals: Arc<dyn Vitals>,
}

/// The fields of a head, as the gateway needs them; any parser's own form can be one.
pub trait Fields {
    /// The first value of a field, whatever the case of its name; `name` is lower case.
    fn first(&self, name: &str) -> Option<&[u8]>;
}

/// What the gateway is told about a request.
pub struct RequestHead<'a> {
    /// The method as sent.
    pub method: &'a str,
    /// The path as sent, without the query; `*` for a request about the server as a whole.
    pub path: &'a str,
    /// The query as sent, without the question mark.
    pub query: Option<&'a str>,
    /// What the request asks to switch its connection to: the value of `Upgrade`, unless there is none, `Connection`
    /// does not name it, or it offers nothing but HTTP itself.
    pub upgrade: Option<&'a str>,
    /// The header fields.
    pub fields: &'a dyn Fields,
}

/// What becomes of a request; `'g` is the gateway's life, `'h` the head's.
#[derive(Debug)]
pub enum Decision<'g, 'h> {
    /// It goes to an upstream, its credentials as the client sent them.
    Forward(Forward<'g, 'h>),
    /// It is answered here.
    Answer(LocalAnswer),
}

/// Where a request goes.
#[derive(Debug)]
pub struct Forward<'g, 'h> {
    /// The upstream.
    pub target: &'g Arc<Target>,
    /// The path and query to send: the upstream's own path, then what the client sent, untouched.
    pub path_and_query: OnwardPath<'g, 'h>,
    /// Whether the request asks for a protocol switch, which its route allows.
    pub upgrade: bool,
    /// How an error of ours must look to this client.
    pub shape: Shape,
}

/// Why no gateway could be made of a configuration.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// A route names an upstream that is not there.
    #[error(
        "route {path} goes to upstream {upstream}, which is not configured; add [upstreams.{upstream}]"
    )]
    FindUpstream {
        /// The route's path.
        path: String,
        /// The missing name.
        upstream: String,
    },
    /// An upstream's address cannot be used.
    #[error(
        "upstream {name}: {url} is not an http:// or https:// address; mend upstreams.{name}.url"
    )]
    ReadAddress {
        /// The upstream's name.
        name: String,
        /// Its address as configured.
        url: String,
    },
}

impl Report for GatewayError {
    fn code(&self) -> &'static str {
        match self {
            Self::FindUpstream { .. } => "CONFIG_ROUTE_WITHOUT_UPSTREAM",
            Self::ReadAddress { .. } => "CONFIG_UPSTREAM_ADDRESS",
        }
    }

    fn exit(&self) -> Exit {
        Exit::Configuration
    }

    fn retry(&self) -> bool {
        false
    }
}

impl Gateway {
    /// Builds the routing table; `vitals` answers `/ready` and `/status`.
    ///
    /// # Errors
    /// [`GatewayError`] when a route or an address cannot be used; a configuration from [`crate::config::load()`] always can.
    pub fn new(config: &Config, vitals: Arc<dyn Vitals>) -> Result<Self, GatewayError> {
        Ok(Self {
            table: Table::new(config)?,
            vitals,
        })
    }

    /// Decides one request; one that is forwarded costs no allocation.
    #[must_use]
    pub fn decide<'h>(&self, head: &RequestHead<'h>) -> Decision<'_, 'h> {
        if let Some(answer) = self.own_page(head) {
            return Decision::Answer(answer);
        }
        let shape = Shape::of(head);
        let Some(entry) = self.table.find(head) else {
            return Decision::Answer(answers::no_such_path(shape, head.method, head.path));
        };
        let target = &entry.target;
        if head.upgrade.is_some_and(|upgrade| !entry.allows(upgrade)) {
            return Decision::Answer(answers::failure(shape, Failure::NoTunnel, &target.name));
        }
        match OnwardPath::new(&target.base_path, head.path, head.query) {
            Some(path_and_query) => Decision::Forward(Forward {
                target,
                path_and_query,
                upgrade: head.upgrade.is_some(),
                shape,
            }),
            None => Decision::Answer(answers::bad_target(shape)),
        }
    }

    /// Where a `CONNECT` to this authority goes: the upstream of the first route that allows tunnels and has exactly this
    /// host and port. `None` is answered with [`answers::connect_refused`].
    #[must_use]
    pub fn connect(&self, authority: &str) -> Option<&Arc<Target>> {
        self.table.tunnel(authority)
    }

    /// The three pages that this process itself serves, and `OPTIONS *`, which asks whether it is there at all.
    fn own_page(&self, head: &RequestHead<'_>) -> Option<LocalAnswer> {
        if head.path == "*" && head.method == "OPTIONS" {
            return Some(answers::options_of_all());
        }
        if !matches!(head.path, "/health" | "/ready" | "/status") {
            return None;
        }
        if !matches!(head.method, "GET" | "HEAD") {
            return Some(answers::method_not_allowed(Shape::of(head), "GET, HEAD"));
        }
        Some(match head.path {
            "/health" => answers::json(200, Bytes::from_static(b"{\"status\":\"ok\"}")),
            "/ready" if self.vitals.ready() => {
                answers::json(200, Bytes::from_static(b"{\"status\":\"ready\"}"))
            }
            "/ready" => answers::json(503, Bytes::from_static(b"{\"status\":\"notReady\"}")),
            _ => answers::json(200, Bytes::from(self.vitals.status().to_string())),
        })
    }
}

impl Fields for http::HeaderMap {
    fn first(&self, name: &str) -> Option<&[u8]> {
        self.get(name).map(http::HeaderValue::as_bytes)
    }
}

#[cfg(test)]
mod tests;
