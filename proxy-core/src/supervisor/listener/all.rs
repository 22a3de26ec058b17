//! All listeners of a supervisor, and for which rollout each one is there.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use control::types::Outcome;

use crate::config::ListenAddress;

use super::super::rollout::RolloutId;
use super::super::service_manager::LISTENER;
use super::plan::{Change, Named, Use, Wish, plan_change, uses};
use super::{ListenError, Listener};

/// All listeners.
#[derive(Debug, Default)]
pub struct Listeners {
    held: Vec<Held>,
    /// What the configuration that was last kept asks for.
    kept: Vec<ListenAddress>,
    wishes: Vec<Wish>,
}

#[derive(Debug)]
struct Held {
    listener: Listener,
    accepts: bool,
    /// Whether it ever was accepted from: then clients may wait in its backlog.
    accepted: bool,
}

/// Listeners that were bound for a rollout that has not begun yet.
#[derive(Debug)]
pub struct Prepared {
    bound: Vec<Listener>,
    wanted: Vec<ListenAddress>,
}

impl Prepared {
    /// The rollout did not begin: nothing of it stays.
    pub fn withdraw(self) {
        self.bound.into_iter().for_each(Listener::close);
    }
}

impl Listeners {
    /// Everything that is wanted, of what was given and newly bound; or nothing. What was given beside is kept.
    ///
    /// # Errors
    /// Naming the address.
    pub fn open(
        wanted: &[ListenAddress],
        mode: u32,
        given: Vec<Listener>,
    ) -> Result<Self, ListenError> {
        let mut all = Self {
            kept: wanted.to_vec(),
            held: given
                .into_iter()
                .map(|listener| Held {
                    listener,
                    accepts: true,
                    accepted: true,
                })
                .collect(),
            wishes: Vec::new(),
        };
        let Change { bind, keep, .. } = plan_change(&all.named(), wanted);
        for (at, entry) in keep {
            all.held[at].listener.named.asked = Some(entry);
        }
        for held in &mut all.held {
            // Bound for another configuration: there until one is kept that does not want it.
            let named = &mut held.listener.named;
            if named.asked.is_none() && !named.lent {
                named.asked = Some(named.bound.clone());
            }
        }
        for listener in bind_all(&bind, mode, &all.held, all.held.is_empty())? {
            all.held.push(Held {
                listener,
                accepts: true,
                accepted: true,
            });
        }
        Ok(all)
    }

    /// What this process held before an exec: the sockets with their names, and what was asked for.
    ///
    /// # Errors
    /// When one of them does not listen.
    pub fn from_inherited(
        kept: Vec<ListenAddress>,
        sockets: Vec<(OwnedFd, Named)>,
    ) -> Result<Self, ListenError> {
        let held = sockets
            .into_iter()
            .map(|(socket, named)| {
                let mut listener = Listener::from_inherited(socket, named.asked.clone())?;
                listener.named = Named {
                    bound: listener.named.bound,
                    ..named
                };
                Ok(Held {
                    listener,
                    accepts: true,
                    accepted: true,
                })
            })
            .collect::<Result<_, ListenError>>()?;
        Ok(Self {
            held,
            kept,
            wishes: Vec::new(),
        })
    }

