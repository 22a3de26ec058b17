//! WebSockets when this process ends: each side is told, between two frames, and only then let go.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::client::Client;
use super::stream::Stream;
use super::thread::Thread;
use super::websocket::{self, Frames};

/// How long a frame under way may take to its end.
const FRAME: Duration = Duration::from_secs(2);
/// How long a client that was told may take to close, too.
const GOODBYE: Duration = Duration::from_millis(500);
/// How long all WebSockets of a thread may take; a bit more, for what the clock does not know.
pub(super) const ALL: Duration = Duration::from_millis(2_700);

/// The WebSockets of one thread, which must be told when it ends.
#[derive(Default)]
pub(super) struct WebSockets {
    open: Cell<usize>,
    is_ending: Cell<bool>,
    gone: Notify,
}

/// One WebSocket; gone when dropped.
pub(super) struct OpenWebSocket(Rc<WebSockets>);

impl WebSockets {
    pub(super) fn open(self: &Rc<Self>) -> OpenWebSocket {
        self.open.set(self.open.get() + 1);
        OpenWebSocket(Rc::clone(self))
    }

    /// Whether they are to end now.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.get()
    }

    /// They are to end now; whoever waits must be woken to see it.
    pub(super) fn end(&self) {
        self.is_ending.set(true);
    }

    /// Waits until none is left.
    pub(super) async fn gone(&self) {
        while self.open.get() > 0 {
            self.gone.notified().await;
        }
    }
}

impl Drop for OpenWebSocket {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
        self.0.gone.notify_one();
    }
}

/// Says to both sides that this is the end, and lets a client that heard it close. Who could not be told, because a frame
/// did not end in time, is reset: what it has of that frame must not look like a whole one.
pub(super) async fn say_goodbye(
    thread: &Thread,
    client: &mut Client,
    upstream: &mut Stream,
    up: &mut Frames,
    down: &mut Frames,
) {
    let going_away = websocket::going_away(mask());
    let (mut to_client, mut to_upstream) = (Poll::Pending, Poll::Pending);
    let deadline = Instant::now() + FRAME;
    let telling = poll_fn(|cx| {
        if to_client.is_pending() {
            let word = &websocket::RESTARTING;
            to_client = poll_tell(cx, thread, upstream, &mut client.stream, down, word);
        }
        if to_upstream.is_pending() {
            to_upstream = poll_tell(cx, thread, &mut client.stream, upstream, up, &going_away);
        }
        // The client's own frame is waited for only as long as the client still has to be told.
        match to_client.is_ready() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    });
    let _late = timeout_at(deadline, telling).await;
    let told = |it: Poll<Result<(), Untold>>| matches!(it, Poll::Ready(Ok(())));
    upstream.resets_when_dropped(!told(to_upstream));
    client.stream.resets_when_dropped(!told(to_client));
    if told(to_client) {
        // A socket closed on bytes that nobody read is reset, and the reset overtakes the last frame.
        let closing = poll_fn(|cx| poll_forget(cx, thread, &mut client.stream));
        let _enough = timeout_at(Instant::now() + GOODBYE, closing).await;
    }
}

/// Why a side could not be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Untold;

/// Passes the rest of the frame under way on, then `word`, then the end.
fn poll_tell(
    cx: &mut Context<'_>,
    thread: &Thread,
    from: &mut Stream,
    to: &mut Stream,
    frames: &mut Frames,
    word: &[u8],
) -> Poll<Result<(), Untold>> {
    loop {
        ready!(to.poll_flush(cx)).map_err(|_| Untold)?;
        if frames.is_closed() {
            return to.poll_shutdown(cx).map_err(|_| Untold);
        }
        if frames.is_between() {
            to.write(cx, &[word]).map_err(|_| Untold)?;
            frames.advance(word);
            continue;
        }
        let mut buffer = thread.buffers.take();
        match ready!(from.poll_read(cx, &mut buffer)) {
            Ok(1..) if !frames.is_lost() => {
                let rest = frames.finish(buffer.unread());
                to.write(cx, &[&buffer.unread()[..rest]])
                    .map_err(|_| Untold)?;
            }
            _ => return Poll::Ready(Err(Untold)),
        }
    }
}

/// Reads what still comes, to its end.
fn poll_forget(cx: &mut Context<'_>, thread: &Thread, stream: &mut Stream) -> Poll<()> {
    loop {
        let mut buffer = thread.buffers.take();
        match ready!(stream.poll_read(cx, &mut buffer)) {
            Ok(1..) => {}
            _ => return Poll::Ready(()),
        }
    }
}

/// Of no use to anybody here, for what is masked is known; but it must be there, and not be foreseen.
fn mask() -> [u8; 4] {
    use std::hash::{BuildHasher, Hasher};
    let random = std::hash::RandomState::new().build_hasher().finish();
    let [a, b, c, d, ..] = random.to_be_bytes();
    [a, b, c, d]
}
