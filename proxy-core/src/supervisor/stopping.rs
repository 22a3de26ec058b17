//! The order in which a supervisor stops: pure.
//!
//! ```text
//!   SIGTERM ─▶ unready: /ready says 503, who comes is served ─▶ the ports close ─▶ emptying: who was let in goes to the
//!   active generation ─▶ draining: requests in flight end ─▶ exit, at once when none is left
//! ```

use std::time::Duration;

use crate::clock::Moment;

use super::rollout::Generation;

/// How far a stop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// Nobody has asked for it.
    #[default]
    Running,
    /// The window in which balancers look away.
    Unready { until: Moment },
    /// The ports are closed; some who were let in still wait.
    Emptying { until: Moment },
    /// The rollout machine's part: every generation ends.
    Draining,
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// `/ready` of this generation says 503 from now on.
    SayUnready(Generation),
    /// What the backlogs hold is let in, then the ports close.
    ClosePorts,
    /// Every generation finishes what it serves, for so long.
    Drain(Duration),
    /// Nothing is waited for any more.
    EndNow,
}

/// The times of `[server]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// `unready_window`.
    pub window: Duration,
    /// `stop_timeout`, from when the ports close.
    pub timeout: Duration,
}

/// A stop, or none.
#[derive(Debug, Default)]
pub struct Stopping {
    phase: Phase,
    /// Whose `/ready` says 503.
    unready: Option<Generation>,
}

impl Stopping {
    /// It was asked for.
    pub fn is_asked(&self) -> bool {
        self.phase != Phase::Running
    }

    /// SIGTERM: the first one begins it, the second one ends it.
    pub fn asked(&mut self, now: Moment, times: Times, serves: bool) -> Vec<Order> {
        let ports_are_open = match self.phase {
            Phase::Running if serves && !times.window.is_zero() => {
                self.phase = Phase::Unready {
                    until: now + times.window,
                };
                return Vec::new();
            }
            Phase::Running => return self.close_ports(now, times),
            Phase::Unready { .. } => true,
            Phase::Emptying { .. } | Phase::Draining => false,
        };
        self.phase = Phase::Draining;
        let close = ports_are_open.then_some(Order::ClosePorts);
        close.into_iter().chain([Order::EndNow]).collect()
    }

    /// What time and the others have made due: `active` serves, and so many of those who were let in are not yet with
    /// a worker.
    pub fn tick(
        &mut self,
        now: Moment,
        times: Times,
        active: Option<Generation>,
        waiting: usize,
    ) -> Vec<Order> {
        match self.phase {
            Phase::Running | Phase::Draining => Vec::new(),
            Phase::Unready { until } if until <= now => self.close_ports(now, times),
            // A generation that begins to serve within the window has to be told, too.
            Phase::Unready { .. } if active.is_some() && active != self.unready => {
                self.unready = active;
                active.map(Order::SayUnready).into_iter().collect()
            }
            Phase::Unready { .. } => Vec::new(),
            // Nobody will serve who waits, or time is over.
            Phase::Emptying { until } if waiting == 0 || active.is_none() || until <= now => {
                self.phase = Phase::Draining;
                vec![Order::Drain(until.until(now))]
            }
            Phase::Emptying { .. } => Vec::new(),
        }
    }

