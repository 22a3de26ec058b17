//! Whether a worker answers its pings. Pure: the clock is passed in.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::channel::Id;
use crate::clock::Moment;

/// The pings of one worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Liveness {
    interval: Duration,
    timeout: Duration,
    /// `None` until [`Liveness::begin`].
    next_ping: Option<Moment>,
    next_id: Id,
    asked: Option<(Id, Moment)>,
    given_up: bool,
}

impl Liveness {
    /// A ping is sent `interval` after the last answer and must be answered within `timeout`. None is
    /// sent before [`Liveness::begin`]: until it is ready, the ready timeout alone judges a worker.
    pub fn new(interval: Duration, timeout: Duration) -> Self {
        Self {
            interval,
            timeout,
            next_ping: None,
            next_id: 1,
            asked: None,
            given_up: false,
        }
    }

    /// The worker is ready: from now on it is pinged.
    pub fn begin(&mut self, now: Moment) {
        self.next_ping.get_or_insert(now + self.interval);
    }

    /// The id of the ping to send now, if one is due and none is open.
    pub fn ping_due(&mut self, now: Moment) -> Option<Id> {
        if self.asked.is_some() || self.next_ping.is_none_or(|at| at > now) {
            return None;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.asked = Some((id, now));
        Some(id)
    }

    /// A pong was received; one that answers no open ping changes nothing.
    pub fn ponged(&mut self, now: Moment, id: Id) {
        if self.asked.is_some_and(|(asked, _)| asked == id) {
            self.asked = None;
            self.next_ping = Some(now + self.interval);
        }
    }

    /// The open ping was not answered in time, and nobody has acted on it yet.
    pub fn is_missed(&self, now: Moment) -> bool {
        !self.given_up && self.asked.is_some_and(|(_, at)| at + self.timeout <= now)
    }

    /// The worker is judged: it is not looked at again while it dies, however long that takes.
    pub fn give_up(&mut self) {
        self.given_up = true;
    }

    /// When something is due next.
    pub fn next_deadline(&self) -> Option<Moment> {
        if self.given_up {
            return None;
        }
        match self.asked {
            Some((_, at)) => Some(at + self.timeout),
            None => self.next_ping,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    #[test]
    fn a_ping_is_open_until_its_own_pong() {
        let mut liveness = Liveness::new(Duration::from_secs(5), Duration::from_secs(10));
        liveness.begin(at(0));
        assert_eq!(liveness.ping_due(at(4_999)), None);
        assert_eq!(liveness.ping_due(at(5_000)), Some(1));
        assert_eq!(liveness.ping_due(at(6_000)), None);
        liveness.ponged(at(6_000), 7);
        assert!(!liveness.is_missed(at(14_999)));
        assert!(liveness.is_missed(at(15_000)));
        liveness.ponged(at(15_000), 1);
        assert!(!liveness.is_missed(at(15_000)));
        assert_eq!(liveness.next_deadline(), Some(at(20_000)));
        assert_eq!(liveness.ping_due(at(20_000)), Some(2));
    }

    #[test]
    fn nobody_is_pinged_before_it_is_ready() {
        let mut liveness = Liveness::new(Duration::from_secs(5), Duration::from_secs(10));
        assert_eq!(liveness.ping_due(at(60_000)), None);
        assert_eq!(liveness.next_deadline(), None);
        liveness.begin(at(60_000));
        liveness.begin(at(64_000));
        assert_eq!(liveness.ping_due(at(65_000)), Some(1));
    }

    #[test]
    fn a_worker_is_given_up_once() {
        let mut liveness = Liveness::new(Duration::from_secs(5), Duration::from_secs(10));
        liveness.begin(at(0));
        liveness.ping_due(at(5_000));
        assert!(liveness.is_missed(at(15_000)));
        liveness.give_up();
        assert!(!liveness.is_missed(at(15_001)));
        assert_eq!(liveness.next_deadline(), None);
        assert_eq!(liveness.ping_due(at(30_000)), None);
    }
}
