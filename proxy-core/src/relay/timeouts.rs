//! Coarse time-outs: one sweep a thread looks at every connection's deadlines, so that a byte costs no timer.
//!
//! A deadline fires at its time or up to [`GRAIN`] later. While none is near, nothing wakes up.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use slab::Slab;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The least time between two sweeps.
const GRAIN: Duration = Duration::from_millis(100);

/// All deadlines of one thread.
#[derive(Default)]
pub(super) struct Timeouts {
    alarms: RefCell<Slab<Rc<Entry>>>,
    /// When the next sweep is due; `None`: no deadline is set.
    next: Cell<Option<Instant>>,
    /// Rung when a deadline comes before the next sweep.
    earlier: Notify,
}

/// The deadlines of one connection; gone when dropped.
pub(super) struct Alarm {
    entry: Rc<Entry>,
    key: usize,
    timeouts: Rc<Timeouts>,
}

#[derive(Default)]
struct Entry {
    due: [Cell<Option<Instant>>; 2],
    fired: [Cell<bool>; 2],
    waker: RefCell<Option<Waker>>,
}

/// Which of the two directions a deadline is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the client: a head, a body, or the next request.
    Up = 0,
    /// To the client: the answer.
    Down = 1,
}

const DIRECTIONS: [Direction; 2] = [Direction::Up, Direction::Down];

impl Timeouts {
    pub(super) fn alarm(self: &Rc<Self>) -> Alarm {
        let entry = Rc::new(Entry::default());
        let key = self.alarms.borrow_mut().insert(Rc::clone(&entry));
        Alarm {
            entry,
            key,
            timeouts: Rc::clone(self),
        }
    }

    /// Wakes every connection, for something that all of them must look at.
    pub(super) fn wake_all(&self) {
        for (_, entry) in &*self.alarms.borrow() {
            entry.wake();
        }
    }

    /// Sweeps for ever.
    pub(super) async fn run(&self) {
        loop {
            let earlier = self.earlier.notified();
            match self.next.get() {
                None => earlier.await,
                Some(next) => {
                    tokio::select! {
                        () = earlier => continue,
                        () = tokio::time::sleep_until(next) => {}
                    }
                    self.sweep(Instant::now());
                    tokio::time::sleep(GRAIN).await;
                }
            }
        }
    }

    /// Fires what is due, and finds out when the next sweep is.
    fn sweep(&self, now: Instant) {
        let mut next: Option<Instant> = None;
        for (_, entry) in &*self.alarms.borrow() {
            for direction in DIRECTIONS {
                let Some(due) = entry.due(direction).get() else {
                    continue;
                };
                if due <= now {
                    entry.due(direction).set(None);
                    entry.fired(direction).set(true);
                    entry.wake();
                } else {
                    next = Some(next.map_or(due, |next| next.min(due)));
                }
            }
        }
        self.next.set(next);
    }
}

impl Alarm {
    /// Whom to wake.
    pub(super) fn register(&self, cx: &Context<'_>) {
        let mut waker = self.entry.waker.borrow_mut();
        match &mut *waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
    }

    /// Sets the deadline to `limit` from now, in place of the one before; zero is never.
    pub(super) fn set(&self, direction: Direction, limit: Duration) {
        self.entry.fired(direction).set(false);
        if limit.is_zero() {
            self.entry.due(direction).set(None);
            return;
        }
        let due = Instant::now() + limit;
        self.entry.due(direction).set(Some(due));
        if self.timeouts.next.get().is_none_or(|next| due < next) {
            self.timeouts.next.set(Some(due));
            self.timeouts.earlier.notify_one();
        }
    }

    pub(super) fn clear(&self, direction: Direction) {
        self.entry.fired(direction).set(false);
        self.entry.due(direction).set(None);
    }

    /// Whether a deadline is set and not over.
    pub(super) fn is_set(&self, direction: Direction) -> bool {
        self.entry.due(direction).get().is_some()
    }

    /// Whether the deadline is over.
    pub(super) fn has_fired(&self, direction: Direction) -> bool {
        self.entry.fired(direction).get()
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.timeouts.alarms.borrow_mut().remove(self.key);
    }
}

impl Entry {
    fn due(&self, direction: Direction) -> &Cell<Option<Instant>> {
        &self.due[direction as usize]
    }

    fn fired(&self, direction: Direction) -> &Cell<bool> {
        &self.fired[direction as usize]
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_deadline_fires_when_it_is_over_and_not_before() {
        let timeouts = Rc::new(Timeouts::default());
        let alarm = timeouts.alarm();
        let begin = Instant::now();
        alarm.set(Direction::Up, SECOND);
        timeouts.sweep(begin);
        assert!(!alarm.has_fired(Direction::Up));
        timeouts.sweep(begin + 2 * SECOND);
        assert!(alarm.has_fired(Direction::Up));
        assert!(!alarm.has_fired(Direction::Down));
        assert!(!alarm.is_set(Direction::Up));
    }

    #[test]
    fn a_deadline_set_again_or_cleared_does_not_fire() {
        let timeouts = Rc::new(Timeouts::default());
        let alarm = timeouts.alarm();
        let begin = Instant::now();
        alarm.set(Direction::Down, SECOND);
        alarm.set(Direction::Down, 10 * SECOND);
        alarm.set(Direction::Up, SECOND);
        alarm.clear(Direction::Up);
        timeouts.sweep(begin + 5 * SECOND);
        assert!(!alarm.has_fired(Direction::Down));
        assert!(!alarm.has_fired(Direction::Up));
        alarm.set(Direction::Down, Duration::ZERO);
        assert!(!alarm.is_set(Direction::Down));
    }

    #[test]
    fn the_next_sweep_is_when_the_first_deadline_is_due() {
        let timeouts = Rc::new(Timeouts::default());
        let (one, other) = (timeouts.alarm(), timeouts.alarm());
        one.set(Direction::Up, 20 * SECOND);
        let far = timeouts.next.get().unwrap();
        other.set(Direction::Down, SECOND);
        let near = timeouts.next.get().unwrap();
        assert!(near < far);
        timeouts.sweep(near);
        assert!(other.has_fired(Direction::Down));
        assert_eq!(timeouts.next.get(), Some(far));
        drop(one);
        drop(other);
        timeouts.sweep(far);
        assert_eq!(timeouts.next.get(), None);
        assert!(timeouts.alarms.borrow().is_empty());
    }

    #[tokio::test]
    async fn the_sweep_wakes_who_waits_and_not_before_the_time() {
        const LIMIT: Duration = Duration::from_millis(50);
        let timeouts = Rc::new(Timeouts::default());
        let alarm = timeouts.alarm();
        let begin = Instant::now();
        alarm.set(Direction::Up, LIMIT);
        let waiting = std::future::poll_fn(|cx| {
            alarm.register(cx);
            match alarm.has_fired(Direction::Up) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        });
        tokio::select! {
            () = timeouts.run() => unreachable!("a sweep never ends"),
            () = waiting => assert!(begin.elapsed() >= LIMIT),
        }
    }
}
