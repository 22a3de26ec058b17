//! Sockets on their way to one worker. The supervisor keeps its copy until the worker owns the socket.
//!
//! `socket` → `socket-accepted` → `socket-commit` → `socket-owned`. A worker reads nothing before
//! it has said `socket-owned`, so every copy still here when its channel has been read to the end
//! is unread, and another worker may have it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::channel::Id;
use crate::clock::Moment;

use super::queue::Waiting;

/// How far a transfer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// `socket` was sent.
    Offered,
    /// `socket-commit` was sent.
    Committed,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Transfer<T> {
    waiting: Waiting<T>,
    phase: Phase,
    answer_by: Moment,
}

/// The transfers to one worker.
#[derive(Debug)]
pub struct Transfers<T> {
    under_way: BTreeMap<Id, Transfer<T>>,
    next: Id,
    credits: usize,
    answer_within: Duration,
}

/// A message that names no transfer in the phase it belongs to.
#[derive(Debug, PartialEq, Eq)]
pub struct OutOfTurn;

impl<T> Transfers<T> {
    /// At most `credits` unanswered at a time, each answer within `answer_within`.
    pub fn new(credits: usize, answer_within: Duration) -> Self {
        Self {
            under_way: BTreeMap::new(),
            next: 1,
            credits,
            answer_within,
        }
    }

    /// Whether another socket may be offered.
    pub fn has_credit(&self) -> bool {
        self.under_way.len() < self.credits
    }

    /// The id that the next offer will carry.
    pub fn next_id(&self) -> Id {
        self.next
    }

    /// `socket` was sent with [`Self::next_id`].
    pub fn offered(&mut self, now: Moment, waiting: Waiting<T>) {
        let answer_by = now + self.answer_within;
        self.under_way.insert(
            self.next,
            Transfer {
                waiting,
                phase: Phase::Offered,
                answer_by,
            },
        );
        self.next += 1;
    }

    /// `socket-accepted` was received: `socket-commit` is due.
    ///
    /// # Errors
    /// When no such offer is open.
    pub fn accepted(&mut self, now: Moment, id: Id) -> Result<(), OutOfTurn> {
        let answer_by = now + self.answer_within;
        match self.under_way.get_mut(&id) {
            Some(transfer) if transfer.phase == Phase::Offered => {
                transfer.phase = Phase::Committed;
                transfer.answer_by = answer_by;
                Ok(())
            }
            _ => Err(OutOfTurn),
        }
    }

    /// `socket-owned` was received: the copy may be closed.
    ///
    /// # Errors
    /// When no such transfer was committed.
    pub fn owned(&mut self, id: Id) -> Result<T, OutOfTurn> {
        self.take(id, Phase::Committed)
            .map(|waiting| waiting.socket)
    }

    /// `socket-refused` was received: somebody else shall have it.
    ///
    /// # Errors
    /// When no such offer is open.
    pub fn refused(&mut self, id: Id) -> Result<Waiting<T>, OutOfTurn> {
        self.take(id, Phase::Offered)
    }

    /// Everything that was offered and not committed: the worker never reads from it, so another may
    /// have it once this one is told by `socket-cancel`.
    pub fn withdraw(&mut self) -> Vec<(Id, Waiting<T>)> {
        let ids: Vec<Id> = self
            .under_way
            .iter()
            .filter(|(_, transfer)| transfer.phase == Phase::Offered)
            .map(|(id, _)| *id)
            .collect();
        ids.into_iter()
            .filter_map(|id| Some((id, self.under_way.remove(&id)?.waiting)))
            .collect()
    }

    /// Everything that nobody owns, in the order it was offered, and how far each was.
    pub fn settle(&mut self) -> Vec<(Phase, Waiting<T>)> {
        std::mem::take(&mut self.under_way)
            .into_values()
            .map(|transfer| (transfer.phase, transfer.waiting))
            .collect()
    }

    /// Whether an answer is overdue.
    pub fn is_overdue(&self, now: Moment) -> bool {
        self.next_deadline().is_some_and(|by| by <= now)
    }

    /// When the next answer is due.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.under_way
            .values()
            .map(|transfer| transfer.answer_by)
            .min()
    }

    /// Our copies.
    pub fn sockets(&self) -> impl Iterator<Item = &T> {
        self.under_way
            .values()
            .map(|transfer| &transfer.waiting.socket)
    }

    /// How many are under way.
    pub fn len(&self) -> usize {
        self.under_way.len()
    }

    fn take(&mut self, id: Id, phase: Phase) -> Result<Waiting<T>, OutOfTurn> {
        match self.under_way.get(&id) {
            Some(transfer) if transfer.phase == phase => self
                .under_way
                .remove(&id)
                .map(|transfer| transfer.waiting)
                .ok_or(OutOfTurn),
            _ => Err(OutOfTurn),
        }
    }
}

