//! Sockets between the port and the workers. Pure: it decides where each one is, and moves none itself.
//!
//! Every socket is in exactly one place: in the queue, on its way to one worker, or handed out of here, which is to
//! the worker that owns it, or to be reset and counted. What waits is offered to the active worker only, in order.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::channel::Id;
use crate::clock::Moment;

use super::queue::{Queue, Waiting};
use super::rollout::Generation;
use super::transfer::{Phase, Transfers};

/// How long a worker that refused a socket gets no other; doubled up to 256 ms while it goes on.
const FIRST_PAUSE: Duration = Duration::from_millis(2);

/// Counts since the supervisor started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Counters {
    /// Sockets closed because the queue was full or their time in it was over.
    pub rejected_sockets: u64,
    /// Transfers that a worker did not complete; the sockets were offered to the next one.
    pub failed_transfers: u64,
    /// Sockets that a worker died with and that cannot be proven untouched: closed.
    pub closed_sockets: u64,
    /// Idle connections that came back from a worker.
    pub returned_sockets: u64,
}

/// The way of sockets to one worker.
#[derive(Debug)]
struct Way<T> {
    transfers: Transfers<T>,
    /// It left a transfer unanswered: it gets no more offers.
    stalled: bool,
    /// It refused a socket: until when it gets no other, and how often in a row that was so.
    pause: Option<Moment>,
    refusals: u32,
    /// Returns that were taken and not yet credited.
    uncredited: u32,
}

/// What is known of a socket whose worker has died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touched {
    /// Nobody has read from it or written to it since it was offered: the kernel says so.
    No,
    /// Somebody has.
    Yes,
    /// Nobody can tell: then the order of messages decides.
    Unknown,
}

/// Where all sockets are.
#[derive(Debug)]
pub struct Switchboard<T> {
    queue: Queue<T>,
    ways: BTreeMap<Generation, Way<T>>,
    counters: Counters,
}

impl<T> Switchboard<T> {
    /// At most `limit` sockets wait, each at most for `patience` while nobody serves.
    pub fn new(limit: usize, patience: Duration) -> Self {
        Self {
            queue: Queue::new(limit, patience),
            ways: BTreeMap::new(),
            counters: Counters::default(),
        }
    }

    /// Another bound and time for those who come from now on.
    pub fn configure(&mut self, limit: usize, patience: Duration) {
        self.queue.configure(limit, patience);
    }

    /// A worker was started: at most `credits` sockets are on their way to it at a time, each step answered within
    /// `answer_within`.
    pub fn open(&mut self, generation: Generation, credits: usize, answer_within: Duration) {
        self.ways.insert(
            generation,
            Way {
                transfers: Transfers::new(credits, answer_within),
                stalled: false,
                pause: None,
                refusals: 0,
                uncredited: 0,
            },
        );
    }

    /// A client connected.
    ///
    /// # Errors
    /// Gives the socket back, counted as rejected, when the queue is full: it is to be reset.
    pub fn arrived(&mut self, now: Moment, socket: T) -> Result<(), T> {
        self.queue.push(now, socket).inspect_err(|_| {
            self.counters.rejected_sockets += 1;
        })
    }

    /// A client connected whose listener is being closed: it lines up although the queue may be full, since the
    /// kernel has let it in and nobody else can take it.
    pub fn arrived_last(&mut self, now: Moment, socket: T) {
        self.queue.push_returned(now, socket);
    }

    /// A connection between two requests came back: it lines up although the queue may be full, whose bound is for
    /// new clients. These are as many as were served, and are handed on at once.
    pub fn returned(&mut self, now: Moment, generation: Generation, socket: T) {
        self.counters.returned_sockets += 1;
        if let Some(way) = self.ways.get_mut(&generation) {
            way.uncredited += 1;
        }
        self.queue.push_returned(now, socket);
    }

