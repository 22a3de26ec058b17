//! Why an address cannot be listened on.

use std::path::PathBuf;

use rustix::io::Errno;
use staging::report::{Exit, Report};

use crate::config::ListenAddress;

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process has it.
    #[error(
        "{0} is in use by another process; end that, or set another address in config.toml, [server] listen"
    )]
    InUse(ListenAddress),
    /// This host has no such address.
    #[error(
        "{0} is not an address of this host ({1}); set another one in config.toml, [server] listen"
    )]
    NoSuchAddress(ListenAddress, Errno),
    /// A file is in the way of a Unix socket.
    #[error(
        "{0} is there and is not a socket; move it away, or set another path in config.toml, [server] listen"
    )]
    NotASocket(PathBuf),
    /// An inherited descriptor is of no use.
    #[error(
        "it is not a listening TCP or Unix stream socket; in a socket unit use ListenStream= with Accept=no"
    )]
    NotListening,
    /// Anything else.
    #[error("cannot listen on {0}: {1}")]
    Listen(ListenAddress, std::io::Error),
}

impl Report for ListenError {
    fn code(&self) -> &'static str {
        match self {
            Self::InUse(_) => "ADDRESS_IN_USE",
            _ => "CANNOT_LISTEN",
        }
    }

    fn exit(&self) -> Exit {
        match self {
            Self::NoSuchAddress(..) => Exit::Configuration,
            _ => Exit::Failed,
        }
    }

    fn retry(&self) -> bool {
        matches!(self, Self::InUse(_))
    }
}
