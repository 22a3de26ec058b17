//! Where the supervisor listens: an IP address and a port, or a Unix socket.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a listen address may look like; used in every message about one.
pub(super) const ALLOWED: &str = "an IP address and a port, for example \"127.0.0.1:8787\" or \"[::1]:8787\" (port 0 = any free one), or a Unix socket, for example \"unix:/run/rollproxy.sock\"";

/// What tells a Unix socket from an IP address.
const UNIX: &str = "unix:";

/// The longest path that the kernel takes for a Unix socket; one more byte ends it.
const LONGEST_PATH: usize = 107;

/// `127.0.0.1:8787`, `[::1]:8787` or `unix:/run/rollproxy.sock`. A name is refused: it can mean several addresses, and
/// other ones tomorrow.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ListenAddress {
    /// TCP, v4 or v6.
    Tcp(SocketAddr),
    /// A Unix socket's absolute path.
    Unix(PathBuf),
}

impl ListenAddress {
    /// The IP address and port, where it is TCP.
    #[must_use]
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// Whether the kernel chooses the port: such an address may stand in a list more than once.
    #[must_use]
    pub fn is_any_port(&self) -> bool {
        matches!(self, Self::Tcp(address) if address.port() == 0)
    }
}

impl FromStr for ListenAddress {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let not_one = || NotAnAddress(text.to_owned());
        match text.strip_prefix(UNIX) {
            Some(path) => unix_path(path).map(Self::Unix).ok_or_else(not_one),
            None => text.parse().map(Self::Tcp).map_err(|_| not_one()),
        }
    }
}

/// An absolute path of a file that the kernel takes for a socket's address.
fn unix_path(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    let is_usable = path.is_absolute()
        && path.file_name().is_some()
        && !text.ends_with('/')
        && !text.contains('\0')
        && text.len() <= LONGEST_PATH;
    is_usable.then(|| path.to_owned())
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(out),
            Self::Unix(path) => write!(out, "{UNIX}{}", path.display()),
        }
    }
}

impl<I: Into<IpAddr>> From<(I, u16)> for ListenAddress {
    fn from(parts: (I, u16)) -> Self {
        Self::Tcp(SocketAddr::from(parts))
    }
}

impl TryFrom<String> for ListenAddress {
    type Error = NotAnAddress;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ListenAddress> for String {
    fn from(address: ListenAddress) -> Self {
        address.to_string()
    }
}

/// The text is no address to listen on.
#[derive(Debug, thiserror::Error)]
#[error("\"{0}\" is not {ALLOWED}")]
pub struct NotAnAddress(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_written() {
        for text in [
            "127.0.0.1:8787",
            "[::1]:8787",
            "0.0.0.0:0",
            "[::]:80",
            "unix:/run/rollproxy.sock",
            "unix:/a path/with spaces",
        ] {
            let address: ListenAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            let json = serde_json::to_string(&address).unwrap();
            assert_eq!(
                serde_json::from_str::<ListenAddress>(&json).unwrap(),
                address
            );
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_is() {
        let too_long = format!("unix:/{}", "x".repeat(LONGEST_PATH));
        for text in [
            "",
            "8787",
            ":8787",
            "127.0.0.1",
            "::1:8787",
            "localhost:8787",
            "127.0.0.1:99999",
            "http://127.0.0.1:1",
            "unix:",
            "unix:relative.sock",
            "unix:/",
            "unix:/run/folder/",
            "unix:/run/..",
            "unix:/run/a\0b",
            "/run/rollproxy.sock",
            too_long.as_str(),
        ] {
            let refusal = text.parse::<ListenAddress>().unwrap_err().to_string();
            assert!(
                refusal.contains("127.0.0.1:8787") && refusal.contains("unix:/run/rollproxy.sock"),
                "{refusal}"
            );
        }
        let longest = &too_long[..too_long.len() - 1];
        assert!(longest.parse::<ListenAddress>().is_ok());
    }
}
