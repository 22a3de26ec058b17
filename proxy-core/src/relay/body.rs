//! What flows through an exchange: the client's body on its way up, the upstream's on its way down.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use super::exchange::InFlight;
use super::pool::Lease;

/// Why a body ended before its end; hyper then closes the connection without the mark of a whole body.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the other side ended the body before its end: {0}")]
    Cut(#[from] hyper::Error),
    #[error("the upstream sent nothing for {0:?}")]
    Idle(Duration),
}

/// A client's body on its way to the upstream. If the upstream's connection lets go of it, the rest stays here.
pub(super) struct RequestBody {
    incoming: Option<Incoming>,
    left_over: LeftOver,
}

/// Where an unfinished request body is kept, so that it can be read to its end before an error is answered.
#[derive(Clone, Default)]
pub(super) struct LeftOver {
    incoming: Rc<RefCell<Option<Incoming>>>,
    is_broken: Rc<Cell<bool>>,
}

impl RequestBody {
    pub(super) fn new(incoming: Incoming) -> (Self, LeftOver) {
        let left_over = LeftOver::default();
        (
            Self {
                incoming: Some(incoming),
                left_over: left_over.clone(),
            },
            left_over,
        )
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.incoming {
            Some(incoming) => {
                let frame = ready!(Pin::new(incoming).poll_frame(cx));
                if matches!(frame, Some(Err(_))) {
                    self.left_over.is_broken.set(true);
                }
                Poll::Ready(frame)
            }
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming
            .as_ref()
            .map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(incoming) = self
            .incoming
            .take()
            .filter(|incoming| !incoming.is_end_stream())
        {
            self.left_over.incoming.replace(Some(incoming));
        }
    }
}

impl LeftOver {
    /// Keeps a whole body that never left.
    pub(super) fn of(incoming: Incoming) -> Self {
        Self {
            incoming: Rc::new(RefCell::new(Some(incoming))),
            is_broken: Rc::default(),
        }
    }

    /// Whether the client's body broke off, or was no body.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.get()
    }

    /// Reads what is left and forgets it, within bounds. Many clients read no answer before they have sent their whole
    /// request, and closing on bytes that nobody read resets the connection: they would never see the answer.
    pub(super) async fn discard(self) {
        const AT_MOST: usize = 64 * 1024 * 1024;
        const FOR_AT_MOST: Duration = Duration::from_secs(10);
        let Some(mut incoming) = self.incoming.take() else {
            return;
        };
        let reading = async {
            let mut read = 0;
            while let Some(Ok(frame)) = incoming.frame().await {
                read += frame.data_ref().map_or(0, Bytes::len);
                if read > AT_MOST {
                    break;
                }
            }
        };
        let _enough = tokio::time::timeout(FOR_AT_MOST, reading).await;
    }
}

/// The body of an answer on its way to the client; holds its exchange in flight until hyper lets go of it.
pub(super) enum AnswerBody {
    /// Ours.
    Local {
        body: Full<Bytes>,
        in_flight: InFlight,
    },
    /// The upstream's.
    Relayed(Box<Relayed>),
}

pub(super) struct Relayed {
    incoming: Incoming,
    /// The upstream's connection until the body's end; dropped before, it is closed, and so the upstream cancelled.
    lease: Option<Lease>,
    in_flight: InFlight,
    silence: Silence,
    /// An early end, held back once so that what came before it is written out first.
    failed: Option<BodyError>,
}

/// How long the upstream has been silent while we waited for it; a client that does not read is not its fault.
struct Silence {
    limit: Duration,
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl AnswerBody {
    pub(super) fn local(bytes: Bytes, in_flight: InFlight) -> Self {
        Self::Local {
            body: Full::new(bytes),
            in_flight,
        }
    }

    pub(super) fn relayed(
        incoming: Incoming,
        lease: Lease,
        idle_timeout: Duration,
        in_flight: InFlight,
    ) -> Self {
        let mut relayed = Box::new(Relayed {
            incoming,
            lease: Some(lease),
            in_flight,
            silence: Silence {
                limit: idle_timeout,
                since: None,
                timer: None,
            },
            failed: None,
        });
        relayed.finish_if_ended();
        Self::Relayed(relayed)
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Local { body, in_flight } => {
                let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
                if body.is_end_stream() {
                    in_flight.answered();
                }
                Poll::Ready(frame.map(|frame| frame.map_err(|never| match never {})))
            }
            Self::Relayed(relayed) => relayed.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Local { body, .. } => body.is_end_stream(),
            Self::Relayed(relayed) => relayed.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Local { body, .. } => body.size_hint(),
            Self::Relayed(relayed) => relayed.incoming.size_hint(),
        }
    }
}

impl Relayed {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Some(Err(error)));
        }
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                self.silence.broken();
                self.finish_if_ended();
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => self.fail(cx, BodyError::Cut(error)),
            Poll::Ready(None) => {
                self.finish();
                Poll::Ready(None)
            }
            Poll::Pending => {
                ready!(self.silence.poll_too_long(cx));
                let limit = self.silence.limit;
                self.fail(cx, BodyError::Idle(limit))
            }
        }
    }

    /// Ends the body early at the next poll; until then hyper writes what it was already given.
    fn fail(
        &mut self,
        cx: &mut Context<'_>,
        error: BodyError,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.lease = None;
        self.failed = Some(error);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// hyper does not ask again once a body of known length is whole.
    fn finish_if_ended(&mut self) {
        if self.incoming.is_end_stream() {
            self.finish();
        }
    }

    fn finish(&mut self) {
        self.in_flight.answered();
        if let Some(lease) = self.lease.take() {
            lease.give_back();
        }
    }
}

impl Silence {
    fn broken(&mut self) {
        self.since = None;
    }

    /// The timer is set again only when it fires: bytes cost a look at the clock, not a timer.
    fn poll_too_long(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.limit.is_zero() {
            return Poll::Pending;
        }
        let end = *self.since.get_or_insert_with(Instant::now) + self.limit;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
        loop {
            ready!(timer.as_mut().poll(cx));
            if Instant::now() >= end {
                return Poll::Ready(());
            }
            timer.as_mut().reset(end);
        }
    }
}
