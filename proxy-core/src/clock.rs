//! A point in time that can be compared, stored and carried to another process image.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment on `CLOCK_MONOTONIC`, in nanoseconds since the machine started.
///
/// `std::time::Instant` cannot be made in a test or written into a state that another process
/// image reads; this can. The decisions of the supervisor take it as an argument.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Moment(u64);

impl Moment {
    /// The moment that is now.
    pub fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
        Self(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    /// A moment so many milliseconds after the machine's start: for tests and tables.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// How long after `earlier` this is; zero when it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// How long until this moment, seen from `now`; zero when it has passed.
    pub fn until(self, now: Self) -> Duration {
        self.since(now)
    }
}

impl std::ops::Add<Duration> for Moment {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}
