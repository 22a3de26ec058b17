//! What the messages of the supervisor act on.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::channel::{Blame, Id};
use crate::relay::{Drain, Load, Relay};

use super::adopt::{Adoptions, Offer};
use super::returns::Returns;
use super::room::Room;
use super::stance::{Idle, Place, Stance};
use super::vitals::WorkerVitals;
use super::{Obeyed, Trouble};

/// A worker's connections, wherever they are in this process, and what it was told about them.
pub struct Duties {
    pub(super) relay: Relay,
    pub(super) vitals: Arc<WorkerVitals>,
    pub(super) adoptions: Adoptions,
    pub(super) returns: Returns<OwnedFd>,
    pub(super) stance: Stance,
    room: Room,
    /// How many returns may be unanswered, as the last `standby` or `drain` said.
    pub(super) window: Option<u32>,
    /// Where the relay sends connections that it lets go.
    give_back: mpsc::UnboundedSender<OwnedFd>,
    /// When a pause ends by itself.
    lease: Option<Instant>,
}

impl Duties {
    /// Of a worker that was told nothing yet; and where the connections come out that its relay lets go.
    pub fn new(
        room: Room,
        relay: Relay,
        vitals: Arc<WorkerVitals>,
    ) -> (Self, mpsc::UnboundedReceiver<OwnedFd>) {
        let (give_back, let_go) = mpsc::unbounded_channel();
        let duties = Self {
            relay,
            vitals,
            adoptions: Adoptions::default(),
            returns: Returns::default(),
            stance: Stance::default(),
            room,
            window: None,
            give_back,
            lease: None,
        };
        (duties, let_go)
    }

    /// What is in hand. Connections that wait for a credit are, too, and those in `let_go`, which the relay has let go
    /// and nobody has taken yet.
    pub fn load(&self, let_go: &mpsc::UnboundedReceiver<OwnedFd>) -> Load {
        let load = self.relay.load();
        // Looked at after the relay's count: a connection is sent here before it is no longer counted there.
        let waiting = self.returns.waiting() + let_go.len();
        Load {
            connections: load.connections + waiting as u64,
            ..load
        }
    }

    /// A socket is offered.
    pub fn offered(&mut self, id: Id, socket: Option<OwnedFd>) -> Offer {
        let has_room = self.room.has_room(
            self.relay.load().connections + self.returns.waiting() as u64,
            self.adoptions.held(),
        );
        self.adoptions
            .offered(id, socket, has_room, self.stance.refuses())
    }

    /// Serves a socket.
    pub fn adopt(&self, socket: OwnedFd) -> Obeyed {
        match self.relay.adopt(socket) {
            Ok(()) => Obeyed::GoOn,
            Err(error) => Obeyed::Failed(Trouble::of(Blame::Package)(error.to_string())),
        }
    }

    /// Serves them all; the first failure counts.
    pub fn adopt_all(&self, sockets: Vec<OwnedFd>) -> Obeyed {
        for socket in sockets {
            if let failed @ Obeyed::Failed(_) = self.adopt(socket) {
                return failed;
            }
        }
        Obeyed::GoOn
    }

    /// No new request for at most so long.
    pub fn pause(&mut self, lease: Duration) {
        self.stance.paused = true;
        self.lease = Some(Instant::now() + lease);
    }

    /// A pause is over.
    pub fn resume(&mut self) {
        self.stance.paused = false;
        self.lease = None;
    }

    /// Ends when a pause was not renewed in time.
    pub async fn lease_over(&self) {
        match self.lease {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Ends when a worker that is to end has nothing left, besides what may still be on its way from the relay.
    pub async fn drained(&self) {
        let is_empty = self.adoptions.held() == 0 && self.returns.waiting() == 0;
        match self.stance.is_ending() && is_empty {
            true => self.relay.drained().await,
            false => std::future::pending().await,
        }
    }

    /// Makes the relay do as the stance says. Connections that go back now, and such that are served here again.
    pub fn take_stance(&mut self) -> (Vec<OwnedFd>, Vec<OwnedFd>) {
        self.vitals.set_stance(self.stance);
        let nothing = Vec::new;
        if matches!(self.stance.place, Place::Candidate | Place::Active) {
            // A pause says nothing of credits.
            self.window = None;
        }
        match self.stance.idle() {
            Idle::Keep => {
                self.relay.serve();
                (nothing(), self.returns.close())
            }
            Idle::GiveBack => {
                self.relay.give_back(self.give_back.clone());
                (self.returns.open(self.window), nothing())
            }
            Idle::Drain => {
                self.relay.drain(Drain::GiveBack(self.give_back.clone()));
                (self.returns.open(self.window), nothing())
            }
            Idle::Close => {
                self.relay.drain(Drain::Close);
                (nothing(), self.returns.close())
            }
        }
    }
}
