//! Which fields end here and which go on (RFC 9110, section 7.6.1). Pure.

use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, TE, TRANSFER_ENCODING, UPGRADE,
};

/// Fields that speak about one connection even when `Connection` does not name them.
const HOP_BY_HOP: [HeaderName; 6] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Removes what belongs to this connection only; everything else stays as it is.
pub(super) fn strip_hop_by_hop(fields: &mut HeaderMap) {
    let nominated: Vec<HeaderName> = nominated(fields)
        .filter_map(|name| name.parse().ok())
        .collect();
    for name in nominated {
        // The length says where the body ends and `Host` is ours to set: a `Connection` that names them is nonsense or an attack.
        if name != CONTENT_LENGTH && name != http::header::HOST {
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

/// Whether the client asks for another protocol. `h2c` alone is an offer that a server may ignore, so it is.
pub(super) fn wants_upgrade(fields: &HeaderMap) -> bool {
    nominated(fields).any(|name| name.eq_ignore_ascii_case("upgrade"))
        && tokens(fields, &UPGRADE).any(|protocol| !protocol.eq_ignore_ascii_case("h2c"))
}

/// Whether the body has a transfer coding besides `chunked`. Codings end here, so one that is not
/// undone here would reach the upstream as something else than was meant.
pub(super) fn has_other_coding(fields: &HeaderMap) -> bool {
    tokens(fields, &TRANSFER_ENCODING).any(|coding| !coding.eq_ignore_ascii_case("chunked"))
}

/// The names that `Connection` lists.
fn nominated(fields: &HeaderMap) -> impl Iterator<Item = &str> {
    tokens(fields, &CONNECTION)
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
mod tests {
    use super::*;

    fn map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    fn stripped(fields: &[(&'static str, &'static str)]) -> Vec<String> {
        let mut fields = map(fields);
        strip_hop_by_hop(&mut fields);
        let mut left: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        left.sort();
        left
    }

    #[test]
    fn fields_of_one_connection_end_here() {
        let left = stripped(&[
            ("connection", "keep-alive"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
        ]);
        assert_eq!(left, Vec::<String>::new());
    }

    #[test]
    fn nominated_fields_end_here_whatever_their_case() {
        let left = stripped(&[
            ("connection", "X-One, close,,x-two ,\u{20}"),
            ("connection", "X-Three"),
            ("x-one", "1"),
            ("x-two", "2"),
            ("x-three", "3"),
            ("x-four", "4"),
        ]);
        assert_eq!(left, ["x-four: 4"]);
    }

    #[test]
    fn everything_else_goes_on() {
        let fields = [
            ("authorization", "Bearer key"),
            ("content-length", "5"),
            ("expect", "100-continue"),
            ("host", "here"),
            ("proxy-authorization", "Basic key"),
            ("trailer", "x-sum"),
            ("via", "1.1 other"),
            ("x-api-key", "key"),
            ("x-forwarded-for", "10.0.0.1"),
        ];
        let expected: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        assert_eq!(stripped(&fields), expected);
    }

    #[test]
    fn a_length_beside_chunks_is_never_forwarded() {
        assert_eq!(
            stripped(&[
                ("transfer-encoding", "chunked"),
                ("content-length", "5"),
                ("x", "y")
            ]),
            ["x: y"]
        );
    }

    #[test]
    fn a_nominated_length_or_host_stays() {
        let left = stripped(&[
            ("connection", "content-length, host"),
            ("content-length", "5"),
            ("host", "here"),
        ]);
        assert_eq!(left, ["content-length: 5", "host: here"]);
    }

    #[test]
    fn an_upgrade_is_one_that_connection_names() {
        for (fields, wanted) in [
            (
                &[("connection", "Upgrade"), ("upgrade", "websocket")][..],
                true,
            ),
            (
                &[
                    ("connection", "keep-alive, upgrade"),
                    ("upgrade", "h2c, websocket"),
                ],
                true,
            ),
            (
                &[
                    ("connection", "Upgrade, HTTP2-Settings"),
                    ("upgrade", "h2c"),
                ],
                false,
            ),
            (&[("upgrade", "websocket")], false),
            (&[("connection", "upgrade")], false),
            (&[], false),
        ] {
            assert_eq!(wants_upgrade(&map(fields)), wanted, "{fields:?}");
        }
    }
}
