//! How long somebody has been silent.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// How long a side has been silent while we waited for it; when we did not want anything, that is not its fault.
pub(super) struct Silence {
    limit: Duration,
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Silence {
    /// Zero never is too long.
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            since: None,
            timer: None,
        }
    }

    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    pub(super) fn broken(&mut self) {
        self.since = None;
    }

    /// The timer is set again only when it fires: bytes cost a look at the clock, not a timer.
    pub(super) fn poll_too_long(&mut self, cx: &mut Context<'_>) -> Poll<()> {
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