    /// A connection that came back was lost on its way: the worker may return another one all the same.
    pub fn return_lost(&mut self, generation: Generation) {
        if let Some(way) = self.ways.get_mut(&generation) {
            way.uncredited += 1;
        }
    }

    /// How many of a worker's returns were taken since this was last asked: it may return as many more.
    pub fn credit(&mut self, generation: Generation) -> u32 {
        self.ways
            .get_mut(&generation)
            .map_or(0, |way| std::mem::take(&mut way.uncredited))
    }

    /// What is to be offered to the worker next, and under which id; nothing while it may not have another.
    pub fn next_offer(&mut self, generation: Generation) -> Option<(Id, &mut T)> {
        let way = self.ways.get(&generation)?;
        if way.stalled || way.pause.is_some() || !way.transfers.has_credit() {
            return None;
        }
        let id = way.transfers.next_id();
        Some((id, self.queue.front()?))
    }

    /// What [`Self::next_offer`] said was sent.
    pub fn offered(&mut self, now: Moment, generation: Generation) {
        let Some(way) = self.ways.get_mut(&generation) else {
            return;
        };
        if let Some(waiting) = self.queue.pop() {
            way.transfers.offered(now, waiting);
        }
    }

    /// The worker holds the socket. Says whether `socket-commit` is due; else it was withdrawn meanwhile.
    pub fn accepted(&mut self, now: Moment, generation: Generation, id: Id) -> bool {
        self.ways
            .get_mut(&generation)
            .is_some_and(|way| way.transfers.accepted(now, id).is_ok())
    }

    /// The worker serves the socket: our copy, which is given here, is to be closed. Nothing for a message out of turn.
    pub fn owned(&mut self, generation: Generation, id: Id) -> Option<T> {
        let way = self.ways.get_mut(&generation)?;
        let socket = way.transfers.owned(id).ok()?;
        way.pause = None;
        way.refusals = 0;
        Some(socket)
    }

    /// The worker does not take it: somebody else shall, or the same one a little later. Gives the socket back when its
    /// time is over: it is to be reset.
    pub fn refused(&mut self, now: Moment, generation: Generation, id: Id) -> Option<T> {
        let way = self.ways.get_mut(&generation)?;
        let waiting = way.transfers.refused(id).ok()?;
        if way.pause.is_none() {
            way.pause = Some(now + FIRST_PAUSE * 2_u32.pow(way.refusals.min(7)));
            way.refusals += 1;
        }
        if waiting.until <= now {
            self.counters.rejected_sockets += 1;
            return Some(waiting.socket);
        }
        self.queue.push_back_in_front(waiting);
        None
    }

    /// Whether an answer of this worker is overdue, and it was not given up for that yet.
    pub fn is_overdue(&self, now: Moment, generation: Generation) -> bool {
        self.ways
            .get(&generation)
            .is_some_and(|way| !way.stalled && way.transfers.is_overdue(now))
    }

    /// The worker gets no more offers. What it was offered and has not committed is another's; the ids to cancel.
    pub fn stall(&mut self, generation: Generation) -> Vec<Id> {
        let Some(way) = self.ways.get_mut(&generation) else {
            return Vec::new();
        };
        way.stalled = true;
        let (ids, waiting): (Vec<Id>, Vec<Waiting<T>>) =
            way.transfers.withdraw().into_iter().unzip();
        self.take_back(waiting);
        ids
    }

    /// The worker is dead, or deaf for good, and everything it said was heard. What it does not own goes to the next
    /// one if it is untouched; the rest is given here, counted, to be closed.
    ///
    /// Where nobody can tell, an offer that was never committed is untouched, for a worker does not read before that.
    pub fn lost(
        &mut self,
        generation: Generation,
        mut touched: impl FnMut(&T) -> Touched,
    ) -> Vec<T> {
        let Some(way) = self.ways.get_mut(&generation) else {
            return Vec::new();
        };
        let (mut again, mut closed) = (Vec::new(), Vec::new());
        for (phase, waiting) in way.transfers.settle() {
            match (touched(&waiting.socket), phase) {
                (Touched::No, _) | (Touched::Unknown, Phase::Offered) => again.push(waiting),
                (Touched::Yes, _) | (Touched::Unknown, Phase::Committed) => {
                    closed.push(waiting.socket);
                }
            }
        }
        self.counters.closed_sockets += closed.len() as u64;
        self.take_back(again);
        closed
    }

