//! A client's socket, TCP or Unix, that can still be looked at while hyper reads and writes it.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// The socket itself; shared by hyper's side ([`SocketIo`]) and the connection's own loop.
pub(super) struct Socket {
    stream: RefCell<Stream>,
    /// Whether bytes were read since [`Socket::forget_reads`].
    has_read: Cell<bool>,
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
            stream: RefCell::new(stream),
            has_read: Cell::new(false),
        }))
    }

    /// Whether anything was read since [`Socket::forget_reads`].
    pub(super) fn has_read(&self) -> bool {
        self.has_read.get()
    }

    pub(super) fn forget_reads(&self) {
        self.has_read.set(false);
    }

    /// Whether bytes wait in the kernel that nobody has read.
    pub(super) fn has_unread(&self) -> bool {
        let mut byte = [0];
        let peeked = rustix::net::recv(
            &*self.fd(),
            &mut byte,
            RecvFlags::PEEK | RecvFlags::DONTWAIT,
        );
        matches!(peeked, Ok((1.., _)))
    }

    /// Writes what fits right now; for a last word before closing.
    pub(super) fn write_now(&self, bytes: &[u8]) {
        let _gone = match &*self.stream.borrow() {
            Stream::Tcp(stream) => stream.try_write(bytes),
            Stream::Unix(stream) => stream.try_write(bytes),
        };
    }

    /// Makes the close to come a reset, so that what was sent cannot be taken for a whole answer.
    pub(super) fn reset_on_close(&self) {
        let _gone = sockopt::set_socket_linger(&*self.fd(), Some(Duration::ZERO));
    }

    fn fd(&self) -> std::cell::Ref<'_, dyn AsFd> {
        std::cell::Ref::map(self.stream.borrow(), |stream| stream as &dyn AsFd)
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
            Stream::Tcp($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
            Stream::Unix($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
        }
    };
}

impl AsyncRead for SocketIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
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
        on_stream!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => stream.poll_write_vectored(cx, slices))
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
