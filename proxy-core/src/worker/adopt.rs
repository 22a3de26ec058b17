//! The second half of a transfer: sockets that were accepted but not committed yet.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use crate::channel::Id;

/// The answer to a `socket` message.
#[derive(Debug, PartialEq, Eq)]
pub enum Offer {
    /// Held, not read from.
    Accepted,
    /// Not taken, and why.
    Refused(&'static str),
}

/// Sockets between `socket-accepted` and `socket-commit`.
#[derive(Debug, Default)]
pub struct Adoptions {
    held: BTreeMap<Id, OwnedFd>,
}

impl Adoptions {
    /// A `socket` message came, with or without its descriptor.
    ///
    /// `has_room` says whether descriptors are left for it and for what its requests will need, `refuses` why none is
    /// taken now. What was accepted before is committed all the same.
    pub fn offered(
        &mut self,
        id: Id,
        socket: Option<OwnedFd>,
        has_room: bool,
        refuses: Option<&'static str>,
    ) -> Offer {
        let Some(socket) = socket.filter(|_| has_room) else {
            return Offer::Refused("no descriptors left");
        };
        if let Some(reason) = refuses {
            return Offer::Refused(reason);
        }
        self.held.insert(id, socket);
        Offer::Accepted
    }

    /// How many wait for their commit.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// The supervisor decided about an accepted socket: it is handed out once.
    pub fn committed(&mut self, id: Id) -> Option<OwnedFd> {
        self.held.remove(&id)
    }

    /// Nobody is there to commit them.
    pub fn forget(&mut self) {
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> Option<OwnedFd> {
        Some(std::os::unix::net::UnixStream::pair().unwrap().0.into())
    }

    #[test]
    fn what_was_accepted_before_a_refusal_is_still_committed_and_only_once() {
        let mut adoptions = Adoptions::default();
        assert_eq!(adoptions.offered(1, socket(), true, None), Offer::Accepted);
        for reason in ["standby", "draining", "paused"] {
            assert_eq!(
                adoptions.offered(2, socket(), true, Some(reason)),
                Offer::Refused(reason)
            );
        }
        assert_eq!(adoptions.held(), 1);
        assert!(adoptions.committed(1).is_some());
        assert!(adoptions.committed(1).is_none());
        assert!(adoptions.committed(2).is_none());
        assert_eq!(adoptions.held(), 0);
    }

    #[test]
    fn a_socket_without_room_for_its_upstream_or_whose_descriptor_was_lost_is_refused() {
        let mut adoptions = Adoptions::default();
        let refused = Offer::Refused("no descriptors left");
        assert_eq!(adoptions.offered(1, socket(), false, None), refused);
        assert_eq!(adoptions.offered(2, None, true, None), refused);
        assert_eq!(adoptions.held(), 0);
    }

    #[test]
    fn what_nobody_can_commit_any_more_is_closed() {
        let mut adoptions = Adoptions::default();
        adoptions.offered(1, socket(), true, None);
        adoptions.forget();
        assert!(adoptions.committed(1).is_none());
    }
}
