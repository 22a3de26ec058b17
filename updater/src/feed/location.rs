//! Where a feed is. Shown without credentials, always.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use url::{Host, Url};

use super::FeedError;

/// The URL of a feed's folder, ending in `/`.
#[derive(Clone, PartialEq, Eq)]
pub struct Location(Url);

impl Location {
    /// The URL of a metadata file. The TUF client gives its name as it stands in a URL: what is unusual in the name of a
    /// role is quoted already.
    pub(super) fn metadata(&self, name: &str) -> Result<Location, FeedError> {
        if name.contains(['/', '?', '#']) {
            return Err(self.refused("a metadata file's name leads out of its folder"));
        }
        let mut location = self.below("metadata", "")?;
        let path = format!("{}{name}", location.0.path());
        location.0.set_path(&path);
        Ok(location)
    }

    /// The URL of a target's file.
    pub(super) fn target(&self, path: &str) -> Result<Location, FeedError> {
        self.below("targets", path)
    }

    /// The local path, if this is a `file://` URL.
    pub(super) fn path(&self) -> Option<PathBuf> {
        (self.0.scheme() == "file")
            .then(|| self.0.to_file_path().ok())
            .flatten()
    }

    /// Whether this is the machine itself: nothing is asked of a proxy then.
    pub(super) fn is_loopback(&self) -> bool {
        match self.0.host() {
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
            None => true,
        }
    }

    /// The URL with its credentials, for the one who sends the request.
    pub(super) fn url(&self) -> &Url {
        &self.0
    }

    fn below(&self, folder: &str, path: &str) -> Result<Location, FeedError> {
        let mut url = self.0.clone();
        match url.path_segments_mut() {
            Ok(mut segments) => segments.pop_if_empty().push(folder).extend(path.split('/')),
            Err(()) => return Err(self.refused("it cannot have files below it")),
        };
        Ok(Location(url))
    }

    fn refused(&self, reason: &'static str) -> FeedError {
        FeedError::Url {
            url: self.to_string(),
            reason,
        }
    }
}

impl FromStr for Location {
    type Err = FeedError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut location = Self::of_file(text)?;
        if !location.0.path().ends_with('/') {
            let path = format!("{}/", location.0.path());
            location.0.set_path(&path);
        }
        Ok(location)
    }
}

impl Location {
    /// The URL of one file, taken as it is.
    pub(super) fn of_file(text: &str) -> Result<Self, FeedError> {
        // What does not parse is not repeated: there is no telling where a password in it ends.
        let url = Url::parse(text).map_err(|_| FeedError::Url {
            url: "(given)".to_owned(),
            reason: "it is not a URL",
        })?;
        let location = Location(url);
        let url = &location.0;
        match url.scheme() {
            "http" | "https" => {}
            "file" if location.path().is_some() => {}
            "file" => return Err(location.refused("a file URL must name a local folder")),
            _ => return Err(location.refused("its scheme is neither https, http nor file")),
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(location.refused("it has a query or a fragment"));
        }
        Ok(location)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&masked(&self.0))
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({self})")
    }
}

/// A URL as it may be shown: user, password, query and fragment are what secrets hide in.
pub(super) fn masked(url: &Url) -> String {
    if url.cannot_be_a_base() {
        return format!("{}:***", url.scheme());
    }
    let mut shown = url.clone();
    let secret = !url.username().is_empty() || url.password().is_some();
    let _ = shown.set_password(None);
    let _ = shown.set_username(if secret { "***" } else { "" });
    shown.set_query(url.query().map(|_| "***"));
    shown.set_fragment(None);
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_below_the_feed_with_or_without_a_slash_at_its_end() {
        for feed in ["https://feeds.example/a/b", "https://feeds.example/a/b/"] {
            let feed: Location = feed.parse().unwrap();
            assert_eq!(
                feed.metadata("timestamp.json").unwrap().url().as_str(),
                "https://feeds.example/a/b/metadata/timestamp.json"
            );
            assert_eq!(
                feed.target("rollproxy/x/h.1.0.0.tar.gz")
                    .unwrap()
                    .url()
                    .as_str(),
                "https://feeds.example/a/b/targets/rollproxy/x/h.1.0.0.tar.gz"
            );
        }
        let local: Location = "file:///srv/feed%20one".parse().unwrap();
        assert_eq!(
            local.metadata("x").unwrap().path().unwrap(),
            PathBuf::from("/srv/feed one/metadata/x")
        );
    }

    #[test]
    fn credentials_are_never_shown() {
        let feed: Location = "https://ann:s3cret@feeds.example:8443/x".parse().unwrap();
        for shown in [
            feed.to_string(),
            format!("{feed:?}"),
            feed.metadata("a").unwrap().to_string(),
        ] {
            assert!(
                shown.contains("***@feeds.example:8443")
                    && !shown.contains("s3cret")
                    && !shown.contains("ann"),
                "{shown}"
            );
        }
        for bad in [
            "https://ann:s3cret@feeds.example/?token=s3cret",
            "ftp://ann:s3cret@feeds.example/",
            "ann:s3cret@[feeds",
        ] {
            let error = bad.parse::<Location>().unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn what_is_no_feed_is_refused() {
        for bad in [
            "",
            "feeds.example",
            "ftp://feeds.example/",
            "file://other/x",
            "https://h/?a",
            "https://h/#a",
            "/srv/feed",
            "data:x",
        ] {
            assert!(bad.parse::<Location>().is_err(), "{bad}");
        }
    }
}