    /// When [`Self::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Moment> {
        match self.phase {
            Phase::Unready { until } | Phase::Emptying { until } => Some(until),
            Phase::Running | Phase::Draining => None,
        }
    }

    fn close_ports(&mut self, now: Moment, times: Times) -> Vec<Order> {
        self.phase = Phase::Emptying {
            until: now + times.timeout,
        };
        vec![Order::ClosePorts]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACTIVE: Option<Generation> = Some(7);

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    fn times(window: u64, timeout: u64) -> Times {
        Times {
            window: Duration::from_millis(window),
            timeout: Duration::from_millis(timeout),
        }
    }

    /// What happens, when, and what is to be done then.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Signal,
        Tick(Option<Generation>, usize),
    }

    #[test]
    fn the_order_of_a_stop() {
        use Order::{ClosePorts, Drain, EndNow, SayUnready};
        use Step::{Signal, Tick};
        let second = Duration::from_millis(1000);
        type Case<'a> = (&'a str, u64, &'a [(u64, Step, &'a [Order])]);
        let cases: &[Case<'_>] = &[
            ("nobody asked", 500, &[(0, Tick(ACTIVE, 3), &[])]),
            (
                "at once without a window",
                0,
                &[
                    (0, Signal, &[ClosePorts]),
                    (0, Tick(ACTIVE, 0), &[Drain(second)]),
                    (1, Tick(None, 0), &[]),
                ],
            ),
            (
                "the window, then the ports, then who waits, then the rest",
                500,
                &[
                    (0, Signal, &[]),
                    (0, Tick(ACTIVE, 0), &[SayUnready(7)]),
                    (1, Tick(ACTIVE, 0), &[]),
                    (499, Tick(ACTIVE, 2), &[]),
                    (500, Tick(ACTIVE, 2), &[ClosePorts]),
                    (600, Tick(ACTIVE, 2), &[]),
                    (700, Tick(ACTIVE, 0), &[Drain(Duration::from_millis(800))]),
                ],
            ),
            (
                "another generation begins to serve within the window",
                500,
                &[
                    (0, Signal, &[]),
                    (0, Tick(ACTIVE, 0), &[SayUnready(7)]),
                    (10, Tick(None, 0), &[]),
                    (20, Tick(Some(8), 0), &[SayUnready(8)]),
                    (30, Tick(Some(8), 0), &[]),
                ],
            ),
            (
                "who waits is waited for no longer than the time-out",
                0,
                &[
                    (0, Signal, &[ClosePorts]),
                    (999, Tick(ACTIVE, 1), &[]),
                    (1000, Tick(ACTIVE, 1), &[Drain(Duration::ZERO)]),
                ],
            ),
            (
                "twice within the window",
                500,
                &[
                    (0, Signal, &[]),
                    (0, Tick(ACTIVE, 0), &[SayUnready(7)]),
                    (10, Signal, &[ClosePorts, EndNow]),
                    (10, Tick(ACTIVE, 2), &[]),
                    (500, Tick(ACTIVE, 2), &[]),
                ],
            ),
            (
                "twice while some wait",
                0,
                &[
                    (0, Signal, &[ClosePorts]),
                    (1, Tick(ACTIVE, 1), &[]),
                    (2, Signal, &[EndNow]),
                    (2, Tick(ACTIVE, 1), &[]),
                ],
            ),
            (
                "twice while it drains, and once more",
                0,
                &[
                    (0, Signal, &[ClosePorts]),
                    (0, Tick(ACTIVE, 0), &[Drain(second)]),
                    (1, Signal, &[EndNow]),
                    (2, Signal, &[EndNow]),
                ],
            ),
            (
                "lost within the window",
                500,
                &[
                    (0, Signal, &[]),
                    (0, Tick(ACTIVE, 0), &[SayUnready(7)]),
                    (500, Tick(None, 2), &[ClosePorts]),
                    (500, Tick(None, 2), &[Drain(second)]),
                ],
            ),
        ];
        for (what, window, steps) in cases {
            let times = times(*window, 1000);
            let mut stopping = Stopping::default();
            for (millis, step, due) in *steps {
                let orders = match step {
                    Signal => stopping.asked(at(*millis), times, true),
                    Tick(active, waiting) => stopping.tick(at(*millis), times, *active, *waiting),
                };
                assert_eq!(orders, *due, "{what}, at {millis} ms, {step:?}");
            }
        }
    }

    #[test]
    fn without_anybody_who_serves_there_is_no_window_and_nobody_is_waited_for() {
        let mut stopping = Stopping::default();
        let times = times(500, 1000);
        assert!(!stopping.is_asked());
        assert_eq!(stopping.asked(at(0), times, false), [Order::ClosePorts]);
        assert!(stopping.is_asked());
        assert_eq!(stopping.next_deadline(), Some(at(1000)));
        assert_eq!(
            stopping.tick(at(0), times, None, 4),
            [Order::Drain(times.timeout)]
        );
        assert_eq!(stopping.next_deadline(), None);
    }
}
