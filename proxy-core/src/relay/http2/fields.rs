//! How the fields of a message change between HTTP/2 and HTTP/1.1 (RFC 9113, sections 8.2 and 8.3; RFC 9110, section
//! 7.6.1). Pure.

use std::net::IpAddr;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{Response, StatusCode, Uri, Version};

use crate::config::Server;
use crate::gateway::Target;
use crate::relay::trailers::FORBIDDEN;

/// Fields that speak about one connection even when `Connection` does not name them. `TE` is one, too, and asked for
/// first; HTTP/2 has none of the others.
const HOP_BY_HOP: [HeaderName; 7] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// What an HTTP/2 client's head must be beyond what hyper has checked; the sentence names what is wrong.
pub(super) fn check(head: &Parts) -> Result<(), &'static str> {
    let mut hosts = head.headers.get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err("the request has more than one Host");
    }
    match (head.uri.authority(), host) {
        (None, None) => return Err("the request names no host"),
        (Some(authority), _) if authority.as_str().contains('@') => {
            return Err("the :authority of the request has user information");
        }
        (Some(authority), Some(host))
            if !host
                .as_bytes()
                .eq_ignore_ascii_case(authority.as_str().as_bytes()) =>
        {
            return Err("the Host of the request is not its :authority");
        }
        (None, Some(host)) if !is_host(host) => {
            return Err("the Host of the request is no host");
        }
        _ => {}
    }
    // Some servers behind take them for the real ones.
    for misspelled in ["content_length", "transfer_encoding"] {
        if head.headers.contains_key(misspelled) {
            return Err("the request has a field that is misspelled for one that frames its body");
        }
    }
    let mut lengths = head.headers.get_all(CONTENT_LENGTH).iter();
    let length = lengths.next();
    if lengths.next().is_some() {
        return Err("the request has more than one Content-Length");
    }
    match length.map(HeaderValue::as_bytes) {
        Some([]) => Err("the Content-Length of the request is empty"),
        _ => Ok(()),
    }
}

fn is_host(host: &HeaderValue) -> bool {
    Authority::try_from(host.as_bytes()).is_ok_and(|host| !host.as_str().contains('@'))
}

