//! A request's body on its way to an upstream.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::error::Error;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::super::held::Entry;
use super::fields;
use super::silence::Silence;
use crate::gateway::answers::Failure;

/// How much of a body is kept until the upstream has taken the request, so that one which it refused can be sent again.
const KEPT: usize = 64 * 1024;

type BoxError = Box<dyn Error + Send + Sync>;
type Source = Pin<Box<dyn Body<Data = Bytes, Error = BoxError>>>;

/// One request's body: read by the [`Outgoing`] of the day, watched by the exchange.
pub(super) struct Passage {
    source: RefCell<Option<Source>>,
    kept: RefCell<Kept>,
    fate: Cell<Fate>,
    silence: RefCell<Silence>,
    /// Whoever reads; woken when the passage is cut.
    reader: RefCell<Option<Waker>>,
    /// Which [`Outgoing`] may read: the last one that was made.
    turn: Cell<u32>,
    /// Whether that one is still there.
    reading: Cell<bool>,
}

/// How far a body came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Flowing,
    /// Read to its end.
    Whole,
    /// The client broke it off, or it was no body.
    Broken,
    /// The client took too long.
    Late,
    /// Nobody wants it any more.
    Cut,
}

#[derive(Clone)]
enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
}

/// What went out already; nothing once that is too much, or the request was taken.
#[derive(Default)]
struct Kept {
    pieces: VecDeque<Piece>,
    bytes: usize,
    given_up: bool,
}

/// A body as it goes out on one connection.
pub(super) struct Outgoing {
    passage: Rc<Passage>,
    turn: u32,
    /// What another one had sent before.
    again: VecDeque<Piece>,
}

/// Why a body ended before its end. It has no source: hyper would copy the reason of one side's reset to the other,
/// and a side that ended early without an error (RST_STREAM with NO_ERROR) would make a part look whole.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unsent {
    #[error("the client broke its body off: {0}")]
    Broken(String),
    #[error("the client's body did not go on in time")]
    Late,
    #[error("nobody wants the rest of the body")]
    Cut,
}

impl Passage {
    /// `patience` is how long the client may be silent when more of the body is wanted; zero is for ever.
    pub(super) fn new<B>(body: B, patience: Duration) -> Rc<Self>
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        let fate = match body.is_end_stream() {
            true => Fate::Whole,
            false => Fate::Flowing,
        };
        Rc::new(Self {
            source: RefCell::new(Some(Box::pin(body.map_err(Into::into)))),
            kept: RefCell::default(),
            fate: Cell::new(fate),
            silence: RefCell::new(Silence::new(patience)),
            reader: RefCell::default(),
            turn: Cell::new(0),
            reading: Cell::new(false),
        })
    }

    /// The body from its beginning; whoever read it before reads no more.
    pub(super) fn outgoing(self: &Rc<Self>) -> Outgoing {
        self.turn.set(self.turn.get() + 1);
        self.reading.set(true);
        Outgoing {
            passage: Rc::clone(self),
            turn: self.turn.get(),
            again: self.kept.borrow().pieces.clone(),
        }
    }

    /// Whether all that went out can go out once more.
    pub(super) fn can_start_again(&self) -> bool {
        !self.kept.borrow().given_up && matches!(self.fate.get(), Fate::Flowing | Fate::Whole)
    }

    /// The request was taken: nothing of it will be sent again.
    pub(super) fn taken(&self) {
        self.kept.borrow_mut().give_up();
        self.release();
    }

    /// Lets go of a body that nobody will read on.
    fn release(&self) {
        if !self.reading.get() && self.kept.borrow().given_up {
            let source = self.source.borrow_mut().take();
            drop(source);
        }
    }

    /// Nobody wants the rest; what is on its way is cut, never ended.
    pub(super) fn cut(&self) {
        // Who is to blame stays known.
        if matches!(self.fate.get(), Fate::Flowing | Fate::Whole) {
            self.fate.set(Fate::Cut);
        }
        self.taken();
        let reader = self.reader.take();
        // Last: dropping the client's body may run into this passage again.
        let _source = self.source.borrow_mut().take();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    pub(super) fn is_cut(&self) -> bool {
        self.fate.get() == Fate::Cut
    }

    pub(super) fn is_whole(&self) -> bool {
        self.fate.get() == Fate::Whole
    }

    /// Whether the client's side is to blame that the request could not be sent, and how.
    pub(super) fn failure(&self) -> Option<Failure> {
        match self.fate.get() {
            Fate::Broken => Some(Failure::BadBody),
            Fate::Late => Some(Failure::BodyTimeout),
            Fate::Flowing | Fate::Whole | Fate::Cut => None,
        }
    }

    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, Unsent>>> {
        let mut source = self.source.borrow_mut();
        let Some(body) = &mut *source else {
            return Poll::Ready(Some(Err(Unsent::Cut)));
        };
        match body.as_mut().poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                self.silence.borrow_mut().broken();
                let is_last = body.is_end_stream();
                let piece = match frame.into_data() {
                    Ok(data) => Piece::Data(data),
                    Err(frame) => {
                        let mut trailers = frame.into_trailers().unwrap_or_default();
                        fields::clean_trailers(&mut trailers);
                        Piece::Trailers(trailers)
                    }
                };
                if is_last || matches!(piece, Piece::Trailers(_)) {
                    self.fate.set(Fate::Whole);
                }
                self.kept.borrow_mut().keep(&piece);
                Poll::Ready(Some(Ok(piece)))
            }
            Poll::Ready(Some(Err(error))) => {
                self.fate.set(Fate::Broken);
                Poll::Ready(Some(Err(Unsent::Broken(error.to_string()))))
            }
            Poll::Ready(None) => {
                self.fate.set(Fate::Whole);
                Poll::Ready(None)
            }
            Poll::Pending => {
                ready!(self.silence.borrow_mut().poll_too_long(cx));
                self.fate.set(Fate::Late);
                Poll::Ready(Some(Err(Unsent::Late)))
            }
        }
    }
}

