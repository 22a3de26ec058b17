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
    pub fn offered(&mut self, id: Id, socket: Option<OwnedFd>) -> Offer {
        let Some(socket) = socket else {
            return Offer::Refused("no descriptors left");
        };
        if self.draining {
            return Offer::Refused("draining");
        }
        self.held.insert(id, socket);
        Offer::Accepted
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
        assert_eq!(adoptions.offered(1, socket()), Offer::Accepted);
        adoptions.drain();
        assert_eq!(adoptions.offered(2, socket()), Offer::Refused("draining"));
        assert!(!adoptions.is_over());
        assert!(adoptions.committed(1).is_some());
        assert!(adoptions.committed(1).is_none());
        assert!(adoptions.committed(2).is_none());
        assert!(adoptions.is_over());
    }

    #[test]
    fn a_message_whose_descriptor_was_lost_is_refused() {
        let mut adoptions = Adoptions::default();
        assert_eq!(
            adoptions.offered(1, None),
            Offer::Refused("no descriptors left")
        );
        adoptions.drain();
        assert!(adoptions.is_over());
    }
}