/// Makes a request's head the one of HTTP/1.1 that the upstream gets.
///
/// `unknown_length` is whether its body may be there and has no length.
pub(super) fn to_http1(head: &mut Parts, target: &Target, unknown_length: bool) {
    let trailers = accepts_trailers(&head.headers);
    strip_hop_by_hop(&mut head.headers);
    join_cookies(&mut head.headers);
    if let Ok(host) = HeaderValue::from_str(target.authority.as_str()) {
        head.headers.insert(HOST, host);
    }
    if trailers {
        head.headers
            .insert(TE, HeaderValue::from_static("trailers"));
        head.headers
            .insert(CONNECTION, HeaderValue::from_static("TE"));
    }
    if unknown_length {
        // Said here, for hyper drops the body of a GET that has none.
        head.headers
            .insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    let path = head.uri.path_and_query().cloned();
    head.uri = path.map_or_else(Uri::default, Uri::from);
    head.version = Version::HTTP_11;
}

/// Makes a request's head the one of HTTP/2 that the upstream gets.
pub(super) fn to_http2(head: &mut Parts, target: &Target) {
    let trailers = accepts_trailers(&head.headers);
    strip_hop_by_hop(&mut head.headers);
    head.headers.remove(HOST);
    if trailers {
        head.headers
            .insert(TE, HeaderValue::from_static("trailers"));
    }
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(target.scheme.clone());
    parts.authority = Some(target.authority.clone());
    parts.path_and_query = Some(
        head.uri
            .path_and_query()
            .cloned()
            .unwrap_or_else(|| PathAndQuery::from_static("/")),
    );
    // Never fails: all three parts are there.
    head.uri = Uri::from_parts(parts).unwrap_or_default();
    head.version = Version::HTTP_2;
}

/// Removes what belongs to one connection only; everything else stays as it is.
pub(super) fn strip_hop_by_hop(fields: &mut HeaderMap) {
    let nominated: Vec<HeaderName> = tokens(fields, &CONNECTION)
        .filter_map(|name| name.parse().ok())
        .collect();
    for name in nominated {
        // The length says where the body ends and `Host` is ours to set: a `Connection` that names them is nonsense or an attack.
        if name != CONTENT_LENGTH && name != HOST {
            fields.remove(name);
        }
    }
    // A body in chunks has no length: one that came with it is wrong, and was not believed here either (RFC 9112, 6.3).
    if fields.contains_key(TRANSFER_ENCODING) {
        fields.remove(CONTENT_LENGTH);
    }
    for name in HOP_BY_HOP {
        fields.remove(name);
    }
}

/// Leaves out of trailers what they may not say: the same as in HTTP/1, where they are refused for it.
pub(super) fn clean_trailers(trailers: &mut HeaderMap) {
    strip_hop_by_hop(trailers);
    for name in FORBIDDEN {
        trailers.remove(name);
    }
}

/// Whether the length that an answer announces can be read in one way; it is left out where there is no body (RFC 9110,
/// section 8.6).
pub(super) fn check_answer<B>(answer: &mut Response<B>) -> bool {
    if answer.status() == StatusCode::NO_CONTENT {
        answer.headers_mut().remove(CONTENT_LENGTH);
    }
    let mut lengths = answer.headers().get_all(CONTENT_LENGTH).iter();
    let length = lengths.next().map(HeaderValue::as_bytes);
    let digits = |length: &[u8]| !length.is_empty() && length.iter().all(u8::is_ascii_digit);
    length.is_none_or(digits) && lengths.next().is_none()
}

/// The fields that only a configuration adds to requests.
pub(in crate::relay) fn add_configured(head: &mut Parts, server: &Server, client: Option<IpAddr>) {
    add_via(&mut head.headers, server, version_of(head.version));
    if !server.forwarded {
        return;
    }
    let mut add = |name: &'static str, value: Option<HeaderValue>| {
        if let Some(value) = value {
            head.headers.append(HeaderName::from_static(name), value);
        }
    };
    let address = client.and_then(|client| HeaderValue::try_from(client.to_string()).ok());
    add("x-forwarded-for", address);
    add("x-forwarded-proto", Some(HeaderValue::from_static("http")));
    let authority = head.uri.authority().map(Authority::as_str);
    let host = authority
        .and_then(|authority| HeaderValue::from_str(authority).ok())
        .or_else(|| head.headers.get(HOST).cloned());
    if let Some(host) = host {
        head.headers
            .append(HeaderName::from_static("x-forwarded-host"), host);
    }
}

/// A version as `Via` names it.
pub(super) fn version_of(version: Version) -> &'static str {
    match version {
        Version::HTTP_2 => "2",
        Version::HTTP_10 => "1.0",
        _ => "1.1",
    }
}

/// `Via`, with the version that the message came in (RFC 9110, section 7.6.3).
pub(super) fn add_via(fields: &mut HeaderMap, server: &Server, version: &str) {
    if server.via.is_empty() {
        return;
    }
    if let Ok(via) = HeaderValue::try_from(format!("{version} {}", server.via)) {
        fields.append(VIA, via);
    }
}

/// HTTP/2 may cut a cookie into crumbs, HTTP/1.1 has one field (RFC 9113, section 8.2.3).
fn join_cookies(fields: &mut HeaderMap) {
    let crumbs: Vec<&[u8]> = fields
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if crumbs.len() < 2 {
        return;
    }
    if let Ok(joined) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
        fields.insert(COOKIE, joined);
    }
}

/// Whether `TE` says that trailers are welcome.
fn accepts_trailers(fields: &HeaderMap) -> bool {
    tokens(fields, &TE).any(|coding| coding.eq_ignore_ascii_case("trailers"))
}

fn tokens<'a>(fields: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    fields
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests;
