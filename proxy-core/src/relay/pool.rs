//! Idle upstream connections of one thread, to be used again.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::stream::Stream;
use crate::gateway::Target;

/// How long an unused connection is kept: below what servers and the boxes between commonly allow.
const KEPT: Duration = Duration::from_secs(50);
/// How many unused connections to one upstream a thread keeps.
const KEPT_EACH: usize = 256;

/// The pool; the last one put in is the first one taken out.
#[derive(Default)]
pub(super) struct Pool {
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

impl Pool {
    /// An idle connection that its upstream has not closed, as far as this thread has heard.
    pub(super) fn take(&self, target: &Arc<Target>) -> Option<Stream> {
        let mut shelves = self.shelves.borrow_mut();
        let shelf = shelves
            .iter_mut()
            .find(|shelf| Arc::ptr_eq(&shelf.target, target))?;
        while let Some(mut idle) = shelf.idle.pop() {
            if idle.is_usable() {
                return Some(idle.stream);
            }
        }
        None
    }

    /// Keeps a connection on which nothing is under way.
    pub(super) fn put(&self, target: &Arc<Target>, stream: Stream) {
        let idle = Idle {
            stream,
            since: Instant::now(),
        };
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

    /// Closes what is too old, and what the upstream has closed.
    pub(super) fn sweep(&self) {
        for shelf in &mut *self.shelves.borrow_mut() {
            shelf.idle.retain_mut(Idle::is_usable);
        }
    }
}

impl Idle {
    fn is_usable(&mut self) -> bool {
        self.since.elapsed() < KEPT && self.stream.is_quiet()
    }
}
