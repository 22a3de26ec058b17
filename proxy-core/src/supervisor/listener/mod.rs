//! Listening sockets: bound or inherited, accepted from, closed. `plan` decides which of them, `all` holds them.

mod all;
mod error;
mod plan;
mod tcp;
mod unix;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::task::{Context, Poll};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};
use tokio::io::unix::AsyncFd;

use crate::config::ListenAddress;
use crate::descriptors::watch;

pub use all::{Listeners, Prepared};
pub use error::ListenError;
pub use plan::Named;

/// Connections the kernel may hold before we accept them.
const BACKLOG: i32 = 4096;

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    socket: AsyncFd<OwnedFd>,
    named: Named,
    /// The file of a Unix socket, which ends with the listener.
    file: Option<unix::SocketFile>,
}

impl Listener {
    /// Binds and listens; `mode` is for the file of a Unix socket. It may overlap with the addresses of `ours`, as
    /// 0.0.0.0 does with 127.0.0.1, but be none of them.
    ///
    /// # Errors
    /// Naming the address and what to do.
    pub fn bind(asked: &ListenAddress, mode: u32, ours: &[&Listener]) -> Result<Self, ListenError> {
        let (socket, file) = match asked {
            ListenAddress::Tcp(address) => (tcp::bind(*address, ours)?, None),
            ListenAddress::Unix(path) => {
                let (socket, file) = unix::bind(path, mode)?;
                (socket, Some(file))
            }
        };
        let bound = bound_address(&socket).unwrap_or_else(|| asked.clone());
        Self::watched(socket, Named::new(Some(asked.clone()), bound), file)
    }

    /// One that was made by somebody else: by a service manager, or by this process before an exec.
    ///
    /// `asked` is the entry of the configuration that it serves, where that is known.
    ///
    /// # Errors
    /// When it does not listen, or on nothing that a configuration can name.
    pub fn from_inherited(
        socket: OwnedFd,
        asked: Option<ListenAddress>,
    ) -> Result<Self, ListenError> {
        let listens = sockopt::socket_type(&socket) == Ok(SocketType::STREAM)
            && sockopt::socket_acceptconn(&socket) == Ok(true);
        let bound = bound_address(&socket).filter(|_| listens);
        let Some(bound) = bound else {
            return Err(ListenError::NotListening);
        };
        let failed = |error: Errno| ListenError::Listen(bound.clone(), error.into());
        let flags = rustix::fs::fcntl_getfl(&socket).map_err(failed)?;
        rustix::fs::fcntl_setfl(&socket, flags | rustix::fs::OFlags::NONBLOCK).map_err(failed)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).map_err(failed)?;
        let file = match &bound {
            ListenAddress::Unix(path) => unix::SocketFile::at(path),
            ListenAddress::Tcp(_) => None,
        };
        Self::watched(socket, Named::new(asked, bound), file)
    }

    /// A service manager keeps it under this name.
    #[must_use]
    pub fn stored_as(mut self, name: String) -> Self {
        self.named.stored = Some(name);
        self
    }

    /// A service manager listens on it itself.
    #[must_use]
    pub fn lent(mut self) -> Self {
        self.named.lent = true;
        self
    }

    fn watched(
        socket: OwnedFd,
        named: Named,
        file: Option<unix::SocketFile>,
    ) -> Result<Self, ListenError> {
        let socket =
            watch(socket).map_err(|error| ListenError::Listen(named.bound.clone(), error))?;
        Ok(Self {
            socket,
            named,
            file,
        })
    }

    /// Where it listens, the port as it really is.
    pub fn address(&self) -> &ListenAddress {
        &self.named.bound
    }

    /// That, and what was asked for.
    pub fn named(&self) -> &Named {
        &self.named
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
            match self.accept_now() {
                Ok(Some(socket)) => return Poll::Ready(Ok(socket)),
                Ok(None) => guard.clear_ready(),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// A connection that waits in the backlog, if one does.
    ///
    /// # Errors
    /// As [`Self::poll_accept`].
    pub fn accept_now(&self) -> Result<Option<OwnedFd>, Errno> {
        loop {
            match rustix::net::accept_with(
                self.socket.get_ref(),
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            ) {
                Ok(socket) => return Ok(Some(socket)),
                Err(Errno::AGAIN) => return Ok(None),
                // The client left while it waited, or a network error of that one connection.
                Err(
                    Errno::INTR
                    | Errno::CONNABORTED
                    | Errno::PROTO
                    | Errno::NETDOWN
                    | Errno::HOSTUNREACH
                    | Errno::NETUNREACH,
                ) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Closes it. What waits in the backlog is reset: accept it first. The file of a Unix socket goes, too.
    ///
    /// Others may hold it, too: a service manager that keeps it for us. So it stops listening first, or connections
    /// would go on being made that nobody takes. One that is lent is its owner's.
    pub fn close(self) {
        if self.named.lent {
            return;
        }
        if let Err(error) = rustix::net::shutdown(self.socket.get_ref(), Shutdown::Both) {
            tracing::debug!(%error, address = %self.named.bound, "cannot stop listening");
        }
        if let Some(file) = self.file {
            file.remove();
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.get_ref().as_fd()
    }
}

/// What a socket is bound to, where a configuration can name it.
fn bound_address(socket: &OwnedFd) -> Option<ListenAddress> {
    let name = rustix::net::getsockname(socket).ok()?;
    if sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX) {
        let unix = rustix::net::SocketAddrUnix::try_from(name).ok()?;
        let path = std::ffi::OsStr::new(unix.path()?.to_str().ok()?).to_owned();
        return Some(ListenAddress::Unix(PathBuf::from(path)));
    }
    SocketAddr::try_from(name).ok().map(ListenAddress::Tcp)
}
