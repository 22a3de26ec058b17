//! The port: bound once, never closed while the supervisor lives.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::io::unix::AsyncFd;

use crate::descriptors::watch;

/// Connections the kernel may hold before we accept them.
const BACKLOG: i32 = 4096;

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    socket: AsyncFd<OwnedFd>,
    address: SocketAddr,
}

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process has it.
    #[error(
        "{0} is in use by another process; end that, or set another address in config.toml, [server] listen"
    )]
    InUse(SocketAddr),
    /// This host has no such address.
    #[error(
        "{0} is not an address of this host ({1}); set another one in config.toml, [server] listen"
    )]
    NoSuchAddress(SocketAddr, Errno),
    /// Anything else.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
}

impl Listener {
    /// Binds and listens.
    ///
    /// # Errors
    /// Naming the address and what to do.
    pub fn bind(address: SocketAddr) -> Result<Self, ListenError> {
        let failed = |error: Errno| match error {
            Errno::ADDRINUSE => ListenError::InUse(address),
            Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT => ListenError::NoSuchAddress(address, error),
            error => ListenError::Listen(address, error.into()),
        };
        let family = if address.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(failed)?;
        sockopt::set_socket_reuseaddr(&socket, true).map_err(failed)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true).map_err(failed)?;
        }
        rustix::net::bind(&socket, &address).map_err(failed)?;
        rustix::net::listen(&socket, BACKLOG).map_err(failed)?;
        let bound = rustix::net::getsockname(&socket)
            .ok()
            .and_then(|name| SocketAddr::try_from(name).ok())
            .unwrap_or(address);
        let socket = watch(socket).map_err(|error| ListenError::Listen(address, error))?;
        Ok(Self {
            socket,
            address: bound,
        })
    }

    /// Where it listens, the port as it really is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection.
    ///
    /// The accepted socket is never put into this process's epoll: an entry there belongs to the
    /// open file description and would outlive our descriptor once a worker has it.
    ///
    /// # Errors
    /// When no descriptor is left, or the system is out of memory; the connection stays in the backlog.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<Result<OwnedFd, Errno>> {
        loop {
            let mut guard = match self.socket.poll_read_ready(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(guard)) => guard,
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Errno::BADF)),
            };
            match rustix::net::accept_with(
                self.socket.get_ref(),
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            ) {
                Ok(socket) => return Poll::Ready(Ok(socket)),
                Err(Errno::AGAIN) => guard.clear_ready(),
                // The client left while it waited, or a network error of that one connection.
                Err(
                    Errno::INTR
                    | Errno::CONNABORTED
                    | Errno::PROTO
                    | Errno::NETDOWN
                    | Errno::HOSTUNREACH
                    | Errno::NETUNREACH,
                ) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}
