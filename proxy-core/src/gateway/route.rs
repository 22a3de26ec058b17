//! Which upstream a request goes to: the first route that matches.

use std::sync::Arc;

use http::uri::{Authority, Scheme, Uri};

use super::{GatewayError, RequestHead};
use crate::config::{Config, Route, Upstream};

/// The routes in their order, each with its upstream.
pub(super) struct Table {
    routes: Vec<Entry>,
}

/// One route with what it allows.
pub(super) struct Entry {
    pattern: Pattern,
    upgrade: Vec<String>,
    connect: bool,
    pub(super) target: Arc<Target>,
}

/// An upstream, ready to be connected to.
#[derive(Debug, PartialEq)]
pub struct Target {
    /// Its name in the configuration.
    pub name: String,
    /// `http` or `https`.
    pub scheme: Scheme,
    /// Host and, unless it is the scheme's own, port: what goes into `Host`, as [`Authority::as_str`] has it.
    pub authority: Authority,
    /// Host and port, always both: what `CONNECT` names.
    pub host_and_port: String,
    /// A path that goes before the request's own; empty, or without a slash at its end.
    pub base_path: String,
    /// Its time-outs.
    pub upstream: Upstream,
}

struct Pattern {
    path: String,
    prefix: bool,
    header: Option<String>,
}

impl Table {
    pub(super) fn new(config: &Config) -> Result<Self, GatewayError> {
        let mut targets = std::collections::BTreeMap::new();
        for (name, upstream) in &config.upstreams {
            targets.insert(name.as_str(), Arc::new(Target::new(name, upstream)?));
        }
        let mut routes = Vec::with_capacity(config.routes.len());
        for route in &config.routes {
            let target =
                targets
                    .get(route.upstream.as_str())
                    .ok_or_else(|| GatewayError::FindUpstream {
                        path: route.path.clone(),
                        upstream: route.upstream.clone(),
                    })?;
            routes.push(Entry {
                pattern: Pattern::new(route),
                upgrade: route.upgrade.clone(),
                connect: route.connect,
                target: Arc::clone(target),
            });
        }
        Ok(Self { routes })
    }

    pub(super) fn find(&self, head: &RequestHead<'_>) -> Option<&Entry> {
        self.routes.iter().find(|entry| entry.pattern.matches(head))
    }

    /// The first upstream of this host and port that a route allows tunnels to.
    pub(super) fn tunnel(&self, authority: &str) -> Option<&Arc<Target>> {
        self.routes
            .iter()
            .filter(|entry| entry.connect)
            .map(|entry| &entry.target)
            .find(|target| target.host_and_port.eq_ignore_ascii_case(authority))
    }
}

impl Entry {
    /// Whether each protocol that the field offers is allowed: the upstream chooses among all of them.
    pub(super) fn allows(&self, upgrade: &str) -> bool {
        let mut offered = upgrade
            .split(',')
            .map(|protocol| protocol.trim_matches([' ', '\t']))
            .filter(|protocol| !protocol.is_empty())
            .peekable();
        offered.peek().is_some()
            && offered.all(|protocol| {
                let name = protocol.split('/').next().unwrap_or_default();
                self.upgrade.iter().any(|allowed| {
                    // Allowed without a version is allowed in any.
                    allowed.eq_ignore_ascii_case(protocol) || allowed.eq_ignore_ascii_case(name)
                })
            })
    }
}

impl Pattern {
    fn new(route: &Route) -> Self {
        let prefix = route.path.strip_suffix('*');
        Self {
            path: prefix.unwrap_or(&route.path).to_owned(),
            prefix: prefix.is_some(),
            header: route.header.clone(),
        }
    }

    fn matches(&self, head: &RequestHead<'_>) -> bool {
        let path = if self.prefix {
            head.path.starts_with(&self.path)
        } else {
            head.path == self.path
        };
        path && self
            .header
            .as_deref()
            .is_none_or(|name| head.fields.first(name).is_some())
    }
}

impl Target {
    fn new(name: &str, upstream: &Upstream) -> Result<Self, GatewayError> {
        let refused = || GatewayError::ReadAddress {
            name: name.to_owned(),
            url: upstream.url.clone(),
        };
        let parts = upstream
            .url
            .parse::<Uri>()
            .map_err(|_| refused())?
            .into_parts();
        let scheme = parts
            .scheme
            .filter(|scheme| *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS);
        let scheme = scheme.ok_or_else(refused)?;
        let authority = parts.authority.ok_or_else(refused)?;
        let port = authority.port_u16().unwrap_or_else(|| port_of(&scheme));
        Ok(Self {
            name: name.to_owned(),
            host_and_port: format!("{}:{port}", authority.host()),
            scheme,
            authority,
            base_path: parts.path_and_query.map_or_else(String::new, |path| {
                path.path().trim_end_matches('/').to_owned()
            }),
            upstream: upstream.clone(),
        })
    }

    /// Whether the connection is encrypted.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// The host without the brackets of an IPv6 address, as a resolver and a certificate want it.
    #[must_use]
    pub fn host(&self) -> &str {
        self.authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
    }

    /// The port to connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.authority
            .port_u16()
            .unwrap_or_else(|| port_of(&self.scheme))
    }
}

fn port_of(scheme: &Scheme) -> u16 {
    if *scheme == Scheme::HTTPS { 443 } else { 80 }
}
