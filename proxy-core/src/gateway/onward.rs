//! The path and query that an upstream is asked for.

use std::fmt;

use http::uri::PathAndQuery;

/// Longer than any head that is accepted, and what an HTTP/2 upstream can be asked for.
const LONGEST: usize = u16::MAX as usize - 1;

/// The upstream's own path, then what the client sent, byte for byte. Borrowed piece by piece, so that forwarding
/// allocates nothing; [`Self::write`] puts them together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnwardPath<'g, 'h> {
    base: &'g str,
    path: &'h str,
    query: Option<&'h str>,
}

impl<'g, 'h> OnwardPath<'g, 'h> {
    /// `None` if that is no request target which can be forwarded: it must start with a slash and be visible ASCII
    /// without a fragment.
    pub(super) fn new(base: &'g str, path: &'h str, query: Option<&'h str>) -> Option<Self> {
        let visible = |text: &str| {
            text.bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b'#')
        };
        let onward = Self { base, path, query };
        let good = path.starts_with('/')
            && visible(path)
            && !path.contains('?')
            && query.is_none_or(visible)
            && onward.len() <= LONGEST;
        good.then_some(onward)
    }

    /// Appends it to a head.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.base.as_bytes());
        out.extend_from_slice(self.path.as_bytes());
        if let Some(query) = self.query {
            out.push(b'?');
            out.extend_from_slice(query.as_bytes());
        }
    }

    /// Its pieces, to be written one behind the other.
    #[must_use]
    pub fn pieces<'a>(&self) -> [&'a str; 4]
    where
        'g: 'a,
        'h: 'a,
    {
        let (mark, query) = self.query.map_or(("", ""), |query| ("?", query));
        [self.base, self.path, mark, query]
    }

    /// How many bytes [`Self::write`] appends.
    #[must_use]
    pub fn len(&self) -> usize {
        self.base.len() + self.path.len() + self.query.map_or(0, |query| 1 + query.len())
    }

    /// Never: there is a slash at least.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As HTTP/2 needs it; `None` for the few visible characters that may pass in HTTP/1 only.
    #[must_use]
    pub fn to_path_and_query(&self) -> Option<PathAndQuery> {
        PathAndQuery::try_from(self.to_string()).ok()
    }
}

impl fmt::Display for OnwardPath<'_, '_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.base)?;
        to.write_str(self.path)?;
        match self.query {
            Some(query) => write!(to, "?{query}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_shown_and_has_its_length() {
        for (base, path, query, whole) in [
            ("", "/", None, "/"),
            ("/base", "/v1/a%2Fb", None, "/base/v1/a%2Fb"),
            ("/base", "/v1/a", Some("q=?&r"), "/base/v1/a?q=?&r"),
            ("", "/v1/", Some(""), "/v1/?"),
        ] {
            let onward = OnwardPath::new(base, path, query).unwrap();
            let mut written = Vec::new();
            onward.write(&mut written);
            assert_eq!(written, whole.as_bytes());
            assert_eq!(onward.to_string(), whole);
            assert_eq!(onward.len(), whole.len());
            assert_eq!(onward.to_path_and_query().unwrap(), whole);
        }
    }

    #[test]
    fn what_is_no_target_is_refused() {
        let long = format!("/{}", "a".repeat(70_000));
        for (path, query) in [
            ("", None),
            ("*", None),
            ("v1", None),
            ("host:80", None),
            ("/a b", None),
            ("/a\r\nx: y", None),
            ("/a#b", None),
            ("/a?b", None),
            ("/é", None),
            ("/a\0", None),
            ("/a\x7f", None),
            ("/a", Some("b c")),
            ("/a", Some("b#c")),
            ("/a", Some("é")),
            (long.as_str(), None),
        ] {
            assert_eq!(OnwardPath::new("", path, query), None, "{path:?} {query:?}");
        }
    }

    #[test]
    fn characters_that_only_http1_carries_have_no_http2_form() {
        let onward = OnwardPath::new("", "/a<b>", None).unwrap();
        assert_eq!(onward.to_path_and_query(), None);
        assert_eq!(onward.to_string(), "/a<b>");
    }
}
