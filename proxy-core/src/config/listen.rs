//! Where the supervisor listens: an IP address and a port.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a listen address may look like; used in every message about one.
pub(super) const ALLOWED: &str = "an IP address and a port, for example \"127.0.0.1:8787\" or \"[::1]:8787\" (port 0 = any free one)";

/// `127.0.0.1:8787` or `[::1]:8787`. A name is refused: it can mean several addresses, and other ones tomorrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ListenAddress(SocketAddr);

impl ListenAddress {
    /// The address to bind.
    #[must_use]
    pub const fn socket_addr(&self) -> SocketAddr {
        self.0
    }
}

impl FromStr for ListenAddress {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse()
            .map(Self)
            .map_err(|_| NotAnAddress(text.to_owned()))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl<I: Into<IpAddr>> From<(I, u16)> for ListenAddress {
    fn from(parts: (I, u16)) -> Self {
        Self(SocketAddr::from(parts))
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

/// The text is no IP address with a port.
#[derive(Debug, thiserror::Error)]
#[error("\"{0}\" is not {ALLOWED}")]
pub struct NotAnAddress(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_written() {
        for text in ["127.0.0.1:8787", "[::1]:8787", "0.0.0.0:0", "[::]:80"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_is() {
        for text in [
            "",
            "8787",
            ":8787",
            "127.0.0.1",
            "::1:8787",
            "localhost:8787",
            "127.0.0.1:99999",
            "http://127.0.0.1:1",
        ] {
            let refusal = text.parse::<ListenAddress>().unwrap_err().to_string();
            assert!(refusal.contains("127.0.0.1:8787"), "{refusal}");
        }
    }
}
