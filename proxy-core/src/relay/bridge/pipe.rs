//! One piece of a body between who reads it and who sends it, be that two tasks or one.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::relay::framing::Framing;

/// What the two ends share.
struct Pipe {
    piece: Bytes,
    length: Option<u64>,
    whole: bool,
    /// The reading side ended before the body did.
    broken: bool,
    /// Nobody wants the rest.
    unwanted: bool,
    source: Option<Waker>,
    sink: Option<Waker>,
}

/// Where the client's body is put in. Dropped before its end, the body breaks off.
pub(super) struct Inlet(Rc<RefCell<Pipe>>);

/// Where the HTTP/2 side takes it out. Dropped, nobody wants the rest.
pub(super) struct Outlet(Rc<RefCell<Pipe>>);

/// A pipe for a body that is framed like this.
pub(super) fn pipe(framing: Framing) -> (Inlet, Outlet) {
    let pipe = Rc::new(RefCell::new(Pipe::new(framing)));
    (Inlet(Rc::clone(&pipe)), Outlet(pipe))
}

/// The client's body broke off. Never said to anybody: the exchange knows better.
#[derive(Debug, thiserror::Error)]
#[error("the client's body broke off")]
pub(super) struct BrokenOff;

impl Pipe {
    fn new(framing: Framing) -> Self {
        Self {
            piece: Bytes::new(),
            length: match framing {
                Framing::None => Some(0),
                Framing::Length(length) => Some(length),
                Framing::Chunked | Framing::UntilClose => None,
            },
            whole: false,
            broken: false,
            unwanted: false,
            source: None,
            sink: None,
        }
    }
}

impl Inlet {
    /// Whether the next piece may be read: there is room for it, or nobody wants it.
    pub(super) fn wants_more(&self, cx: &Context<'_>) -> bool {
        let mut pipe = self.0.borrow_mut();
        pipe.source = Some(cx.waker().clone());
        pipe.unwanted || pipe.piece.is_empty()
    }

    /// Whether somebody waits for the next piece.
    pub(super) fn is_waited_for(&self) -> bool {
        self.0.borrow().sink.is_some()
    }

    /// Puts a piece in; `whole`: it was the last one.
    pub(super) fn put(&self, piece: Bytes, whole: bool) {
        let mut pipe = self.0.borrow_mut();
        if !pipe.unwanted {
            pipe.piece = piece;
        }
        pipe.whole = whole;
        if let Some(sink) = pipe.sink.take() {
            sink.wake();
        }
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        let mut pipe = self.0.borrow_mut();
        pipe.broken = !pipe.whole;
        if let Some(sink) = pipe.sink.take() {
            sink.wake();
        }
    }
}

impl Body for Outlet {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let mut pipe = self.0.borrow_mut();
        if !pipe.piece.is_empty() {
            let piece = std::mem::take(&mut pipe.piece);
            if let Some(source) = pipe.source.take() {
                source.wake();
            }
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if pipe.whole {
            return Poll::Ready(None);
        }
        if pipe.broken {
            return Poll::Ready(Some(Err(BrokenOff)));
        }
        pipe.sink = Some(cx.waker().clone());
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        let pipe = self.0.borrow();
        pipe.whole && pipe.piece.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        match self.0.borrow().length {
            Some(length) => SizeHint::with_exact(length),
            None => SizeHint::default(),
        }
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        let mut pipe = self.0.borrow_mut();
        pipe.unwanted = true;
        pipe.piece = Bytes::new();
        if let Some(source) = pipe.source.take() {
            source.wake();
        }
    }
}
