//! Sockets that wait for a worker: bounded in number and time.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Moment;

/// A first-in, first-out queue of `T` with a bound and a deadline for each.
#[derive(Debug)]
pub struct Queue<T> {
    waiting: VecDeque<Waiting<T>>,
    limit: usize,
    patience: Duration,
}

/// One that waits.
#[derive(Debug, Serialize, Deserialize)]
pub struct Waiting<T> {
    /// What waits.
    pub socket: T,
    /// Until when.
    pub until: Moment,
}

impl<T> Waiting<T> {
    /// The same wait of what stands for the socket.
    pub fn with<S>(&self, socket: S) -> Waiting<S> {
        Waiting {
            socket,
            until: self.until,
        }
    }
}

impl<T> Queue<T> {
    /// At most `limit` wait, each at most for `patience`.
    pub fn new(limit: usize, patience: Duration) -> Self {
        Self {
            waiting: VecDeque::new(),
            limit,
            patience,
        }
    }

    /// Another bound and time for those who come from now on.
    pub fn configure(&mut self, limit: usize, patience: Duration) {
        self.limit = limit;
        self.patience = patience;
    }

    /// Lines up at the end.
    ///
    /// # Errors
    /// Gives the socket back when the queue is full.
    pub fn push(&mut self, now: Moment, socket: T) -> Result<(), T> {
        if self.is_full() {
            return Err(socket);
        }
        self.waiting.push_back(Waiting {
            socket,
            until: now + self.patience,
        });
        Ok(())
    }

    /// Lines up at the end although the queue may be full: who was served before is not sent away for the bound.
    pub fn push_returned(&mut self, now: Moment, socket: T) {
        self.waiting.push_back(Waiting {
            socket,
            until: now + self.patience,
        });
    }

    /// Puts back at the front what could not be handed over; its time goes on, the bound does not apply to it.
    pub fn push_back_in_front(&mut self, waiting: Waiting<T>) {
        self.waiting.push_front(waiting);
    }

    /// Lines up at the end with the time that is left of an earlier wait; the bound does not apply to it.
    pub fn push_waiting(&mut self, waiting: Waiting<T>) {
        self.waiting.push_back(waiting);
    }

    /// Who is next.
    pub fn front(&mut self) -> Option<&mut T> {
        self.waiting.front_mut().map(|waiting| &mut waiting.socket)
    }

    /// Everyone, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Waiting<T>> {
        self.waiting.iter()
    }

    /// How many may wait.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// How long each may wait.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Who has waited longest.
    pub fn pop(&mut self) -> Option<Waiting<T>> {
        self.waiting.pop_front()
    }

    /// Takes out everyone whose time is over.
    pub fn expired(&mut self, now: Moment) -> Vec<T> {
        // Those put back in front keep their older deadlines, so all are looked at.
        let mut over = Vec::new();
        let mut rest = VecDeque::with_capacity(self.waiting.len());
        for waiting in self.waiting.drain(..) {
            if waiting.until <= now {
                over.push(waiting.socket);
            } else {
                rest.push_back(waiting);
            }
        }
        self.waiting = rest;
        over
    }

    /// When the next one's time is over.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.waiting.iter().map(|waiting| waiting.until).min()
    }

    /// How many more may line up.
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.waiting.len())
    }

    /// No room for another.
    pub fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Everyone, for the end.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.waiting.drain(..).map(|waiting| waiting.socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    #[test]
    fn it_is_bounded_in_number_and_time_and_keeps_order() {
        let mut queue = Queue::new(2, Duration::from_secs(30));
        assert_eq!(queue.push(at(0), 'a'), Ok(()));
        assert_eq!(queue.push(at(1_000), 'b'), Ok(()));
        assert_eq!(queue.push(at(1_000), 'c'), Err('c'));
        let first = queue.pop().unwrap();
        assert_eq!(first.socket, 'a');
        queue.push_back_in_front(first);
        assert_eq!(queue.next_deadline(), Some(at(30_000)));
        assert!(queue.expired(at(29_999)).is_empty());
        assert_eq!(queue.expired(at(30_000)), ['a']);
        assert_eq!(queue.pop().unwrap().socket, 'b');
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_returned_one_lines_up_behind_a_full_queue_and_counts_against_new_ones() {
        let mut queue = Queue::new(1, Duration::from_secs(30));
        assert_eq!(queue.push(at(0), 'a'), Ok(()));
        queue.push_returned(at(0), 'b');
        assert_eq!(queue.push(at(0), 'c'), Err('c'));
        assert_eq!(queue.pop().map(|waiting| waiting.socket), Some('a'));
        assert_eq!(queue.push(at(0), 'c'), Err('c'));
        assert_eq!(queue.pop().map(|waiting| waiting.socket), Some('b'));
        assert_eq!(queue.push(at(0), 'c'), Ok(()));
    }
}
