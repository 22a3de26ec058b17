//! What all connections of a relay are told, and what may follow what.

use std::os::fd::OwnedFd;

use tokio::sync::mpsc;

/// What all connections are told.
#[derive(Debug, Clone)]
pub(super) enum Phase {
    /// Serve.
    Serving,
    /// Serve what is in flight; what is idle goes there. May be taken back.
    GivingBack(mpsc::UnboundedSender<OwnedFd>),
    /// Finish what is in flight, and get rid of what is idle.
    Draining(Drain),
    /// Cut everything.
    Aborted,
}

/// What becomes of connections that are between two exchanges.
#[derive(Debug, Clone)]
pub enum Drain {
    /// They are closed; answers whose head is not written yet say so.
    Close,
    /// They are sent here, open and without a byte lost, and no answer says anything. When nobody
    /// receives, they are closed.
    GiveBack(mpsc::UnboundedSender<OwnedFd>),
}

impl Phase {
    /// As before a giving back. Says whether that changes anything: a drain is for good.
    pub(super) fn serve(&mut self) -> bool {
        let changes = matches!(self, Self::GivingBack(_));
        if changes {
            *self = Self::Serving;
        }
        changes
    }

    /// Idle connections go to `to`. Says whether that changes anything.
    pub(super) fn give_back(&mut self, to: mpsc::UnboundedSender<OwnedFd>) -> bool {
        let changes = matches!(self, Self::Serving);
        if changes {
            *self = Self::GivingBack(to);
        }
        changes
    }

    /// Says whether that changes anything: who drains may still have to close what it would have given back.
    pub(super) fn drain(&mut self, how: Drain) -> bool {
        let changes = match self {
            Self::Serving | Self::GivingBack(_) => true,
            Self::Draining(Drain::GiveBack(_)) => matches!(how, Drain::Close),
            Self::Draining(Drain::Close) | Self::Aborted => false,
        };
        if changes {
            *self = Self::Draining(how);
        }
        changes
    }

    /// Whether there is an end in sight.
    pub(super) fn is_last(&self) -> bool {
        matches!(self, Self::Draining(_) | Self::Aborted)
    }

    /// What becomes of connections between two requests; `None`: they are kept.
    pub(super) fn for_idle(&self) -> Option<Drain> {
        match self {
            Self::Serving => None,
            Self::GivingBack(to) => Some(Drain::GiveBack(to.clone())),
            Self::Draining(drain) => Some(drain.clone()),
            Self::Aborted => Some(Drain::Close),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> [Phase; 5] {
        let (to, _) = mpsc::unbounded_channel();
        [
            Phase::Serving,
            Phase::GivingBack(to.clone()),
            Phase::Draining(Drain::GiveBack(to)),
            Phase::Draining(Drain::Close),
            Phase::Aborted,
        ]
    }

    fn name(phase: &Phase) -> &'static str {
        match phase {
            Phase::Serving => "serving",
            Phase::GivingBack(_) => "giving back",
            Phase::Draining(Drain::GiveBack(_)) => "draining",
            Phase::Draining(Drain::Close) => "closing",
            Phase::Aborted => "aborted",
        }
    }

    /// What becomes of each phase when it is told something, and whether it says so.
    fn after(tell: impl Fn(&mut Phase) -> bool) -> [&'static str; 5] {
        all().map(|mut phase| {
            let before = name(&phase);
            assert_eq!(tell(&mut phase), name(&phase) != before);
            name(&phase)
        })
    }

    #[test]
    fn only_giving_back_can_be_taken_back_and_nothing_leads_back_from_an_end() {
        let (to, _) = mpsc::unbounded_channel();
        assert_eq!(
            after(Phase::serve),
            ["serving", "serving", "draining", "closing", "aborted"]
        );
        assert_eq!(
            after(|phase| phase.give_back(to.clone())),
            [
                "giving back",
                "giving back",
                "draining",
                "closing",
                "aborted"
            ]
        );
        assert_eq!(
            after(|phase| phase.drain(Drain::GiveBack(to.clone()))),
            ["draining", "draining", "draining", "closing", "aborted"]
        );
        assert_eq!(
            after(|phase| phase.drain(Drain::Close)),
            ["closing", "closing", "closing", "closing", "aborted"]
        );
    }
}
