//! An answer's body on its way to the client.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::fields;
use super::http1::Lease;
use super::passage::Passage;
use super::shared::Slot;
use super::silence::Silence;

/// The body of an upstream's answer. Dropped before its end, the upstream is cancelled.
pub(in crate::relay) struct Answer(Box<Inner>);

/// Why a body ended before its end. It has no source, see [`super::passage::Unsent`].
#[derive(Debug, thiserror::Error)]
pub(in crate::relay) enum BodyError {
    /// The upstream, or what carried its bytes, broke off.
    #[error("the upstream ended the body before its end: {0}")]
    Cut(String),
    /// Its idle time-out.
    #[error("the upstream sent nothing for {0:?}")]
    Idle(Duration),
}

struct Inner {
    source: Source,
    passage: Rc<Passage>,
    silence: Silence,
    /// An early end, held back once so that what came before it is written out first.
    failed: Option<BodyError>,
    ended: bool,
}

enum Source {
    /// With the connection until the body's end; dropped before, it is closed.
    Http1(Incoming, Option<Lease>),
    Http2(RecvStream, Rc<Slot>),
}

impl Answer {
    pub(super) fn http1(
        incoming: Incoming,
        lease: Lease,
        passage: Rc<Passage>,
        idle_timeout: Duration,
    ) -> Self {
        Self::new(
            Source::Http1(incoming, Some(lease)),
            passage,
            Silence::new(idle_timeout),
        )
    }

    pub(super) fn http2(
        stream: RecvStream,
        slot: Rc<Slot>,
        passage: Rc<Passage>,
        idle_timeout: Duration,
    ) -> Self {
        Self::new(
            Source::Http2(stream, slot),
            passage,
            Silence::new(idle_timeout),
        )
    }

    fn new(source: Source, passage: Rc<Passage>, silence: Silence) -> Self {
        let mut inner = Box::new(Inner {
            source,
            passage,
            silence,
            failed: None,
            ended: false,
        });
        inner.finish_if_ended();
        Self(inner)
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.get_mut().0.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.failed.is_none() && self.0.source.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0.source {
            Source::Http1(incoming, _) => incoming.size_hint(),
            Source::Http2(..) => SizeHint::default(),
        }
    }
}

impl Inner {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        match self.source.poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                self.silence.broken();
                self.finish_if_ended();
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(cause))) => self.fail(cx, BodyError::Cut(cause)),
            Poll::Ready(None) => {
                self.finish();
                Poll::Ready(None)
            }
            Poll::Pending => {
                ready!(self.silence.poll_too_long(cx));
                let limit = self.silence.limit();
                self.fail(cx, BodyError::Idle(limit))
            }
        }
    }

    /// Ends the body early at the next poll; until then what was already given is written.
    fn fail(
        &mut self,
        cx: &mut Context<'_>,
        error: BodyError,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.failed = Some(error);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Nobody asks again once a body of known length is whole.
    fn finish_if_ended(&mut self) {
        if self.source.is_end_stream() {
            self.finish();
        }
    }

    /// The answer is whole. A request that is still being sent goes on, as long as both sides want it.
    fn finish(&mut self) {
        self.ended = true;
        if let Source::Http1(_, lease) = &mut self.source
            && let Some(lease) = lease.take()
        {
            lease.give_back();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.ended {
            self.passage.cut();
        }
    }
}

impl Source {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, String>>> {
        let frame = match self {
            Self::Http1(incoming, _) => ready!(Pin::new(incoming).poll_frame(cx))
                .map(|frame| frame.map_err(|error| error.to_string())),
            Self::Http2(stream, slot) => {
                let frame = ready!(poll_stream(stream, cx));
                slot.heard();
                frame.map(|frame| frame.map_err(|error| error.to_string()))
            }
        };
        Poll::Ready(frame.map(|frame| frame.map(clean)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(incoming, _) => incoming.is_end_stream(),
            Self::Http2(stream, _) => stream.is_end_stream(),
        }
    }
}

/// Data as long as there is some, then trailers. `None` only after the upstream's own end: h2 keeps every reset an error.
fn poll_stream(
    stream: &mut RecvStream,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
    match ready!(stream.poll_data(cx)) {
        Some(Ok(data)) => {
            // Fails only for more than was received.
            let _ok = stream.flow_control().release_capacity(data.len());
            Poll::Ready(Some(Ok(Frame::data(data))))
        }
        Some(Err(error)) => Poll::Ready(Some(Err(error))),
        None => match ready!(stream.poll_trailers(cx)) {
            Ok(trailers) => Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers)))),
            Err(error) => Poll::Ready(Some(Err(error))),
        },
    }
}

fn clean(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            fields::clean_trailers(&mut trailers);
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    }
}
