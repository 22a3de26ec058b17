//! One socket, a client's or an upstream's, and what was written to it but not yet taken by the kernel.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

use super::buffers::Buffer;
use super::held::Entry;

/// A connected stream socket of this thread's runtime.
pub(super) struct Stream {
    /// `None` once the socket was given away.
    io: Option<Io>,
    /// Written, not yet taken. Its own heap: it stays for as long as the other side does not read.
    unwritten: Buffer,
    /// Whether the other side did not take everything when that was tried last.
    blocked: bool,
    /// Whether the end of this socket must look like an accident.
    resets: bool,
    /// Where a client's bytes are counted.
    counted: Option<Rc<Entry>>,
}

/// What a stream may be.
pub(super) enum Io {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

macro_rules! on_io {
    ($io:expr, $stream:ident => $call:expr) => {
        match $io {
            Some(Io::Tcp($stream)) => {
                let $stream = Pin::new($stream);
                $call
            }
            Some(Io::Unix($stream)) => {
                let $stream = Pin::new($stream);
                $call
            }
            Some(Io::Tls($stream)) => {
                let $stream = Pin::new(&mut **$stream);
                $call
            }
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    };
}

impl Stream {
    pub(super) fn new(io: Io) -> Self {
        Self {
            io: Some(io),
            unwritten: Buffer::default(),
            blocked: false,
            resets: false,
            counted: None,
        }
    }

    /// Registers a client's socket with this thread's runtime; and whose it is, unless that is a Unix socket.
    pub(super) fn adopt(socket: OwnedFd) -> io::Result<(Self, Option<SocketAddr>)> {
        // `O_NONBLOCK` belongs to the description, which others may hold too: set where missing, never toggled.
        let flags = rustix::fs::fcntl_getfl(&socket)?;
        if !flags.contains(rustix::fs::OFlags::NONBLOCK) {
            rustix::fs::fcntl_setfl(&socket, flags | rustix::fs::OFlags::NONBLOCK)?;
        }
        // Of a client that is already gone only the socket itself knows what it was.
        let peer = rustix::net::getpeername(&socket).ok().flatten();
        let family = match &peer {
            Some(peer) => peer.address_family(),
            None => sockopt::socket_domain(&socket)?,
        };
        if family == AddressFamily::UNIX {
            let stream = UnixStream::from_std(socket.into())?;
            return Ok((Self::new(Io::Unix(stream)), None));
        }
        // A client that is already gone makes this fail; the first read says so better.
        let _gone = sockopt::set_tcp_nodelay(&socket, true);
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        let peer = peer.map(|peer| SocketAddr::new(peer.ip().to_canonical(), peer.port()));
        let stream = TcpStream::from_std(socket.into())?;
        Ok((Self::new(Io::Tcp(stream)), peer))
    }

    /// From here on the bytes of this client are counted there.
    pub(super) fn count(&mut self, entry: &Rc<Entry>) {
        self.counted = Some(Rc::clone(entry));
    }

    /// Reads once, to the buffer's end. Zero bytes are the end of what the other side sends.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut Buffer,
    ) -> Poll<io::Result<usize>> {
        let read =
            on_io!(&mut self.io, stream => tokio_util::io::poll_read_buf(stream, cx, buffer.end()));
        if let (Poll::Ready(Ok(bytes)), Some(entry)) = (&read, &self.counted) {
            entry.read(*bytes);
        }
        read
    }

    /// Writes what the kernel takes now and keeps the rest; only after [`Stream::poll_flush`] was ready.
    pub(super) fn write(&mut self, cx: &mut Context<'_>, slices: &[&[u8]]) -> io::Result<()> {
        debug_assert!(self.unwritten.is_empty());
        let mut taken = match self.poll_write(cx, slices) {
            Poll::Ready(taken) => taken?,
            Poll::Pending => 0,
        };
        if let Some(entry) = &self.counted {
            entry.written(taken);
        }
        for slice in slices {
            let skipped = taken.min(slice.len());
            taken -= skipped;
            self.unwritten.append(&slice[skipped..]);
        }
        Ok(())
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, slices: &[&[u8]]) -> Poll<io::Result<usize>> {
        match slices {
            [only] => on_io!(&mut self.io, stream => stream.poll_write(cx, only)),
            [head, body] if !body.is_empty() => {
                let both = [IoSlice::new(head), IoSlice::new(body)];
                on_io!(&mut self.io, stream => stream.poll_write_vectored(cx, &both))
            }
            [first, ..] => on_io!(&mut self.io, stream => stream.poll_write(cx, first)),
            [] => Poll::Ready(Ok(0)),
        }
    }

    /// Ready when everything written was taken.
    #[inline]
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.flush(cx);
        self.blocked = flushed.is_pending();
        flushed
    }

