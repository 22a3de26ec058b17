//! Which upstream a request goes to: the first route that matches.

use std::sync::Arc;

use http::uri::{Authority, PathAndQuery, Scheme, Uri};

use super::{GatewayError, RequestHead};
use crate::config::{Config, Route, Upstream};

/// The routes in their order, each with its upstream.
pub(super) struct Table {
    routes: Vec<(Pattern, Arc<Target>)>,
}

/// An upstream, ready to be connected to.
#[derive(Debug, PartialEq)]
pub struct Target {
    /// Its name in the configuration.
    pub name: String,
    /// `http` or `https`.
    pub scheme: Scheme,
    /// Host and, unless it is the scheme's own, port: what goes into `Host`.
    pub authority: Authority,
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
            routes.push((Pattern::new(route), Arc::clone(target)));
        }
        Ok(Self { routes })
    }

    pub(super) fn find(&self, head: &RequestHead<'_>) -> Option<&Arc<Target>> {
        self.routes
            .iter()
            .find(|(pattern, _)| pattern.matches(head))
            .map(|(_, target)| target)
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
        Ok(Self {
            name: name.to_owned(),
            scheme: scheme.ok_or_else(refused)?,
            authority: parts.authority.ok_or_else(refused)?,
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
            .unwrap_or(if self.is_tls() { 443 } else { 80 })
    }

    /// The request's own path and query behind ours, byte for byte; `None` if that is no request target.
    pub(super) fn path_and_query(&self, head: &RequestHead<'_>) -> Option<PathAndQuery> {
        let text = match head.query {
            None => format!("{}{}", self.base_path, head.path),
            Some(query) => format!("{}{}?{query}", self.base_path, head.path),
        };
        PathAndQuery::try_from(text).ok()
    }
}