    /// The worker is gone: nothing is on its way to it any more, see [`Self::lost`].
    pub fn close(&mut self, generation: Generation) {
        self.ways.remove(&generation);
    }

    /// Lets pauses end that are over.
    pub fn tick(&mut self, now: Moment) {
        for way in self.ways.values_mut() {
            if way.pause.is_some_and(|at| at <= now) {
                way.pause = None;
            }
        }
    }

    /// Everyone whose time is over, to be reset, counted. Only to be asked while nobody serves: else they only wait for
    /// their turn, which is bounded by the answers to transfers.
    pub fn expired(&mut self, now: Moment) -> Vec<T> {
        let over = self.queue.expired(now);
        self.counters.rejected_sockets += over.len() as u64;
        over
    }

    /// Everyone who waits, to be reset, counted: nobody will serve any more.
    pub fn turn_all_away(&mut self) -> Vec<T> {
        let all: Vec<T> = self.queue.drain().collect();
        self.counters.rejected_sockets += all.len() as u64;
        all
    }

    /// When an answer or the end of a pause is due next.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.ways
            .values()
            .flat_map(|way| {
                let answer = match way.stalled {
                    true => None,
                    false => way.transfers.next_deadline(),
                };
                [answer, way.pause]
            })
            .flatten()
            .min()
    }

    /// When the time of the first who waits is over; matters only while nobody serves.
    pub fn next_expiry(&self) -> Option<Moment> {
        self.queue.next_deadline()
    }

    /// How many more may line up.
    pub fn room(&self) -> usize {
        self.queue.room()
    }

    /// How many wait.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// How many are on their way.
    pub fn on_their_way(&self) -> usize {
        self.ways.values().map(|way| way.transfers.len()).sum()
    }

    /// Everyone who waits.
    pub fn waiting(&self) -> impl Iterator<Item = &T> {
        self.queue.iter().map(|waiting| &waiting.socket)
    }

    /// Everyone who is here: who waits, and of who is on the way our copy.
    pub fn sockets(&self) -> impl Iterator<Item = &T> {
        let on_their_way = self.ways.values().flat_map(|way| way.transfers.sockets());
        self.waiting().chain(on_their_way)
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Puts sockets that nobody owns back in front, in their order.
    fn take_back(&mut self, sockets: Vec<Waiting<T>>) {
        self.counters.failed_transfers += sockets.len() as u64;
        for waiting in sockets.into_iter().rev() {
            self.queue.push_back_in_front(waiting);
        }
    }
}

/// Where all sockets are, for another process image: a socket is what `S` says of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Carried<S> {
    queue: Vec<Waiting<S>>,
    limit: usize,
    patience: Duration,
    ways: Vec<CarriedWay<S>>,
    counters: Counters,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CarriedWay<S> {
    generation: Generation,
    transfers: super::transfer::Carried<S>,
    stalled: bool,
    pause: Option<Moment>,
    refusals: u32,
    uncredited: u32,
}

impl<S> Carried<S> {
    /// Every socket in it.
    pub fn sockets(&self) -> impl Iterator<Item = &S> {
        let on_their_way = self.ways.iter().flat_map(|way| way.transfers.sockets());
        self.queue
            .iter()
            .map(|waiting| &waiting.socket)
            .chain(on_their_way)
    }
}

