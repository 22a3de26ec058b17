//! What a worker was told about its place, and what follows from it.

/// The place of this generation, as far as it was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Place {
    /// Not activated yet.
    #[default]
    Candidate,
    /// New sockets come here.
    Active,
    /// It keeps what is in flight, and may become active again.
    Standby,
    /// It finishes what is in flight and exits.
    Draining,
    /// The same, and nobody is there to take connections over.
    Closing,
}

impl Place {
    /// What `/status` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Candidate => "candidate",
            Self::Active => "active",
            Self::Standby => "standby",
            Self::Draining | Self::Closing => "draining",
        }
    }
}

/// What becomes of connections that are between two requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// They are served here.
    Keep,
    /// They go back, until we are told otherwise.
    GiveBack,
    /// They go back, for good.
    Drain,
    /// They are closed.
    Close,
}

/// All that a worker was told that outlives the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stance {
    /// Its place.
    pub place: Place,
    /// No new request is begun for now.
    pub paused: bool,
    /// It was told to say so at `/ready`.
    pub unready: bool,
}

impl Stance {
    /// `activate`. False for a worker that has begun to end: it does not come back.
    pub fn activate(&mut self) -> bool {
        let ends = self.is_ending();
        if !ends {
            self.place = Place::Active;
        }
        !ends
    }

    /// `standby`.
    pub fn stand_by(&mut self) {
        if !self.is_ending() {
            self.place = Place::Standby;
        }
    }

    /// `drain`; `close`: nobody takes connections over.
    pub fn drain(&mut self, close: bool) {
        self.place = match close || self.place == Place::Closing {
            true => Place::Closing,
            false => Place::Draining,
        };
    }

    /// Whether it exits when nothing is left.
    pub fn is_ending(&self) -> bool {
        matches!(self.place, Place::Draining | Place::Closing)
    }

    /// Why a socket that is offered now is not taken.
    pub fn refuses(&self) -> Option<&'static str> {
        match self.place {
            Place::Draining | Place::Closing => Some("draining"),
            Place::Standby => Some("standby"),
            Place::Candidate | Place::Active => self.paused.then_some("paused"),
        }
    }

    /// What becomes of idle connections.
    pub fn idle(&self) -> Idle {
        match self.place {
            Place::Closing => Idle::Close,
            Place::Draining => Idle::Drain,
            Place::Standby => Idle::GiveBack,
            Place::Candidate | Place::Active if self.paused => Idle::GiveBack,
            Place::Candidate | Place::Active => Idle::Keep,
        }
    }

    /// What `/ready` says. It is asked about the service as a whole: whoever reaches a standby or a draining generation
    /// does so on a connection that the next request may carry to the active one.
    pub fn is_ready(&self) -> bool {
        !self.unready && !matches!(self.place, Place::Candidate | Place::Closing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Stance> {
        let places = [
            Place::Candidate,
            Place::Active,
            Place::Standby,
            Place::Draining,
            Place::Closing,
        ];
        places
            .into_iter()
            .flat_map(|place| {
                [false, true].map(|paused| Stance {
                    place,
                    paused,
                    unready: false,
                })
            })
            .collect()
    }

    #[test]
    fn each_stance_refuses_keeps_and_gives_back_as_its_place_says() {
        let wanted = [
            (None, Idle::Keep, false),
            (Some("paused"), Idle::GiveBack, false),
            (None, Idle::Keep, true),
            (Some("paused"), Idle::GiveBack, true),
            (Some("standby"), Idle::GiveBack, true),
            (Some("standby"), Idle::GiveBack, true),
            (Some("draining"), Idle::Drain, true),
            (Some("draining"), Idle::Drain, true),
            (Some("draining"), Idle::Close, false),
            (Some("draining"), Idle::Close, false),
        ];
        for (stance, (refuses, idle, ready)) in all().into_iter().zip(wanted) {
            assert_eq!(stance.refuses(), refuses, "{stance:?}");
            assert_eq!(stance.idle(), idle, "{stance:?}");
            assert_eq!(stance.is_ready(), ready, "{stance:?}");
            let unready = Stance {
                unready: true,
                ..stance
            };
            assert!(!unready.is_ready(), "{stance:?}");
        }
    }

    #[test]
    fn who_has_begun_to_end_neither_stands_by_nor_becomes_active() {
        for mut stance in all() {
            let before = stance;
            assert_eq!(stance.activate(), !before.is_ending());
            stance.stand_by();
            match before.is_ending() {
                true => assert_eq!(stance, before),
                false => assert_eq!(stance.place, Place::Standby),
            }
            stance.drain(false);
            assert!(stance.is_ending());
            assert_eq!(
                stance.place == Place::Closing,
                before.place == Place::Closing
            );
            stance.drain(true);
            assert_eq!(stance.place, Place::Closing);
        }
    }
}
