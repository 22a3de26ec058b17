//! One request on a shared HTTP/2 connection.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response};
use http_body::Body;

use super::fields;
use super::passage::{Outgoing, Passage, Unsent};
use super::shared::Slot;
use crate::gateway::answers::Failure;

/// What became of one attempt.
pub(super) enum Attempt {
    Answered(Response<RecvStream>),
    /// The upstream has not looked at it, and said so, or never got it: another connection may be tried.
    Untouched,
    Failed(Failure),
}

/// Cuts the body of a request that is given up, so that its stream is reset.
struct CutOnDrop<'a>(Option<&'a Passage>);

impl Drop for CutOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(passage) = self.0 {
            passage.cut();
        }
    }
}

/// Sends the request and waits for the answer's head; given up, the stream is reset.
pub(super) async fn attempt(
    slot: &Rc<Slot>,
    upstream: &str,
    request: Request<()>,
    passage: &Rc<Passage>,
) -> Attempt {
    let Ok(mut sender) = slot.sender().ready().await else {
        slot.retire();
        return Attempt::Untouched;
    };
    let body = passage.outgoing();
    let is_whole = body.is_end_stream();
    let (answer, stream) = match sender.send_request(request, is_whole) {
        Ok(sent) => sent,
        Err(error) if error.is_go_away() || error.is_io() => {
            slot.retire();
            return Attempt::Untouched;
        }
        Err(cause) => {
            tracing::warn!(upstream, %cause, "the request cannot be sent in HTTP/2");
            return Attempt::Failed(Failure::NoAnswer);
        }
    };
    let mut given_up = CutOnDrop(Some(passage));
    if !is_whole {
        pour(body, stream, Rc::clone(slot)).await;
    }
    let answer = answer.await;
    given_up.0 = None;
    match answer {
        Ok(mut answer) => {
            slot.heard();
            if !fields::check_answer(&mut answer) {
                tracing::warn!(
                    upstream,
                    "the upstream's answer has no length that can be read"
                );
                passage.cut();
                return Attempt::Failed(Failure::BadAnswer);
            }
            passage.taken();
            Attempt::Answered(answer)
        }
        Err(error) if is_untouched(&error) => {
            if error.is_go_away() {
                slot.retire();
            }
            Attempt::Untouched
        }
        Err(cause) => {
            tracing::warn!(upstream, %cause, "no answer from the upstream");
            passage.cut();
            Attempt::Failed(match cause.is_library() {
                true => Failure::BadAnswer,
                false => Failure::NoAnswer,
            })
        }
    }
}

/// A refused stream, or one that came after the last that a GOAWAY names, had no effect (RFC 9113, section 8.7).
fn is_untouched(error: &h2::Error) -> bool {
    let refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    error.is_remote() && (refused || error.is_go_away())
}

/// Writes the body; what is not written at once is left to a task.
async fn pour(body: Outgoing, stream: SendStream<Bytes>, slot: Rc<Slot>) {
    let mut pouring = Pouring {
        body,
        stream,
        waiting: None,
        _slot: slot,
    };
    let poured = poll_fn(|cx| Poll::Ready(pouring.poll(cx).is_ready())).await;
    if !poured {
        tokio::task::spawn_local(async move { poll_fn(|cx| pouring.poll(cx)).await });
    }
}

/// A body on its way into a stream.
struct Pouring {
    body: Outgoing,
    stream: SendStream<Bytes>,
    /// What the upstream's window has no room for, and whether it is the last.
    waiting: Option<(Bytes, bool)>,
    /// The stream is in use while its body is being sent.
    _slot: Rc<Slot>,
}

impl Pouring {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            self.body.watch(cx);
            if self.body.is_cut() {
                self.stream.send_reset(Reason::CANCEL);
                return Poll::Ready(());
            }
            // Whatever the upstream's reason: it wants no more of this. Its answer says the rest.
            if self.stream.poll_reset(cx).is_ready() {
                return Poll::Ready(());
            }
            if ready!(self.poll_piece(cx)) {
                return Poll::Ready(());
            }
        }
    }

    /// True when nothing more is to be sent.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if let Some((data, is_last)) = &mut self.waiting {
            while self.stream.capacity() == 0 {
                match ready!(self.stream.poll_capacity(cx)) {
                    Some(Ok(_more)) => {}
                    Some(Err(_)) | None => return Poll::Ready(true),
                }
            }
            let room = self.stream.capacity().min(data.len());
            let piece = data.split_to(room);
            let (is_last, rest) = (*is_last, data.len());
            let sent = self.stream.send_data(piece, is_last && rest == 0);
            // Only now: what is asked for before it is sent would count what is about to be sent.
            match rest {
                0 => self.waiting = None,
                _ => self.stream.reserve_capacity(rest),
            }
            return Poll::Ready(sent.is_err() || is_last && rest == 0);
        }
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            None => {
                let _gone = self.stream.send_data(Bytes::new(), true);
                return Poll::Ready(true);
            }
            Some(Ok(frame)) => frame,
            Some(Err(Unsent::Broken(_) | Unsent::Late | Unsent::Cut)) => {
                self.stream.send_reset(Reason::CANCEL);
                return Poll::Ready(true);
            }
        };
        match frame.into_data() {
            // Without room asked for: an empty piece needs none.
            Ok(data) if data.is_empty() => Poll::Ready(false),
            Ok(data) => {
                self.stream.reserve_capacity(data.len());
                self.waiting = Some((data, self.body.is_end_stream()));
                Poll::Ready(false)
            }
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap_or_default();
                let _gone = self.stream.send_trailers(trailers);
                Poll::Ready(true)
            }
        }
    }
}