/// The transfers to one worker, for another process image: a socket is what `S` says of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Carried<S> {
    under_way: Vec<(Id, Transfer<S>)>,
    next: Id,
    credits: usize,
    answer_within: Duration,
}

impl<S> Carried<S> {
    /// Every socket in it.
    pub fn sockets(&self) -> impl Iterator<Item = &S> {
        self.under_way
            .iter()
            .map(|(_, transfer)| &transfer.waiting.socket)
    }
}

impl<T> Transfers<T> {
    /// Everything as it is, each socket as `name` names it.
    pub fn carry<S>(&self, name: &mut impl FnMut(&T) -> S) -> Carried<S> {
        Carried {
            under_way: self
                .under_way
                .iter()
                .map(|(id, transfer)| {
                    let carried = Transfer {
                        waiting: transfer.waiting.with(name(&transfer.waiting.socket)),
                        phase: transfer.phase,
                        answer_by: transfer.answer_by,
                    };
                    (*id, carried)
                })
                .collect(),
            next: self.next,
            credits: self.credits,
            answer_within: self.answer_within,
        }
    }

    /// The same again, each socket as `take` takes it over.
    ///
    /// # Errors
    /// The first one that `take` returned.
    pub fn resume<S, E>(
        carried: Carried<S>,
        take: &mut impl FnMut(S) -> Result<T, E>,
    ) -> Result<Self, E> {
        let mut under_way = BTreeMap::new();
        for (id, transfer) in carried.under_way {
            let waiting = Waiting {
                until: transfer.waiting.until,
                socket: take(transfer.waiting.socket)?,
            };
            under_way.insert(
                id,
                Transfer {
                    waiting,
                    phase: transfer.phase,
                    answer_by: transfer.answer_by,
                },
            );
        }
        Ok(Self {
            under_way,
            next: carried.next,
            credits: carried.credits,
            answer_within: carried.answer_within,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    fn waiting(socket: char) -> Waiting<char> {
        Waiting {
            socket,
            until: at(30_000),
        }
    }

    fn three() -> Transfers<char> {
        let mut transfers = Transfers::new(3, Duration::from_secs(5));
        for socket in ['a', 'b', 'c'] {
            assert!(transfers.has_credit());
            transfers.offered(at(0), waiting(socket));
        }
        transfers
    }

    #[test]
    fn a_copy_is_kept_until_owned_and_credits_bound_what_is_open() {
        let mut transfers = three();
        assert!(!transfers.has_credit());
        assert_eq!(transfers.accepted(at(1), 1), Ok(()));
        assert!(!transfers.has_credit());
        assert_eq!(transfers.owned(1), Ok('a'));
        assert!(transfers.has_credit());
        assert_eq!(transfers.next_id(), 4);
    }

    #[test]
    fn an_answer_out_of_turn_changes_nothing() {
        let mut transfers = three();
        assert_eq!(transfers.owned(1), Err(OutOfTurn));
        assert_eq!(transfers.accepted(at(1), 9), Err(OutOfTurn));
        assert_eq!(transfers.accepted(at(1), 2), Ok(()));
        assert_eq!(transfers.accepted(at(1), 2), Err(OutOfTurn));
        assert!(transfers.refused(2).is_err());
        assert_eq!(transfers.len(), 3);
    }

    #[test]
    fn each_step_has_its_own_deadline() {
        let mut transfers = three();
        transfers.owned(1).unwrap_err();
        assert!(!transfers.is_overdue(at(4_999)));
        assert!(transfers.is_overdue(at(5_000)));
        for id in 1..=3 {
            transfers.accepted(at(4_000), id).unwrap();
        }
        assert!(!transfers.is_overdue(at(8_999)));
        assert!(transfers.is_overdue(at(9_000)));
    }

    #[test]
    fn a_stalled_worker_loses_what_was_not_committed() {
        let mut transfers = three();
        transfers.accepted(at(1), 2).unwrap();
        let withdrawn: Vec<_> = transfers
            .withdraw()
            .into_iter()
            .map(|(id, w)| (id, w.socket))
            .collect();
        assert_eq!(withdrawn, [(1, 'a'), (3, 'c')]);
        assert_eq!(transfers.accepted(at(2), 1), Err(OutOfTurn));
        assert_eq!(transfers.owned(2), Ok('b'));
    }

    #[test]
    fn after_a_death_everything_not_owned_is_given_on_in_order() {
        let mut transfers = three();
        transfers.accepted(at(1), 1).unwrap();
        transfers.accepted(at(1), 2).unwrap();
        transfers.owned(1).unwrap();
        let left: Vec<_> = transfers
            .settle()
            .into_iter()
            .map(|(phase, waiting)| (phase, waiting.socket))
            .collect();
        assert_eq!(left, [(Phase::Committed, 'b'), (Phase::Offered, 'c')]);
        assert_eq!(transfers.len(), 0);
    }
}
