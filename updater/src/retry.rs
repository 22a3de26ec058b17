//! Trying again inside a run: a few times, further apart each time, never in step with others.

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use staging::report::{Failure, Report};

/// How often and how far apart.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// Tries in all.
    pub tries: u32,
    /// The wait after the first failure; doubles from there.
    pub first: Duration,
    /// The longest wait.
    pub most: Duration,
}

/// Inside one run.
pub const WITHIN_A_RUN: Backoff = Backoff {
    tries: 3,
    first: Duration::from_millis(500),
    most: Duration::from_secs(5),
};

/// For so long a run waits because a server asked it to.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between runs that fail: one is not held back long, many in a row ask once in a while.
const BETWEEN_RUNS: Backoff = Backoff {
    tries: u32::MAX,
    first: Duration::from_secs(60),
    most: Duration::from_secs(6 * 3600),
};

impl Backoff {
    /// The wait after the `failures`th failure, between half and all of the doubled time; none = give up.
    /// `luck` is any number.
    pub fn wait(&self, failures: u32, luck: u64) -> Option<Duration> {
        if failures >= self.tries {
            return None;
        }
        let doubled = self
            .first
            .saturating_mul(1 << failures.saturating_sub(1).min(16))
            .min(self.most);
        Some(spread(doubled, luck))
    }
}

/// Runs `work` until it succeeds, fails for good, or was tried often enough. The failure says which of both.
///
/// # Errors
/// The last failure.
pub async fn retrying<T, E: Report>(
    backoff: Backoff,
    mut work: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T, Failure> {
    let mut failures = 0;
    loop {
        let error = match work().await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        failures += 1;
        let asked = error.retry_after().unwrap_or_default();
        match backoff.wait(failures, luck()) {
            // Who asks for a short while gets it. A longer one is the next run's.
            Some(wait) if error.retry() && asked <= PATIENCE => {
                tokio::time::sleep(wait.max(asked)).await;
            }
            _ => return Err(Failure::from(&error as &dyn Report)),
        }
    }
}

/// The moment before which no other run tries, after `failures` runs in a row that failed for a passing cause.
pub fn next_attempt(now: Timestamp, failures: u32) -> Timestamp {
    let wait = BETWEEN_RUNS.wait(failures, luck()).unwrap_or_default();
    SignedDuration::try_from(wait)
        .ok()
        .and_then(|wait| now.checked_add(wait).ok())
        .unwrap_or(now)
}

fn spread(duration: Duration, luck: u64) -> Duration {
    let half = duration / 2;
    let room = u64::try_from(half.as_millis()).unwrap_or(u64::MAX);
    half + Duration::from_millis(luck % room.saturating_add(1))
}

/// A number that differs between processes and calls.
fn luck() -> u64 {
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use staging::report::Exit;
    use std::cell::Cell;

    #[derive(Debug, thiserror::Error)]
    #[error("no")]
    struct No {
        retry: bool,
    }

    impl Report for No {
        fn code(&self) -> &'static str {
            "NO"
        }
        fn exit(&self) -> Exit {
            Exit::Failed
        }
        fn retry(&self) -> bool {
            self.retry
        }
    }

    #[test]
    fn waits_double_up_to_the_most_and_are_spread() {
        let backoff = Backoff {
            tries: 6,
            first: Duration::from_millis(100),
            most: Duration::from_millis(500),
        };
        for (failures, full) in [(1, 100), (2, 200), (3, 400), (4, 500), (5, 500)] {
            for luck in [0, 7, 12345, u64::MAX] {
                let wait = backoff.wait(failures, luck).unwrap().as_millis();
                assert!(wait >= full / 2 && wait <= full, "{failures}: {wait}");
            }
        }
        assert_ne!(backoff.wait(1, 1), backoff.wait(1, 2));
        assert_eq!(backoff.wait(6, 0), None);
    }

    #[tokio::test]
    async fn a_passing_failure_is_tried_again_and_a_lasting_one_is_not() {
        for (retry, fails, tried, good) in [
            (true, 2, 3, true),
            (true, 9, 3, false),
            (false, 9, 1, false),
            (true, 0, 1, true),
        ] {
            let count = Cell::new(0);
            let quick = Backoff {
                first: Duration::from_millis(1),
                ..WITHIN_A_RUN
            };
            let result = retrying(quick, async || {
                count.set(count.get() + 1);
                if count.get() <= fails {
                    Err(No { retry })
                } else {
                    Ok(())
                }
            })
            .await;
            assert_eq!((count.get(), result.is_ok()), (tried, good));
        }
    }

    #[test]
    fn the_next_attempt_moves_further_away_up_to_a_limit() {
        let now = Timestamp::UNIX_EPOCH;
        for (failures, full) in [(1, 60), (2, 120), (5, 960), (50, 6 * 3600)] {
            let next = next_attempt(now, failures).as_second();
            assert!((full / 2..=full).contains(&next), "{failures}: {next}");
        }
    }
}