    fn flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unwritten.is_empty() {
            let io = &mut self.io;
            let bytes = self.unwritten.unread();
            let taken = ready!(on_io!(io, stream => stream.poll_write(cx, bytes)))?;
            if taken == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unwritten.consume(taken);
            if let Some(entry) = &self.counted {
                entry.written(taken);
            }
        }
        match &mut self.io {
            // The kernel has taken it; what was taken from us may still wait to be encrypted.
            Some(Io::Tls(stream)) => Pin::new(&mut **stream).poll_flush(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// How many bytes were written and not yet taken.
    pub(super) fn unwritten(&self) -> usize {
        self.unwritten.len()
    }

    /// Whether the last flush was not ready.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Lets the kernel find out, in a minute or two, whether the other side still exists, for where nothing else will.
    pub(super) fn keep_alive(&self) {
        const IDLE: Duration = Duration::from_secs(60);
        const BETWEEN: Duration = Duration::from_secs(15);
        if let Some(io @ (Io::Tcp(_) | Io::Tls(_))) = &self.io {
            // Each is a help only: a connection that is already gone refuses them.
            let _gone = sockopt::set_tcp_keepidle(io, IDLE);
            let _gone = sockopt::set_tcp_keepintvl(io, BETWEEN);
            let _gone = sockopt::set_tcp_keepcnt(io, 4);
            let _gone = sockopt::set_socket_keepalive(io, true);
        }
    }

    /// Tells the other side that nothing more will be sent.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_io!(&mut self.io, stream => stream.poll_shutdown(cx))
    }

    /// For an idle upstream: whether it has neither closed nor said anything that nobody asked for.
    pub(super) fn is_quiet(&mut self, cx: &mut Context<'_>) -> bool {
        let mut byte = [0];
        let mut byte = ReadBuf::new(&mut byte);
        on_io!(&mut self.io, stream => stream.poll_read(cx, &mut byte)).is_pending()
    }

    /// Whether bytes wait in the kernel that nobody has read.
    pub(super) fn has_unread(&self) -> bool {
        let Some(io) = &self.io else {
            return false;
        };
        let mut byte = [0];
        let peeked = rustix::net::recv(io, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(peeked, Ok((1.., _)))
    }

    /// Whether the other side has closed, behind whatever is still to be read.
    pub(super) fn is_closed_for_reading(&self) -> bool {
        let Some(io) = &self.io else {
            return true;
        };
        let mut polled = [PollFd::new(io, PollFlags::RDHUP)];
        let _none_is_open = poll(&mut polled, Some(&Timespec::default()));
        let closed = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        polled[0].revents().intersects(closed)
    }

    /// From here on, until it is taken back, the end of this socket is a reset: for a body that ends where the
    /// connection does, so that a part of it cannot be taken for the whole.
    pub(super) fn resets_when_dropped(&mut self, resets: bool) {
        self.resets = resets;
    }

    /// Takes the descriptor out of this thread's runtime: nothing here reads or writes it any more. `None` for one that
    /// is encrypted.
    pub(super) fn release(&mut self) -> Option<OwnedFd> {
        debug_assert!(self.unwritten.is_empty());
        // Fails only where deregistering does; the connection is closed then.
        match self.io.take()? {
            Io::Tcp(stream) => stream.into_std().ok().map(OwnedFd::from),
            Io::Unix(stream) => stream.into_std().ok().map(OwnedFd::from),
            Io::Tls(_) => None,
        }
    }

    /// The socket itself, for whoever goes on with it in another protocol; nothing may be unwritten.
    pub(super) fn into_io(mut self) -> Option<Io> {
        self.io.take()
    }

    pub(super) fn io(&self) -> Option<&Io> {
        self.io.as_ref()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let (true, Some(io)) = (self.resets, &self.io) {
            let _gone = sockopt::set_socket_linger(io, Some(Duration::ZERO));
        }
    }
}

impl AsFd for Io {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.get_ref().0.as_fd(),
        }
    }
}

/// For protocols that are spoken by a library.
impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }
}
