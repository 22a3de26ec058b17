//! Datagrams with descriptors over a `SOCK_SEQPACKET` pair.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use tokio::io::unix::AsyncFd;

use crate::descriptors::watch;

use super::message::MAX_DATAGRAM;

/// A new pair: `SOCK_SEQPACKET`, close-on-exec, non-blocking.
///
/// # Errors
/// When the system has no descriptors left.
pub fn pair() -> std::io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}

/// One received datagram.
#[derive(Debug)]
pub struct Datagram {
    /// The message.
    pub bytes: Vec<u8>,
    /// The descriptor that came with it.
    pub descriptor: Option<OwnedFd>,
    /// A descriptor was sent, but this process had no room for it (`MSG_CTRUNC`).
    pub descriptor_lost: bool,
}

/// Why a datagram was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendFailure {
    /// The peer is slow (EAGAIN), or too many descriptors are in flight (ETOOMANYREFS): try again later.
    BackPressure,
    /// The peer is gone, or the channel is broken.
    Closed,
}

/// One end of the pair, in a runtime.
#[derive(Debug)]
pub struct Channel {
    socket: AsyncFd<OwnedFd>,
    scratch: Vec<u8>,
}

impl Channel {
    /// Puts one end of a [`pair`] into the current runtime.
    ///
    /// # Errors
    /// When the runtime cannot watch the descriptor.
    pub fn new(socket: OwnedFd) -> std::io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self {
            socket: watch(socket)?,
            // One byte more than the contract allows, so that a longer message shows itself.
            scratch: vec![0; MAX_DATAGRAM + 1],
        })
    }

    /// The next datagram; `Ok(None)` at the end of the channel.
    ///
    /// # Errors
    /// When the channel is broken.
    pub fn poll_recv(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<Option<Datagram>>> {
        loop {
            let mut guard = match self.socket.poll_read_ready(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(ready) => ready?,
            };
            if let Ok(received) =
                guard.try_io(|socket| receive(socket.get_ref(), &mut self.scratch))
            {
                return Poll::Ready(received);
            }
        }
    }

    /// The next datagram if one is there already; `Ok(None)` at the end of the channel.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there; anything else means that the channel is broken.
    pub fn try_recv(&mut self) -> std::io::Result<Option<Datagram>> {
        receive(self.socket.get_ref(), &mut self.scratch)
    }

    /// Sends one datagram, with at most one descriptor, or nothing at all.
    ///
    /// # Errors
    /// Why nothing was sent.
    pub fn try_send(
        &self,
        bytes: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), SendFailure> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.map(|fd| [fd]);
        if let Some(descriptors) = &descriptors {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        loop {
            match sendmsg(
                self.socket.get_ref(),
                &[IoSlice::new(bytes)],
                &mut control,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM) => {
                    return Err(SendFailure::BackPressure);
                }
                Err(_) => return Err(SendFailure::Closed),
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.get_ref().as_fd()
    }
}

fn receive(socket: &OwnedFd, scratch: &mut [u8]) -> std::io::Result<Option<Datagram>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(
            socket,
            &mut [IoSliceMut::new(scratch)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
        ) {
            // ECONNRESET says, once and before anything else, that the peer died with messages of ours
            // unread. What it said itself still waits behind that, and then the end.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            other => break other?,
        }
    };
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            // Any but the first are closed here: the contract is one a message.
            descriptors.for_each(|fd| {
                descriptor.get_or_insert(fd);
            });
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    Ok(Some(Datagram {
        bytes: scratch[..received.bytes].to_vec(),
        descriptor_lost: descriptor.is_none() && received.flags.contains(ReturnFlags::CTRUNC),
        descriptor,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    fn channels() -> (Channel, Channel) {
        let (one, other) = pair().unwrap();
        (Channel::new(one).unwrap(), Channel::new(other).unwrap())
    }

    #[tokio::test]
    async fn a_socket_arrives_with_its_message_and_works() {
        let (one, mut other) = channels();
        let (mut near, far) = UnixStream::pair().unwrap();
        one.try_send(b"take this", Some(far.as_fd())).unwrap();
        drop(far);
        let got = other.try_recv().unwrap().unwrap();
        assert_eq!(got.bytes, b"take this");
        let mut far = UnixStream::from(got.descriptor.unwrap());
        near.write_all(b"hello").unwrap();
        let mut read = [0; 5];
        far.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"hello");
    }

    #[tokio::test]
    async fn what_was_said_before_a_death_is_read_after_it() {
        let (one, mut other) = channels();
        one.try_send(b"last words", None).unwrap();
        drop(one);
        assert_eq!(other.try_recv().unwrap().unwrap().bytes, b"last words");
        assert!(other.try_recv().unwrap().is_none());
        assert_eq!(other.try_send(b"?", None), Err(SendFailure::Closed));
    }

    #[tokio::test]
    async fn what_was_said_before_a_death_is_read_even_if_the_dead_had_not_read_everything() {
        let (one, mut other) = channels();
        other.try_send(b"never read", None).unwrap();
        one.try_send(b"last", None).unwrap();
        one.try_send(b"words", None).unwrap();
        drop(one);
        for words in [b"last".as_slice(), b"words"] {
            let got = std::future::poll_fn(|context| other.poll_recv(context)).await;
            assert_eq!(got.unwrap().unwrap().bytes, words);
        }
        assert!(other.try_recv().unwrap().is_none());
    }

    #[tokio::test]
    async fn a_full_channel_is_back_pressure_and_clears() {
        let (one, mut other) = channels();
        let mut sent = 0_u32;
        while one.try_send(&sent.to_le_bytes(), None).is_ok() {
            sent += 1;
        }
        assert_eq!(one.try_send(b"more", None), Err(SendFailure::BackPressure));
        for expected in 0..sent {
            let got = other.try_recv().unwrap().unwrap();
            assert_eq!(got.bytes, expected.to_le_bytes());
        }
        assert_eq!(one.try_send(b"more", None), Ok(()));
        let got = std::future::poll_fn(|context| other.poll_recv(context)).await;
        assert_eq!(got.unwrap().unwrap().bytes, b"more");
        assert_eq!(
            other.try_recv().unwrap_err().kind(),
            std::io::ErrorKind::WouldBlock
        );
    }
}
