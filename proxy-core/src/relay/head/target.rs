//! The request target in its four forms, and whether it goes with the method and with `Host` (RFC 9112, section 3.2).

use super::flaw::Refusal;

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'b> {
    /// A path, as it came, and what stands behind its question mark. An absolute target has become one.
    Path {
        /// Begins with a slash.
        path: &'b str,
        /// Without the question mark.
        query: Option<&'b str>,
    },
    /// `*`: the server itself, only for `OPTIONS`.
    Asterisk,
    /// `host:port`, only for `CONNECT`.
    Authority(&'b str),
}

impl<'b> Target<'b> {
    /// `host` is the value of `Host`, if there is one.
    pub(super) fn read(method: &str, text: &'b str, host: Option<&[u8]>) -> Result<Self, Refusal> {
        if !text.bytes().all(is_target) {
            return Err(Refusal::Target);
        }
        let host = match host {
            None => None,
            Some(value) => Some(Authority::read(value).ok_or(Refusal::Host)?),
        };
        if method == "CONNECT" {
            return match Authority::read(text.as_bytes()) {
                Some(authority) if authority.port.is_some() => Ok(Self::Authority(text)),
                _ => Err(Refusal::Target),
            };
        }
        if text.starts_with('/') {
            return Ok(Self::path(text));
        }
        if text == "*" && method == "OPTIONS" {
            return Ok(Self::Asterisk);
        }
        Self::absolute(method, text, host)
    }

    fn path(text: &'b str) -> Self {
        match text.split_once('?') {
            None => Self::Path {
                path: text,
                query: None,
            },
            Some((path, query)) => Self::Path {
                path,
                query: Some(query),
            },
        }
    }

    fn absolute(method: &str, text: &'b str, host: Option<Authority<'_>>) -> Result<Self, Refusal> {
        let (scheme, rest) = text.split_once("://").ok_or(Refusal::Target)?;
        let port = if scheme.eq_ignore_ascii_case("http") {
            80
        } else if scheme.eq_ignore_ascii_case("https") {
            443
        } else {
            return Err(Refusal::Target);
        };
        let (authority, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let authority = Authority::read(authority.as_bytes()).ok_or(Refusal::Target)?;
        if host.is_some_and(|host| !host.is_same(&authority, port)) {
            return Err(Refusal::OtherHost);
        }
        Ok(match rest.strip_prefix('?') {
            Some(query) => Self::Path {
                path: "/",
                query: Some(query),
            },
            None if !rest.is_empty() => Self::path(rest),
            None if method == "OPTIONS" => Self::Asterisk,
            None => Self::path("/"),
        })
    }
}

/// `host` or `host:port`.
struct Authority<'b> {
    host: &'b [u8],
    port: Option<u16>,
}

impl<'b> Authority<'b> {
    fn read(text: &'b [u8]) -> Option<Self> {
        let (host, rest) = if text.first() == Some(&b'[') {
            let end = memchr::memchr(b']', text)?;
            let address = std::str::from_utf8(&text[1..end]).ok()?;
            address.parse::<std::net::Ipv6Addr>().ok()?;
            text.split_at(end + 1)
        } else {
            let end = memchr::memchr(b':', text).unwrap_or(text.len());
            let (host, rest) = text.split_at(end);
            if host.is_empty() || !host.iter().copied().all(is_host) {
                return None;
            }
            (host, rest)
        };
        let port = match rest {
            [] | [b':'] => None,
            [b':', digits @ ..] if digits.iter().all(u8::is_ascii_digit) => {
                Some(std::str::from_utf8(digits).ok()?.parse().ok()?)
            }
            _ => return None,
        };
        Some(Self { host, port })
    }

    fn is_same(&self, other: &Self, default_port: u16) -> bool {
        self.host.eq_ignore_ascii_case(other.host)
            && self.port.unwrap_or(default_port) == other.port.unwrap_or(default_port)
    }
}

/// Visible, and no beginning of a fragment. Quotes and angle brackets are in no URL either; other proxies refuse them,
/// too. What else RFC 3986 does not have (`{|}^\`) is sent by real clients.
fn is_target(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"#\"<>`".contains(&byte)
}

/// A name as RFC 3986 has it, but no percent signs, which nobody resolves, and no comma, which would make it a list.
fn is_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+;=".contains(&byte)
}
