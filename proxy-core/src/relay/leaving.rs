//! Has a client left, or has it only finished sending?
//!
//! Both look the same on the wire: a FIN. Who half-closes (`nc -N`, a pipe into `socat`) waits for its answer; who left
//! has a request upstream that costs tokens nobody will read. What can be known is asked:
//!
//! - a Unix socket says it (`POLLHUP` only when both directions are closed);
//! - of a peer on this host the kernel knows whether a process still holds the other end (`sock_diag(7)`, the same that
//!   `ss` shows): no inode, nobody there;
//! - of a peer elsewhere nothing can be known. Who half-closes does so as the last act of sending, so a FIN that comes
//!   with the request is taken for that, and a later one for leaving; what is then written finds out the truth.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use super::stream::{Io, Stream};

/// How long after its request a FIN from another host counts as the end of sending.
const WITH_THE_REQUEST: Duration = Duration::from_secs(1);
/// How often a peer that half-closed is asked about again.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(50);

/// What a FIN meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fin {
    /// The client still waits for its answer.
    HalfClosed,
    /// Nobody is there.
    Left,
}

/// Judges a client that sent a FIN `since_request` after the end of its request.
pub(super) fn judge(client: &Stream, since_request: Duration) -> Fin {
    match client.io() {
        Some(io @ Io::Unix(_)) => {
            let mut polled = [PollFd::new(io, PollFlags::empty())];
            let _none_is_no_hang_up = poll(&mut polled, Some(&Timespec::default()));
            match polled[0].revents().contains(PollFlags::HUP) {
                true => Fin::Left,
                false => Fin::HalfClosed,
            }
        }
        Some(Io::Tcp(stream)) => {
            let addresses = (stream.peer_addr(), stream.local_addr());
            let (Ok(peer), Ok(local)) = addresses else {
                return Fin::Left;
            };
            judge_peer(peer, local).unwrap_or(match since_request < WITH_THE_REQUEST {
                true => Fin::HalfClosed,
                false => Fin::Left,
            })
        }
        Some(Io::Tls(_)) | None => Fin::Left,
    }
}

/// What the kernel knows of the other end; `None` if it is on another host, or the kernel does not tell.
fn judge_peer(peer: SocketAddr, local: SocketAddr) -> Option<Fin> {
    let (peer_ip, local_ip) = (peer.ip().to_canonical(), local.ip().to_canonical());
    if peer_ip != local_ip && !peer_ip.is_loopback() {
        return None;
    }
    let held = is_held((peer_ip, peer.port()), (local_ip, local.port())).ok()?;
    Some(if held { Fin::HalfClosed } else { Fin::Left })
}

/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Length of `struct inet_diag_sockid`.
const SOCKET_ID: usize = 48;
/// Where `idiag_inode` stands in `struct inet_diag_msg`.
const INODE: usize = 4 + SOCKET_ID + 16;

/// Whether a process holds the TCP socket that is bound to `from` and connected to `to`.
///
/// The request is `SOCK_DIAG_BY_FAMILY` for one socket (linux/sock_diag.h, linux/inet_diag.h).
fn is_held(from: (IpAddr, u16), to: (IpAddr, u16)) -> rustix::io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        flags,
        Some(netlink::SOCK_DIAG),
    )?;
    // The kernel answers within the call that asks.
    rustix::net::send(&socket, &question(from, to), SendFlags::empty())?;
    let mut answer = [0; 1024];
    let (length, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)?;
    read_answer(&answer[..length]).ok_or(rustix::io::Errno::BADMSG)
}

fn question(from: (IpAddr, u16), to: (IpAddr, u16)) -> Vec<u8> {
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLM_F_REQUEST: u16 = 1;
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    const IPPROTO_TCP: u8 = 6;

    let mut asked = Vec::with_capacity(HEADER + 8 + SOCKET_ID);
    // struct inet_diag_req_v2: family, protocol, extensions, padding, states (any)
    let family = if from.0.is_ipv4() { AF_INET } else { AF_INET6 };
    asked.extend([family, IPPROTO_TCP, 0, 0]);
    asked.extend(u32::MAX.to_ne_bytes());
    // struct inet_diag_sockid: ports and addresses in network order, interface, cookie (none)
    asked.extend(from.1.to_be_bytes());
    asked.extend(to.1.to_be_bytes());
    for address in [from.0, to.0] {
        let mut bytes = [0; 16];
        match address {
            IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => bytes = address.octets(),
        }
        asked.extend(bytes);
    }
    asked.extend(0_u32.to_ne_bytes());
    asked.extend(u64::MAX.to_ne_bytes());

    let mut message = Vec::with_capacity(HEADER + asked.len());
    // struct nlmsghdr: length, type, flags, sequence, port
    let length = u32::try_from(HEADER + asked.len()).unwrap_or(u32::MAX);
    message.extend(length.to_ne_bytes());
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(asked);
    message
}

/// Whether the socket has an inode; `None` if this is no answer.
fn read_answer(message: &[u8]) -> Option<bool> {
    const NLMSG_ERROR: u16 = 2;
    const ENOENT: i32 = -2;
    let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
    let body = &message[HEADER.min(message.len())..];
    if kind == NLMSG_ERROR {
        let error = i32::from_ne_bytes(body.get(..4)?.try_into().ok()?);
        return (error == ENOENT).then_some(false);
    }
    let inode = u32::from_ne_bytes(body.get(INODE..INODE + 4)?.try_into().ok()?);
    Some(inode != 0)
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener, TcpStream};

    use super::*;

    fn connected(to: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(to).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn judged(server: &TcpStream) -> Option<Fin> {
        judge_peer(server.peer_addr().unwrap(), server.local_addr().unwrap())
    }

    #[test]
    fn a_client_on_this_host_that_half_closed_is_told_from_one_that_left() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (client, server) = connected(address);
            assert_eq!(judged(&server), Some(Fin::HalfClosed));
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(judged(&server), Some(Fin::HalfClosed));
            drop(client);
            assert_eq!(judged(&server), Some(Fin::Left));
        }
    }

    #[test]
    fn a_client_whose_end_no_longer_exists_has_left() {
        let (client, server) = connected("127.0.0.1:0");
        let addresses = (server.peer_addr().unwrap(), server.local_addr().unwrap());
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        assert_eq!(judge_peer(addresses.0, addresses.1), Some(Fin::Left));
    }

    #[test]
    fn of_another_host_nothing_is_known() {
        let peer = "192.0.2.7:50000".parse().unwrap();
        let local = "192.0.2.1:8787".parse().unwrap();
        assert_eq!(judge_peer(peer, local), None);
    }

    #[tokio::test]
    async fn a_unix_client_that_half_closed_is_told_from_one_that_left() {
        let (client, server) = std::os::unix::net::UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        let server = Stream::adopt(server.into()).unwrap().0;
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(judge(&server, Duration::ZERO), Fin::HalfClosed);
        drop(client);
        assert_eq!(judge(&server, Duration::ZERO), Fin::Left);
    }
}
