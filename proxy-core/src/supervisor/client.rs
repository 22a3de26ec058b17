//! A client's connection while the supervisor holds it, and whether anybody has touched it since it was offered.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt;
use serde::{Deserialize, Serialize};

use crate::descriptors::tcp_counts;

use super::switchboard::Touched;

/// States in which the kernel has counted a FIN of the peer as a byte received (`include/net/tcp_states.h`):
/// TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING.
const AFTER_THEIR_FIN: [u8; 4] = [6, 8, 9, 11];

/// States in which nobody on our side has shut the connection down: ESTABLISHED, CLOSE_WAIT.
const OPEN_FOR_WRITING: [u8; 2] = [1, 8];

/// How far a TCP connection has come: what was read from it, and what was written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    read: u64,
    written: u64,
}

/// A client's connection.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    /// As it was when it came here; nothing for what is no TCP connection.
    came: Option<Progress>,
}

impl Client {
    /// One that was just accepted: nobody can have read from it.
    pub fn accepted(socket: OwnedFd) -> Self {
        Self {
            socket,
            came: Some(Progress::default()),
        }
    }

    /// One that somebody had before.
    pub fn returned(socket: OwnedFd) -> Self {
        let came = progress(socket.as_fd());
        Self { socket, came }
    }

    /// One that another process image of this supervisor had, with what that said of it.
    pub fn carried(socket: OwnedFd, came: Option<Progress>) -> Self {
        Self { socket, came }
    }

    /// How far it was when it came here.
    pub fn came(&self) -> Option<Progress> {
        self.came
    }

    /// Whether somebody has read from it or written to it since it came here, as the kernel knows.
    pub fn touched(&self) -> Touched {
        match (self.came, progress(self.socket.as_fd())) {
            (Some(before), Some(now)) if before == now => Touched::No,
            (_, Some(_)) => Touched::Yes,
            (_, None) => Touched::Unknown,
        }
    }

    /// Closes it so that the client sees a reset, not an end it could take for an answer.
    pub fn reset(self) {
        // Fails only for sockets that know no linger (a Unix socket): closing is all there is then.
        let _ = sockopt::set_socket_linger(&self.socket, Some(std::time::Duration::ZERO));
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Nothing where the kernel does not tell; a connection that our side has shut down, or that is reset, is like no
/// other.
fn progress(socket: BorrowedFd<'_>) -> Option<Progress> {
    let counts = tcp_counts(socket)?;
    if !OPEN_FOR_WRITING.contains(&counts.state) {
        return Some(Progress {
            read: u64::MAX,
            written: u64::MAX,
        });
    }
    let fin = u64::from(AFTER_THEIR_FIN.contains(&counts.state));
    // Without the FIN: the kernel leaves it out of what is still unread (`tcp_inq`).
    let unread = rustix::io::ioctl_fionread(socket).ok()?;
    Some(Progress {
        read: counts.received.saturating_sub(fin).saturating_sub(unread),
        written: counts.written,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let since = std::time::Instant::now();
        while !holds() {
            assert!(since.elapsed().as_secs() < 30, "{what}");
            std::thread::yield_now();
        }
    }

    fn unread(stream: &TcpStream) -> u64 {
        rustix::io::ioctl_fionread(stream).unwrap()
    }

    #[test]
    fn what_arrives_unread_and_a_fin_touch_nothing() {
        let (mut client, server) = connected();
        let held = Client::accepted(server.try_clone().unwrap().into());
        assert_eq!(held.touched(), Touched::No);
        client.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        until("it arrives", || unread(&server) == 16);
        assert_eq!(held.touched(), Touched::No);
        client.shutdown(Shutdown::Write).unwrap();
        until("the FIN arrives", || {
            tcp_counts(server.as_fd()).unwrap().state == 8
        });
        assert_eq!(held.touched(), Touched::No);
        assert_eq!(server.peek(&mut [0; 4]).unwrap(), 4);
        assert_eq!(held.touched(), Touched::No);
    }

    #[test]
    fn a_byte_read_or_written_or_a_shutdown_touches_it() {
        let (mut client, mut server) = connected();
        let held = Client::accepted(server.try_clone().unwrap().into());
        client.write_all(b"ab").unwrap();
        server.read_exact(&mut [0; 1]).unwrap();
        assert_eq!(held.touched(), Touched::Yes);

        let (_client, mut server) = connected();
        let held = Client::accepted(server.try_clone().unwrap().into());
        server.write_all(b"x").unwrap();
        assert_eq!(held.touched(), Touched::Yes);

        let (_client, server) = connected();
        let held = Client::accepted(server.try_clone().unwrap().into());
        server.shutdown(Shutdown::Write).unwrap();
        assert_eq!(held.touched(), Touched::Yes);
    }

    #[test]
    fn a_returned_connection_is_judged_from_where_it_was() {
        let (mut client, mut server) = connected();
        client.write_all(b"request").unwrap();
        server.read_exact(&mut [0; 7]).unwrap();
        server.write_all(b"answer").unwrap();
        let held = Client::returned(server.try_clone().unwrap().into());
        assert_eq!(held.touched(), Touched::No);
        client.write_all(b"next").unwrap();
        until("it arrives", || unread(&server) == 4);
        assert_eq!(held.touched(), Touched::No);
        server.read_exact(&mut [0; 4]).unwrap();
        assert_eq!(held.touched(), Touched::Yes);
    }

    #[test]
    fn of_a_unix_socket_nobody_can_tell() {
        let (_client, server) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(Client::accepted(server.into()).touched(), Touched::Unknown);
    }
}
