//! Idle upstream connections of one thread, to be used again.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use hyper::client::conn::http1::SendRequest;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::body::RequestBody;
use crate::gateway::Target;

/// How long an unused connection is kept: below what servers and the boxes between commonly allow.
const KEPT: Duration = Duration::from_secs(50);
/// How many unused connections to one upstream a thread keeps.
const KEPT_EACH: usize = 256;

/// The pool; the last one put in is the first one taken out.
#[derive(Default)]
pub(super) struct Pool {
    idle: RefCell<HashMap<String, Vec<Idle>>>,
}

struct Idle {
    link: Link,
    since: Instant,
}

/// A connection to an upstream and the task that drives it. Dropped, it is closed at once, whatever flows on it.
pub(super) struct Link {
    pub(super) sender: SendRequest<RequestBody>,
    pub(super) driver: AbortHandle,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// A connection in use for one exchange, on its way back into the pool if the exchange ends well.
pub(super) struct Lease {
    link: Link,
    target: String,
    pool: Rc<Pool>,
    /// Whether it served an exchange before.
    pub(super) reused: bool,
}

impl Pool {
    /// An idle connection that its upstream has not closed.
    pub(super) fn take(self: &Rc<Self>, target: &Target) -> Option<Lease> {
        let mut idle = self.idle.borrow_mut();
        let links = idle.get_mut(&target.name)?;
        while let Some(Idle { link, since }) = links.pop() {
            if link.sender.is_ready() && since.elapsed() < KEPT {
                return Some(Lease {
                    link,
                    target: target.name.clone(),
                    pool: Rc::clone(self),
                    reused: true,
                });
            }
        }
        None
    }

    /// A new connection for one exchange.
    pub(super) fn lease(self: &Rc<Self>, target: &Target, link: Link) -> Lease {
        Lease {
            link,
            target: target.name.clone(),
            pool: Rc::clone(self),
            reused: false,
        }
    }

    /// Closes what is too old; the oldest stand first.
    pub(super) fn sweep(&self) {
        for links in self.idle.borrow_mut().values_mut() {
            links.retain(|idle| !idle.link.sender.is_closed() && idle.since.elapsed() < KEPT);
        }
    }

    fn put(&self, target: String, link: Link) {
        let mut idle = self.idle.borrow_mut();
        let links = idle.entry(target).or_default();
        if links.len() < KEPT_EACH {
            links.push(Idle {
                link,
                since: Instant::now(),
            });
        }
    }
}

impl Lease {
    pub(super) fn sender(&mut self) -> &mut SendRequest<RequestBody> {
        &mut self.link.sender
    }

    /// The exchange ended well: the connection is kept as soon as it can take another request. One whose request is
    /// still being sent never will, and closes with the client's.
    pub(super) fn give_back(self) {
        let Self {
            mut link,
            target,
            pool,
            ..
        } = self;
        if link.sender.is_ready() {
            pool.put(target, link);
            return;
        }
        tokio::task::spawn_local(async move {
            if link.sender.ready().await.is_ok() {
                pool.put(target, link);
            }
        });
    }
}