impl Kept {
    fn keep(&mut self, piece: &Piece) {
        if let Piece::Data(data) = piece {
            self.bytes += data.len();
        }
        if self.bytes > KEPT {
            self.give_up();
        }
        if !self.given_up {
            self.pieces.push_back(piece.clone());
        }
    }

    fn give_up(&mut self) {
        self.given_up = true;
        self.pieces = VecDeque::new();
    }
}

impl Outgoing {
    pub(super) fn is_cut(&self) -> bool {
        self.passage.is_cut() || self.turn != self.passage.turn.get()
    }

    /// Wakes this reader when the passage is cut.
    pub(super) fn watch(&self, cx: &Context<'_>) {
        if self.turn == self.passage.turn.get() {
            self.passage.reader.replace(Some(cx.waker().clone()));
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if self.turn == self.passage.turn.get() {
            self.passage.reading.set(false);
            self.passage.release();
        }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Unsent;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Unsent>>> {
        let piece = match self.again.pop_front() {
            _ if self.is_cut() => Some(Err(Unsent::Cut)),
            Some(piece) => Some(Ok(piece)),
            None if self.passage.is_whole() => None,
            None => {
                self.watch(cx);
                ready!(self.passage.poll_next(cx))
            }
        };
        Poll::Ready(piece.map(|piece| piece.map(Piece::into_frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.again.is_empty() && self.passage.is_whole()
    }

    fn size_hint(&self) -> SizeHint {
        let again: usize = self.again.iter().map(Piece::len).sum();
        let mut hint = match &*self.passage.source.borrow() {
            Some(source) if !self.passage.is_whole() => source.size_hint(),
            _ => SizeHint::with_exact(0),
        };
        let again = again as u64;
        // In this order: a lower bound may not pass the upper one.
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + again);
        }
        hint.set_lower(hint.lower() + again);
        hint
    }
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Data(data) => data.len(),
            Self::Trailers(_) => 0,
        }
    }

    fn into_frame(self) -> Frame<Bytes> {
        match self {
            Self::Data(data) => Frame::data(data),
            Self::Trailers(trailers) => Frame::trailers(trailers),
        }
    }
}

/// A body that a client sends in HTTP/2. hyper takes a stream that was reset without an error for one that ended.
pub(super) struct Received {
    pub(super) body: Incoming,
    /// Where its bytes are counted.
    pub(super) entry: Rc<Entry>,
}

/// A client's stream was reset in its middle.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotWhole {
    #[error(transparent)]
    Broken(hyper::Error),
    #[error("the stream was reset before its end")]
    Reset,
}

impl Body for Received {
    type Data = Bytes;
    type Error = NotWhole;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, NotWhole>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame {
            self.entry.read(frame.data_ref().map_or(0, Bytes::len));
        }
        Poll::Ready(match frame {
            None if !self.body.is_end_stream() => Some(Err(NotWhole::Reset)),
            frame => frame.map(|frame| frame.map_err(NotWhole::Broken)),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
