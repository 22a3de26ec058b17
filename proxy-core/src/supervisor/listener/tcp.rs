//! TCP sockets that listen.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::config::ListenAddress;

use super::{BACKLOG, ListenError, Listener};

/// Binds and listens. Where one of ours is in the way because it is bound to a part of `address`, or to more than that,
/// both are made to share their port for as long as the kernel looks.
pub(super) fn bind(address: SocketAddr, ours: &[&Listener]) -> Result<OwnedFd, ListenError> {
    let name = ListenAddress::Tcp(address);
    let failed = |error: Errno| match error {
        Errno::ADDRINUSE => ListenError::InUse(name.clone()),
        Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT => ListenError::NoSuchAddress(name.clone(), error),
        error => ListenError::Listen(name.clone(), error.into()),
    };
    let in_the_way: Vec<&Listener> = ours
        .iter()
        .filter(|ours| overlap(ours.address().socket_addr(), address))
        .copied()
        .collect();
    match try_bind(address, false) {
        Err(Errno::ADDRINUSE) if !in_the_way.is_empty() => {}
        bound => return bound.map_err(failed),
    }
    share(&in_the_way, true);
    let bound = try_bind(address, true);
    share(&in_the_way, false);
    let bound = bound.map_err(failed)?;
    sockopt::set_socket_reuseport(&bound, false).map_err(failed)?;
    Ok(bound)
}

fn try_bind(address: SocketAddr, shared: bool) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, shared)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn share(listeners: &[&Listener], shared: bool) {
    for listener in listeners {
        // Where this fails binding fails, too, and says why.
        let _ = sockopt::set_socket_reuseport(listener, shared);
    }
}

/// Two addresses of one port of which one is all addresses of its family.
fn overlap(ours: Option<SocketAddr>, other: SocketAddr) -> bool {
    ours.is_some_and(|ours| {
        ours.is_ipv4() == other.is_ipv4()
            && ours.port() == other.port()
            && ours.ip() != other.ip()
            && (ours.ip().is_unspecified() || other.ip().is_unspecified())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(text: &str, ours: &[&Listener]) -> Result<Listener, ListenError> {
        Listener::bind(&text.parse().unwrap(), 0o600, ours)
    }

    fn port(listener: &Listener) -> u16 {
        listener.address().socket_addr().unwrap().port()
    }

    #[tokio::test]
    async fn all_addresses_can_follow_one_of_them_and_the_reverse() {
        for (one, all) in [("127.0.0.1", "0.0.0.0"), ("0.0.0.0", "127.0.0.1")] {
            let first = listener(&format!("{one}:0"), &[]).unwrap();
            let next = format!("{all}:{}", port(&first));
            let alone = listener(&next, &[]);
            assert!(matches!(alone, Err(ListenError::InUse(_))), "{alone:?}");
            let second = listener(&next, &[&first]).unwrap();
            // Whoever connects to the narrower address meets whom it always met.
            let narrow = if one == "127.0.0.1" { &first } else { &second };
            let at = ("127.0.0.1", port(&first));
            let _client = std::net::TcpStream::connect(at).unwrap();
            assert!(narrow.accept_now().unwrap().is_some());
            drop(first);
            let _client = std::net::TcpStream::connect(at).unwrap();
            assert!(second.accept_now().unwrap().is_some());
            // It was between ours only.
            let address = second.address().socket_addr().unwrap();
            assert_eq!(try_bind(address, false).unwrap_err(), Errno::ADDRINUSE);
        }
    }

    #[tokio::test]
    async fn another_process_of_the_same_port_is_in_the_way_whatever_is_ours() {
        let stranger = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
        let port = stranger.local_addr().unwrap().port();
        let first = listener(&format!("127.0.0.1:{port}"), &[]).unwrap();
        let refused = listener(&format!("0.0.0.0:{port}"), &[&first]);
        assert!(matches!(refused, Err(ListenError::InUse(_))), "{refused:?}");
    }
}