impl<T> Switchboard<T> {
    /// Everything as it is, each socket as `name` names it.
    pub fn carry<S>(&self, mut name: impl FnMut(&T) -> S) -> Carried<S> {
        Carried {
            queue: self
                .queue
                .iter()
                .map(|waiting| waiting.with(name(&waiting.socket)))
                .collect(),
            limit: self.queue.limit(),
            patience: self.queue.patience(),
            ways: self
                .ways
                .iter()
                .map(|(generation, way)| CarriedWay {
                    generation: *generation,
                    transfers: way.transfers.carry(&mut name),
                    stalled: way.stalled,
                    pause: way.pause,
                    refusals: way.refusals,
                    uncredited: way.uncredited,
                })
                .collect(),
            counters: self.counters,
        }
    }

    /// The same again, each socket as `take` takes it over.
    ///
    /// # Errors
    /// The first one that `take` returned.
    pub fn resume<S, E>(
        carried: Carried<S>,
        mut take: impl FnMut(S) -> Result<T, E>,
    ) -> Result<Self, E> {
        let mut board = Self::new(carried.limit, carried.patience);
        for waiting in carried.queue {
            let until = waiting.until;
            let socket = take(waiting.socket)?;
            board.queue.push_waiting(Waiting { socket, until });
        }
        for way in carried.ways {
            board.ways.insert(
                way.generation,
                Way {
                    transfers: Transfers::resume(way.transfers, &mut take)?,
                    stalled: way.stalled,
                    pause: way.pause,
                    refusals: way.refusals,
                    uncredited: way.uncredited,
                },
            );
        }
        board.counters = carried.counters;
        Ok(board)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    /// A board with two workers and the sockets a, b, c, d waiting.
    fn board() -> Switchboard<char> {
        let mut board = Switchboard::new(4, PATIENCE);
        for generation in [1, 2] {
            board.open(generation, 3, Duration::from_secs(5));
        }
        for socket in ['a', 'b', 'c', 'd'] {
            assert_eq!(board.arrived(at(0), socket), Ok(()));
        }
        board
    }

    fn offer_all(board: &mut Switchboard<char>, now: Moment, generation: Generation) -> Vec<char> {
        let mut offered = Vec::new();
        while let Some((_, socket)) = board.next_offer(generation) {
            offered.push(*socket);
            board.offered(now, generation);
        }
        offered
    }

    #[test]
    fn sockets_are_offered_in_order_within_the_credits() {
        let mut board = board();
        assert_eq!(board.arrived(at(0), 'e'), Err('e'));
        assert_eq!(board.counters().rejected_sockets, 1);
        assert_eq!(offer_all(&mut board, at(1), 1), ['a', 'b', 'c']);
        assert!(board.accepted(at(2), 1, 1));
        assert_eq!(board.owned(1, 1), Some('a'));
        assert_eq!(board.owned(1, 1), None);
        assert_eq!(offer_all(&mut board, at(3), 1), ['d']);
        assert_eq!((board.queued(), board.on_their_way()), (0, 3));
    }

    #[test]
    fn a_dead_workers_untouched_sockets_go_to_the_next_in_order_and_the_others_are_closed() {
        let mut board = board();
        offer_all(&mut board, at(1), 1);
        assert!(board.accepted(at(2), 1, 2));
        assert!(board.accepted(at(2), 1, 3));
        let closed = board.lost(1, |socket| match socket {
            'c' => Touched::Yes,
            _ => Touched::No,
        });
        assert_eq!(closed, ['c']);
        board.close(1);
        assert_eq!(offer_all(&mut board, at(3), 2), ['a', 'b', 'd']);
        let counters = board.counters();
        assert_eq!((counters.failed_transfers, counters.closed_sockets), (2, 1));
    }

    #[test]
    fn where_nobody_can_tell_only_what_was_never_committed_is_offered_again() {
        let mut board = board();
        offer_all(&mut board, at(1), 1);
        assert!(board.accepted(at(2), 1, 2));
        assert_eq!(board.lost(1, |_| Touched::Unknown), ['b']);
        assert_eq!(offer_all(&mut board, at(3), 2), ['a', 'c', 'd']);
    }

    #[test]
    fn one_that_refuses_waits_longer_each_time_until_it_takes_one() {
        let mut board = board();
        for (id, wait) in (1..).zip([2, 4, 8, 16, 32, 64, 128, 256, 256]) {
            let now = at(id * 1_000);
            assert!(board.next_offer(1).is_some());
            board.offered(now, 1);
            assert_eq!(board.refused(now, 1, id), None);
            assert!(board.next_offer(1).is_none());
            board.tick(at(id * 1_000 + wait - 1));
            assert!(board.next_offer(1).is_none(), "{wait}");
            board.tick(at(id * 1_000 + wait));
            assert!(board.next_offer(1).is_some(), "{wait}");
        }
        board.offered(at(20_000), 1);
        assert!(board.accepted(at(20_000), 1, 10));
        assert_eq!(board.owned(1, 10), Some('a'));
        board.offered(at(20_000), 1);
        assert_eq!(board.refused(at(20_000), 1, 11), None);
        assert_eq!(board.next_deadline(), Some(at(20_002)));
    }

    #[test]
    fn a_refused_one_whose_time_is_over_is_given_out_to_be_reset() {
        let mut board = board();
        board.offered(at(1), 1);
        assert_eq!(board.refused(at(30_000), 1, 1), Some('a'));
        assert_eq!(board.counters().rejected_sockets, 1);
    }

    #[test]
    fn a_stalled_worker_gets_nothing_more_and_keeps_what_was_committed() {
        let mut board = board();
        offer_all(&mut board, at(1), 1);
        assert!(board.accepted(at(2), 1, 2));
        assert!(!board.is_overdue(at(5_000), 1));
        assert!(board.is_overdue(at(5_001), 1));
        assert_eq!(board.stall(1), [1, 3]);
        assert!(!board.is_overdue(at(9_000), 1));
        assert!(board.next_offer(1).is_none());
        assert_eq!(offer_all(&mut board, at(3), 2), ['a', 'c', 'd']);
        assert_eq!(board.owned(1, 2), Some('b'));
    }

    #[test]
    fn returns_are_credited_once() {
        let mut board = board();
        board.returned(at(1), 2, 'x');
        board.returned(at(1), 2, 'y');
        // Lost for want of descriptors: its place is free again all the same.
        board.return_lost(2);
        assert_eq!(board.credit(2), 3);
        assert_eq!(board.credit(2), 0);
        assert_eq!(board.credit(9), 0);
        assert_eq!(board.queued(), 6);
        assert_eq!(board.counters().returned_sockets, 2);
    }

    #[test]
    fn everything_is_where_it_was_after_it_was_carried() {
        let mut before = board();
        offer_all(&mut before, at(1), 1);
        assert!(before.accepted(at(2), 1, 2));
        before.returned(at(3), 2, 'x');
        let text = serde_json::to_string(&before.carry(|socket| u32::from(*socket))).unwrap();
        let carried: Carried<u32> = serde_json::from_str(&text).unwrap();
        let mut after =
            Switchboard::resume(carried, |number| char::from_u32(number).ok_or(())).unwrap();
        assert_eq!(after.next_deadline(), before.next_deadline());
        for board in [&mut before, &mut after] {
            assert_eq!(board.owned(1, 2), Some('b'));
            assert_eq!(board.credit(2), 1);
            assert!(board.lost(1, |_| Touched::No).is_empty());
            assert_eq!(offer_all(board, at(4), 2), ['a', 'c', 'd']);
            assert_eq!((board.queued(), board.on_their_way()), (1, 3));
            assert_eq!(board.arrived(at(5), 'e'), Ok(()));
            assert!(board.expired(at(29_999)).is_empty());
            assert_eq!(board.expired(at(30_003)), ['x']);
        }
    }
}
