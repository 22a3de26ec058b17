//! Whether what the feed offers is to be installed: values in, a choice out. Whether a host takes an offer at all is
//! [`staging::policy`]'s business; here it meets what is installed and what runs.

use jiff::{SignedDuration, Timestamp};
use staging::policy::{self, Offer, Skip};
use staging::selection::Selection;
use staging::update_state::UpdateState;
use staging::version::PackageVersion;

/// No next attempt lies further ahead; one that does was written by a clock that has stepped back since.
const FURTHEST: SignedDuration = SignedDuration::from_hours(24);

/// What is known about this host.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// What the launcher starts.
    pub selection: Option<&'a Selection>,
    /// What earlier jobs and rollouts left.
    pub state: &'a UpdateState,
    /// The version of the supervisor, if one runs.
    pub running: Option<&'a PackageVersion>,
    /// The published versions.
    pub installed: &'a [PackageVersion],
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// Bring it here, then ask for the rollout.
    Install,
    /// It is here already, from exactly this archive: ask for the rollout.
    Roll,
    /// Nothing, and why.
    Skip(Skip),
    /// Nothing leads on from what runs here without a person.
    DeadEnd {
        /// What runs here.
        current: PackageVersion,
        /// Why, in the publisher's words.
        reason: String,
    },
    /// It cannot be updated to from here.
    Barrier {
        /// The lowest version that may be updated from.
        minimum: PackageVersion,
        /// What runs here.
        current: PackageVersion,
    },
}

/// What the feed says about the way from here to its offer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Way<'a> {
    /// The lowest version that the offer may be updated from.
    pub minimum: Option<&'a PackageVersion>,
    /// Why no update leads on from [`Facts::current`].
    pub dead_end: Option<&'a str>,
}

impl Facts<'_> {
    /// What is updated from: the selected version; where none is, what runs.
    pub fn current(&self) -> Option<&PackageVersion> {
        let selected = self.selection.map(|selection| &selection.version);
        selected.or(self.running)
    }
}

/// Chooses.
pub fn choose(offer: &Offer, way: Way<'_>, facts: Facts<'_>) -> Choice {
    let Facts {
        selection,
        state,
        installed,
        ..
    } = facts;
    if let Err(skip) = policy::consider(offer, selection, state) {
        return Choice::Skip(skip);
    }
    let current = facts.current();
    // Nothing selected, but something runs: it counts as if it were selected.
    match current {
        Some(current) if *current == offer.version => {
            return Choice::Skip(Skip::Current {
                version: current.clone(),
            });
        }
        Some(current) if offer.version < *current => {
            return Choice::Skip(Skip::Older {
                offered: offer.version.clone(),
                selected: current.clone(),
            });
        }
        _ => {}
    }
    if let (Some(reason), Some(current)) = (way.dead_end, current) {
        return Choice::DeadEnd {
            current: current.clone(),
            reason: reason.to_owned(),
        };
    }
    if let (Some(minimum), Some(current)) = (way.minimum, current)
        && current < minimum
    {
        return Choice::Barrier {
            minimum: minimum.clone(),
            current: current.clone(),
        };
    }
    let same_archive = state.archives.get(&offer.version) == Some(&offer.archive);
    if same_archive && installed.contains(&offer.version) {
        Choice::Roll
    } else {
        Choice::Install
    }
}

/// The moment before which this run does not ask the feed, if it is still to come.
pub fn too_early(state: &UpdateState, now: Timestamp) -> Option<Timestamp> {
    state
        .next_attempt
        .filter(|next| *next > now && next.duration_since(now) <= FURTHEST)
}

