//! A client's socket, TCP or Unix, that can still be looked at while hyper reads and writes it.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use rustix::net::{AddressFamily, RecvFlags, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// The socket itself; shared by hyper's side ([`SocketIo`]) and the connection's own loop.
pub(super) struct Socket {
    /// `None` once it was given back.
    stream: RefCell<Option<Stream>>,
    /// Whether bytes were read since [`Socket::forget_reads`].
    has_read: Cell<bool>,
    /// Whether the kernel took less than was last written to it.
    is_blocked: Cell<bool>,
    /// Bytes that were read before and are to be read again.
    again: RefCell<Bytes>,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What hyper holds.
pub(super) struct SocketIo(pub(super) Rc<Socket>);

impl Socket {
    /// Registers the socket with this thread's runtime.
    pub(super) fn adopt(socket: OwnedFd) -> io::Result<Rc<Self>> {
        // `O_NONBLOCK` belongs to the description, which others may hold too: set where missing, never toggled.
        let flags = rustix::fs::fcntl_getfl(&socket)?;
        if !flags.contains(rustix::fs::OFlags::NONBLOCK) {
            rustix::fs::fcntl_setfl(&socket, flags | rustix::fs::OFlags::NONBLOCK)?;
        }
        let stream = if sockopt::socket_domain(&socket)? == AddressFamily::UNIX {
            Stream::Unix(UnixStream::from_std(socket.into())?)
        } else {
            // A client that is already gone makes this fail; the first read says so better.
            let _gone = sockopt::set_tcp_nodelay(&socket, true);
            Stream::Tcp(TcpStream::from_std(socket.into())?)
        };
        Ok(Rc::new(Self {
            stream: RefCell::new(Some(stream)),
            has_read: Cell::new(false),
            is_blocked: Cell::new(false),
            again: RefCell::default(),
        }))
    }

    /// Whether anything was read since [`Socket::forget_reads`].
    pub(super) fn has_read(&self) -> bool {
        self.has_read.get()
    }

    pub(super) fn forget_reads(&self) {
        self.has_read.set(false);
    }

    /// Whether something written waits for the kernel to take it.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked.get()
    }

    /// Lets the next reader read these bytes first.
    pub(super) fn read_again(&self, bytes: Bytes) {
        self.has_read.set(true);
        self.again.replace(bytes);
    }

    /// Takes the descriptor out of this thread's runtime: nothing here reads or writes it any more.
    pub(super) fn release(&self) -> Option<OwnedFd> {
        let stream = self.stream.borrow_mut().take()?;
        // Fails only where deregistering does; the connection is closed then.
        match stream {
            Stream::Tcp(stream) => stream.into_std().ok().map(OwnedFd::from),
            Stream::Unix(stream) => stream.into_std().ok().map(OwnedFd::from),
        }
    }

    /// Whether bytes wait in the kernel that nobody has read.
    pub(super) fn has_unread(&self) -> bool {
        let stream = self.stream.borrow();
        let Some(stream) = &*stream else {
            return false;
        };
        let mut byte = [0];
        let peeked = rustix::net::recv(stream, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(peeked, Ok((1.., _)))
    }

    /// Writes what fits right now; for a last word before closing.
    pub(super) fn write_now(&self, bytes: &[u8]) {
        let _gone = match &*self.stream.borrow() {
            Some(Stream::Tcp(stream)) => stream.try_write(bytes),
            Some(Stream::Unix(stream)) => stream.try_write(bytes),
            None => Ok(0),
        };
    }

    /// Makes the close to come a reset, so that what was sent cannot be taken for a whole answer.
    pub(super) fn reset_on_close(&self) {
        if let Some(stream) = &*self.stream.borrow() {
            let _gone = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

macro_rules! on_stream {
    ($socket:expr, $stream:ident => $call:expr) => {
        match &mut *$socket.0.stream.borrow_mut() {
            Some(Stream::Tcp($stream)) => {
                let $stream = Pin::new($stream);
                $call
            }
            Some(Stream::Unix($stream)) => {
                let $stream = Pin::new($stream);
                $call
            }
            // hyper was dropped before the descriptor was released.
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    };
}

impl AsyncRead for SocketIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut again = self.0.again.borrow_mut();
        if !again.is_empty() {
            let length = again.len().min(buffer.remaining());
            buffer.put_slice(&again.split_to(length));
            return Poll::Ready(Ok(()));
        }
        drop(again);
        let before = buffer.filled().len();
        let polled = on_stream!(self, stream => stream.poll_read(cx, buffer));
        if buffer.filled().len() > before {
            self.0.has_read.set(true);
        }
        polled
    }
}

impl AsyncWrite for SocketIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = on_stream!(self, stream => stream.poll_write(cx, bytes));
        self.0.is_blocked.set(polled.is_pending());
        polled
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = on_stream!(self, stream => stream.poll_write_vectored(cx, slices));
        self.0.is_blocked.set(polled.is_pending());
        polled
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_shutdown(cx))
    }
}
