//! The two deadlines over the whole of staging. Bytes written renew the inactivity; nothing renews the hard limit.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long staging may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Without a byte written.
    pub inactivity: Duration,
    /// In all.
    pub hard: Duration,
}

/// Why staging was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// No byte was written for so long.
    Inactive(Duration),
    /// It took so long in all.
    Overdue(Duration),
    /// A signal asked for it.
    Signal,
}

/// The decision, apart from any clock.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    limits: Limits,
    started: Instant,
    renewed: Instant,
}

impl Watch {
    /// Begins now.
    pub fn new(limits: Limits, now: Instant) -> Self {
        Self {
            limits,
            started: now,
            renewed: now,
        }
    }

    /// Bytes were written.
    pub fn renew(&mut self, now: Instant) {
        self.renewed = self.renewed.max(now);
    }

    /// Whether it is over, and why; the hard limit is named first.
    pub fn expired(&self, now: Instant) -> Option<Stop> {
        if now >= self.started + self.limits.hard {
            Some(Stop::Overdue(self.limits.hard))
        } else if now >= self.renewed + self.limits.inactivity {
            Some(Stop::Inactive(self.limits.inactivity))
        } else {
            None
        }
    }

    /// The earliest moment at which it can be over.
    pub fn next(&self) -> Instant {
        (self.started + self.limits.hard).min(self.renewed + self.limits.inactivity)
    }
}

/// A [`Watch`] that runs, shared between the work and who stops it.
#[derive(Debug, Clone)]
pub struct Deadline(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    watch: Mutex<Watch>,
    cancelled: AtomicBool,
    bytes: AtomicU64,
}

impl Deadline {
    /// Begins now.
    pub fn start(limits: Limits) -> Self {
        Self(Arc::new(Inner {
            watch: Mutex::new(Watch::new(limits, Instant::now())),
            cancelled: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
        }))
    }

    /// So many more bytes were written. Writing none renews nothing.
    pub fn wrote(&self, bytes: u64) {
        if bytes > 0 {
            self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.lock().renew(Instant::now());
        }
    }

    /// Asks the blocking parts to stop.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Release);
    }

    /// Whether the blocking parts are to stop.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// Ends when one of the two deadlines has passed.
    pub async fn expired(&self) -> Stop {
        loop {
            let watch = *self.lock();
            if let Some(stop) = watch.expired(Instant::now()) {
                return stop;
            }
            tokio::time::sleep_until(watch.next().into()).await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Watch> {
        self.0.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        inactivity: Duration::from_secs(120),
        hard: Duration::from_secs(900),
    };

    #[test]
    fn bytes_renew_the_first_and_nothing_renews_the_second() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut watch = Watch::new(LIMITS, start);
        assert_eq!(watch.next(), at(120));
        assert_eq!(watch.expired(at(119)), None);
        assert_eq!(
            watch.expired(at(120)),
            Some(Stop::Inactive(LIMITS.inactivity))
        );
        // A byte every hundred seconds: never inactive, and over at 900 all the same.
        for beat in 1..9 {
            watch.renew(at(beat * 100));
            assert_eq!(watch.expired(at(beat * 100 + 99)), None);
        }
        assert_eq!(watch.next(), at(900));
        assert_eq!(watch.expired(at(899)), None);
        watch.renew(at(899));
        assert_eq!(watch.expired(at(900)), Some(Stop::Overdue(LIMITS.hard)));
    }

    #[test]
    fn a_late_renewal_never_moves_backwards() {
        let start = Instant::now();
        let mut watch = Watch::new(LIMITS, start);
        watch.renew(start + Duration::from_secs(50));
        watch.renew(start + Duration::from_secs(20));
        assert_eq!(watch.next(), start + Duration::from_secs(170));
    }

    #[tokio::test]
    async fn the_running_one_waits_for_the_renewed_moment() {
        let deadline = Deadline::start(Limits {
            inactivity: Duration::from_millis(50),
            hard: Duration::from_millis(60),
        });
        let stop = deadline.expired().await;
        assert!(matches!(stop, Stop::Inactive(_) | Stop::Overdue(_)));
        assert!(!deadline.is_cancelled(), "expiry tells, the caller cancels");
    }
}
