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
    draining: bool,
}

impl Adoptions {
    /// A `socket` message came, with or without its descriptor.
    ///
    /// `has_room` says whether descriptors are left for it and for what its requests will need.
    pub fn offered(&mut self, id: Id, socket: Option<OwnedFd>, has_room: bool) -> Offer {
        let Some(socket) = socket.filter(|_| has_room) else {
            return Offer::Refused("no descriptors left");
        };
        if self.draining {
            return Offer::Refused("draining");
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

    /// No new ones from now on; what was accepted before is still committed.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// No new ones come, and nothing waits for its commit.
    pub fn is_over(&self) -> bool {
        self.draining && self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> Option<OwnedFd> {
        Some(std::os::unix::net::UnixStream::pair().unwrap().0.into())
    }

    #[test]
    fn what_was_accepted_before_a_drain_is_still_committed_and_only_once() {
        let mut adoptions = Adoptions::default();
        assert_eq!(adoptions.offered(1, socket(), true), Offer::Accepted);
        adoptions.drain();
        assert_eq!(
            adoptions.offered(2, socket(), true),
            Offer::Refused("draining")
        );
        assert!(!adoptions.is_over());
        assert!(adoptions.committed(1).is_some());
        assert!(adoptions.committed(1).is_none());
        assert!(adoptions.committed(2).is_none());
        assert!(adoptions.is_over());
    }

    #[test]
    fn a_socket_without_room_for_its_upstream_is_refused() {
        let mut adoptions = Adoptions::default();
        assert_eq!(
            adoptions.offered(1, socket(), false),
            Offer::Refused("no descriptors left")
        );
        assert_eq!(adoptions.held(), 0);
    }

    #[test]
    fn a_message_whose_descriptor_was_lost_is_refused() {
        let mut adoptions = Adoptions::default();
        assert_eq!(
            adoptions.offered(1, None, true),
            Offer::Refused("no descriptors left")
        );
        adoptions.drain();
        assert!(adoptions.is_over());
    }
}