    /// What has to be carried through an exec; complete only while no rollout is under way.
    pub fn carried(&self) -> (&[ListenAddress], Vec<(BorrowedFd<'_>, &Named)>) {
        let sockets = self
            .held
            .iter()
            .map(|held| (held.listener.as_fd(), held.listener.named()));
        (&self.kept, sockets.collect())
    }

    /// Those that connections are taken from.
    pub fn accepting(&self) -> impl Iterator<Item = &Listener> {
        self.held
            .iter()
            .filter(|held| held.accepts)
            .map(|held| &held.listener)
    }

    /// Where connections are taken, as it is told.
    pub fn addresses(&self) -> Vec<String> {
        self.accepting()
            .map(|listener| listener.address().to_string())
            .collect()
    }

    /// Those that were given, and that the configuration does not name.
    pub fn beside(&self) -> impl Iterator<Item = &Listener> {
        let beside = |named: &Named| {
            named
                .asked
                .as_ref()
                .is_none_or(|asked| !self.kept.contains(asked))
        };
        self.accepting()
            .filter(move |listener| beside(listener.named()))
    }

    /// Names those that no service manager keeps yet, for it to keep them: each name with a descriptor to send.
    pub fn name_unstored(&mut self) -> Vec<(String, std::io::Result<OwnedFd>)> {
        let mut taken: Vec<String> = self
            .held
            .iter()
            .filter_map(|held| held.listener.named.stored.clone())
            .collect();
        let mut named = Vec::new();
        for Held {
            listener, accepts, ..
        } in &mut self.held
        {
            if !*accepts || listener.named.lent || listener.named.stored.is_some() {
                continue;
            }
            let Some(name) = (1_u32..)
                .map(|number| format!("{LISTENER}-{number}"))
                .find(|name| !taken.contains(name))
            else {
                continue;
            };
            taken.push(name.clone());
            listener.named.stored = Some(name.clone());
            named.push((name, listener.as_fd().try_clone_to_owned()));
        }
        named
    }

    /// Binds what is wanted and not there yet. Nothing is accepted from it.
    ///
    /// # Errors
    /// Naming the address; then nothing has changed.
    pub fn prepare(&self, wanted: &[ListenAddress], mode: u32) -> Result<Prepared, ListenError> {
        let change = plan_change(&self.named(), wanted);
        Ok(Prepared {
            bound: bind_all(&change.bind, mode, &self.held, change.keep.is_empty())?,
            wanted: wanted.to_vec(),
        })
    }

    /// The rollout has begun: what was bound for it stays until its verdict.
    pub fn begin(&mut self, rollout: RolloutId, prepared: Prepared) {
        for listener in prepared.bound {
            self.held.push(Held {
                listener,
                accepts: false,
                accepted: false,
            });
        }
        self.wishes.push(Wish {
            rollout,
            wanted: prepared.wanted,
            activated: false,
        });
    }

    /// The rollout's generation takes sockets. Whether a listener was opened by it.
    pub fn activated(&mut self, rollout: RolloutId) -> bool {
        for wish in &mut self.wishes {
            wish.activated |= wish.rollout == rollout;
        }
        let before = self.accepting().count();
        let uses = self.uses();
        for (held, what_for) in self.held.iter_mut().zip(uses) {
            held.accepts = what_for == Use::Accept;
            held.accepted |= held.accepts;
        }
        self.accepting().count() != before
    }

    /// The rollout has its verdict. Gives the listeners that nobody wants any more, and whether each was accepted from:
    /// then what waits in its backlog comes first.
    ///
    /// One that was superseded after it was activated serves on until the next one has its verdict: so do its listeners.
    pub fn concluded(&mut self, rollout: RolloutId, verdict: Outcome) -> Vec<(Listener, bool)> {
        let Some(at) = self.wishes.iter().position(|wish| wish.rollout == rollout) else {
            return Vec::new();
        };
        if verdict == Outcome::Superseded && self.wishes[at].activated {
            return Vec::new();
        }
        let wish = self.wishes.remove(at);
        self.wishes.retain(|earlier| earlier.rollout > rollout);
        let kept = verdict == Outcome::Kept;
        if kept {
            self.kept = wish.wanted;
        }
        let mut closing = Vec::new();
        let uses = self.uses();
        for (held, what_for) in std::mem::take(&mut self.held).into_iter().zip(uses) {
            match what_for {
                Use::Close => closing.push((held.listener, held.accepted)),
                what_for => self.held.push(Held {
                    accepts: what_for == Use::Accept,
                    accepted: held.accepted || what_for == Use::Accept,
                    ..held
                }),
            }
        }
        closing
    }

    /// The files of Unix sockets have these permissions from now on, but for those that are lent.
    pub fn permit(&self, mode: u32) {
        for Held { listener, .. } in &self.held {
            if let Some(file) = listener.file.as_ref().filter(|_| !listener.named.lent) {
                file.permit(mode);
            }
        }
    }

    /// All of them go, and nothing is wanted any more.
    pub fn take_all(&mut self) -> Vec<(Listener, bool)> {
        let all = std::mem::take(self).held.into_iter();
        all.map(|held| (held.listener, held.accepted)).collect()
    }

    fn named(&self) -> Vec<Named> {
        self.held
            .iter()
            .map(|held| held.listener.named().clone())
            .collect()
    }

    fn uses(&self) -> Vec<Use> {
        uses(&self.named(), &self.kept, &self.wishes)
    }
}

/// All addresses or none; only a loopback address of a family that this host does not have is left out, where there is
/// another one.
fn bind_all(
    wanted: &[ListenAddress],
    mode: u32,
    held: &[Held],
    is_all: bool,
) -> Result<Vec<Listener>, ListenError> {
    let ours: Vec<&Listener> = held.iter().map(|held| &held.listener).collect();
    let mut bound = Vec::new();
    let mut left_out = None;
    for address in wanted {
        match Listener::bind(address, mode, &ours) {
            Ok(listener) => bound.push(listener),
            Err(error @ ListenError::NoSuchAddress(..)) if is_loopback(address) => {
                left_out = Some(error);
            }
            Err(error) => {
                bound.into_iter().for_each(Listener::close);
                return Err(error);
            }
        }
    }
    match left_out {
        Some(error) if is_all && bound.is_empty() => Err(error),
        Some(error) => {
            tracing::warn!("{error}; going on without it");
            Ok(bound)
        }
        None => Ok(bound),
    }
}

fn is_loopback(address: &ListenAddress) -> bool {
    address
        .socket_addr()
        .is_some_and(|address| address.ip().is_loopback())
}
