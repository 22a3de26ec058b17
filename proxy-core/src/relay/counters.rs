//! What the relay counts, without locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// What the relay does and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Connections adopted and not yet closed.
    pub connections: u64,
    /// Requests under way: until the answer is written to its end and the request's rest is read; tunnels until they end.
    pub exchanges: u64,
    /// Requests since the start.
    pub requests: u64,
    /// 5xx answers made here because a request could not be forwarded, since the start; never an upstream's own.
    pub local_5xx: u64,
}

#[derive(Default)]
pub(super) struct Counters {
    connections: AtomicU64,
    exchanges: AtomicU64,
    requests: AtomicU64,
    local_5xx: AtomicU64,
    /// Rung when the last connection ends, and when the phase changes.
    bell: Notify,
}

/// One adopted connection; ends when dropped.
pub(super) struct Admitted(Arc<Counters>);

/// One request; ends when dropped.
pub(super) struct Counted(Arc<Counters>);

impl Counters {
    pub(super) fn admit(this: &Arc<Self>) -> Admitted {
        this.connections.fetch_add(1, Ordering::SeqCst);
        Admitted(Arc::clone(this))
    }

    pub(super) fn request(this: &Arc<Self>) -> Counted {
        this.requests.fetch_add(1, Ordering::Relaxed);
        this.exchanges.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(this))
    }

    pub(super) fn local_5xx(&self) {
        self.local_5xx.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }

    pub(super) fn load(&self) -> Load {
        Load {
            connections: self.connections(),
            exchanges: self.exchanges.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
            local_5xx: self.local_5xx.load(Ordering::Relaxed),
        }
    }

    /// Makes everybody in [`Counters::wait_until`] look again.
    pub(super) fn wake(&self) {
        self.bell.notify_waiters();
    }

    pub(super) async fn wait_until(&self, mut condition: impl FnMut(&Self) -> bool) {
        loop {
            // Listening begins before looking: a bell between the two is heard.
            let mut rung = std::pin::pin!(self.bell.notified());
            rung.as_mut().enable();
            if condition(self) {
                return;
            }
            rung.await;
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if self.0.connections.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.wake();
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.exchanges.fetch_sub(1, Ordering::Relaxed);
    }
}