/// The word for a reason to do nothing.
pub fn word(skip: &Skip) -> &'static str {
    match skip {
        Skip::Pinned { .. } => "pinned",
        Skip::Current { .. } => "upToDate",
        Skip::BelowFloor { .. } => "belowFloor",
        Skip::Older { .. } => "older",
        Skip::KnownBad { .. } => "knownBad",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> PackageVersion {
        text.parse().unwrap()
    }

    fn selection(text: &str, pinned: bool) -> Selection {
        Selection {
            schema: 1,
            serial: 3,
            version: version(text),
            previous: None,
            pinned,
            by: "job".to_owned(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    /// What the table varies.
    struct Host {
        selected: Option<Selection>,
        running: Option<&'static str>,
        floor: Option<&'static str>,
        bad: bool,
        minimum: Option<&'static str>,
        dead_end: Option<&'static str>,
        installed: &'static [&'static str],
        archive: Option<&'static str>,
    }

    const BARE: Host = Host {
        selected: None,
        running: None,
        floor: None,
        bad: false,
        minimum: None,
        dead_end: None,
        installed: &[],
        archive: None,
    };

    /// The word for what a host does about 1.5.0 with the digest `d`.
    fn chosen(host: Host) -> &'static str {
        let offer = Offer {
            version: version("1.5.0"),
            archive: "d".to_owned(),
        };
        let mut state = UpdateState {
            floor: host.floor.map(version),
            ..UpdateState::default()
        };
        if host.bad {
            state.mark_bad("d", &offer.version, "crashed", Timestamp::UNIX_EPOCH);
        }
        if let Some(archive) = host.archive {
            state
                .archives
                .insert(offer.version.clone(), archive.to_owned());
        }
        let installed: Vec<_> = host.installed.iter().copied().map(version).collect();
        let running = host.running.map(version);
        let facts = Facts {
            selection: host.selected.as_ref(),
            state: &state,
            running: running.as_ref(),
            installed: &installed,
        };
        let minimum = host.minimum.map(version);
        let way = Way {
            minimum: minimum.as_ref(),
            dead_end: host.dead_end,
        };
        match choose(&offer, way, facts) {
            Choice::DeadEnd { .. } => "deadEnd",
            Choice::Install => "install",
            Choice::Roll => "roll",
            Choice::Barrier { .. } => "barrier",
            Choice::Skip(skip) => word(&skip),
        }
    }

    #[test]
    fn every_rule_and_their_order() {
        let at = |text| Some(selection(text, false));
        let table = [
            ("a first install", BARE, "install"),
            (
                "newer than selected",
                Host {
                    selected: at("1.4.0"),
                    ..BARE
                },
                "install",
            ),
            (
                "selected already",
                Host {
                    selected: at("1.5.0"),
                    ..BARE
                },
                "upToDate",
            ),
            (
                "runs already, nothing selected",
                Host {
                    running: Some("1.5.0"),
                    ..BARE
                },
                "upToDate",
            ),
            (
                "runs newer, nothing selected",
                Host {
                    running: Some("1.6.0"),
                    ..BARE
                },
                "older",
            ),
            (
                "selected is newer",
                Host {
                    selected: at("1.6.0"),
                    ..BARE
                },
                "older",
            ),
            (
                "pinned",
                Host {
                    selected: Some(selection("1.4.0", true)),
                    ..BARE
                },
                "pinned",
            ),
            (
                "below what was kept",
                Host {
                    selected: at("1.4.0"),
                    floor: Some("1.6.0"),
                    ..BARE
                },
                "belowFloor",
            ),
            (
                "at the floor, after a person went back and unpinned",
                Host {
                    selected: at("1.4.0"),
                    floor: Some("1.5.0"),
                    ..BARE
                },
                "install",
            ),
            (
                "known bad",
                Host {
                    selected: at("1.4.0"),
                    bad: true,
                    ..BARE
                },
                "knownBad",
            ),
            (
                "known bad outweighs a barrier",
                Host {
                    selected: at("1.4.0"),
                    bad: true,
                    minimum: Some("1.4.5"),
                    ..BARE
                },
                "knownBad",
            ),
            (
                "below the minimum",
                Host {
                    selected: at("1.4.0"),
                    minimum: Some("1.4.5"),
                    ..BARE
                },
                "barrier",
            ),
            (
                "running below the minimum",
                Host {
                    running: Some("1.4.0"),
                    minimum: Some("1.4.5"),
                    ..BARE
                },
                "barrier",
            ),
            (
                "at the minimum",
                Host {
                    selected: at("1.4.5"),
                    minimum: Some("1.4.5"),
                    ..BARE
                },
                "install",
            ),
            (
                "a minimum holds nobody back who has nothing",
                Host {
                    minimum: Some("1.4.5"),
                    ..BARE
                },
                "install",
            ),
            (
                "at a dead end",
                Host {
                    selected: at("1.4.0"),
                    dead_end: Some("the disk format changes"),
                    minimum: Some("1.4.5"),
                    ..BARE
                },
                "deadEnd",
            ),
            (
                "a dead end that is pinned is a person's business already",
                Host {
                    selected: Some(selection("1.4.0", true)),
                    dead_end: Some("the disk format changes"),
                    ..BARE
                },
                "pinned",
            ),
            (
                "published already",
                Host {
                    selected: at("1.4.0"),
                    installed: &["1.5.0"],
                    archive: Some("d"),
                    ..BARE
                },
                "roll",
            ),
            (
                "published from another archive",
                Host {
                    selected: at("1.4.0"),
                    installed: &["1.5.0"],
                    archive: Some("e"),
                    ..BARE
                },
                "install",
            ),
            (
                "published from who knows where",
                Host {
                    selected: at("1.4.0"),
                    installed: &["1.5.0"],
                    ..BARE
                },
                "install",
            ),
            (
                "known once, removed since",
                Host {
                    selected: at("1.4.0"),
                    archive: Some("d"),
                    ..BARE
                },
                "install",
            ),
        ];
        for (case, host, expected) in table {
            assert_eq!(chosen(host), expected, "{case}");
        }
    }

    #[test]
    fn the_next_attempt_holds_until_it_is_due_and_a_mad_one_does_not() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let with = |next: &str| UpdateState {
            next_attempt: Some(next.parse().unwrap()),
            ..UpdateState::default()
        };
        for (next, holds) in [
            ("2026-01-02T03:04:04Z", false),
            ("2026-01-02T03:04:05Z", false),
            ("2026-01-02T03:05:05Z", true),
            ("2031-01-02T03:04:05Z", false),
        ] {
            assert_eq!(too_early(&with(next), now).is_some(), holds, "{next}");
        }
        assert_eq!(too_early(&UpdateState::default(), now), None);
    }
}
