//! Idle upstream connections of one thread, to be used again.

use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::stream::Stream;
use crate::gateway::Target;

/// How long an unused connection is kept: below what servers and the boxes between commonly allow.
const KEPT: Duration = Duration::from_secs(50);
/// How many unused connections to one upstream a thread keeps.
const KEPT_EACH: usize = 256;

/// The pool; the last one put in is the first one taken out.
pub(super) struct Pool {
    /// Rung when an idle connection has something to say. It can only be that it closed, or that it cannot be believed.
    heard: Arc<Heard>,
    waker: Waker,
    /// There are few upstreams: a search costs less than a hash.
    shelves: RefCell<Vec<Shelf>>,
}

struct Shelf {
    target: Arc<Target>,
    /// The oldest first.
    idle: Vec<Idle>,
}

struct Idle {
    stream: Stream,
    since: Instant,
}

#[derive(Default)]
struct Heard(Notify);

impl Wake for Heard {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

impl Default for Pool {
    fn default() -> Self {
        let heard = Arc::<Heard>::default();
        Self {
            waker: Waker::from(Arc::clone(&heard)),
            heard,
            shelves: RefCell::default(),
        }
    }
}

impl Pool {
    /// Waits until [`Pool::sweep`] would close something at once.
    pub(super) async fn heard(&self) {
        self.heard.0.notified().await;
    }

    /// An idle connection that its upstream has not closed, as far as this thread has heard.
    pub(super) fn take(&self, target: &Arc<Target>) -> Option<Stream> {
        let mut shelves = self.shelves.borrow_mut();
        let shelf = shelves
            .iter_mut()
            .find(|shelf| Arc::ptr_eq(&shelf.target, target))?;
        while let Some(mut idle) = shelf.idle.pop() {
            if idle.is_usable(&self.waker) {
                return Some(idle.stream);
            }
        }
        None
    }

    /// Keeps a connection on which nothing is under way.
    pub(super) fn put(&self, target: &Arc<Target>, stream: Stream) {
        let mut idle = Idle {
            stream,
            since: Instant::now(),
        };
        if !idle.is_usable(&self.waker) {
            return;
        }
        let mut shelves = self.shelves.borrow_mut();
        match shelves
            .iter_mut()
            .find(|shelf| Arc::ptr_eq(&shelf.target, target))
        {
            Some(shelf) if shelf.idle.len() < KEPT_EACH => shelf.idle.push(idle),
            Some(_full) => {}
            None => shelves.push(Shelf {
                target: Arc::clone(target),
                idle: vec![idle],
            }),
        }
    }

    /// Closes everything; whether there was anything.
    pub(super) fn close_all(&self) -> bool {
        let mut any = false;
        for shelf in &mut *self.shelves.borrow_mut() {
            any |= !shelf.idle.is_empty();
            shelf.idle.clear();
        }
        any
    }

    /// Closes what is too old, and what the upstream has closed.
    pub(super) fn sweep(&self) {
        for shelf in &mut *self.shelves.borrow_mut() {
            shelf.idle.retain_mut(|idle| idle.is_usable(&self.waker));
        }
    }
}

impl Idle {
    /// Also listens: whatever it says from here on is heard.
    fn is_usable(&mut self, waker: &Waker) -> bool {
        let mut cx = Context::from_waker(waker);
        self.since.elapsed() < KEPT && self.stream.is_quiet(&mut cx)
    }
}
