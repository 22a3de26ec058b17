//! TCP sockets that listen.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::config::ListenAddress;

use super::{BACKLOG, ListenError};

/// Binds and listens.
pub(super) fn bind(address: SocketAddr) -> Result<OwnedFd, ListenError> {
    let name = ListenAddress::Tcp(address);
    let failed = |error: Errno| match error {
        Errno::ADDRINUSE => ListenError::InUse(name.clone()),
        Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT => ListenError::NoSuchAddress(name.clone(), error),
        error => ListenError::Listen(name.clone(), error.into()),
    };
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(failed)?;
    sockopt::set_socket_reuseaddr(&socket, true).map_err(failed)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true).map_err(failed)?;
    }
    rustix::net::bind(&socket, &address).map_err(failed)?;
    rustix::net::listen(&socket, BACKLOG).map_err(failed)?;
    Ok(socket)
}
