//! Whether what the feed offers is to be installed: values in, a choice out. Whether a host takes an offer at all is
//! [`staging::policy`]'s business; here it meets what is installed, what runs, and what time it is.
//!
//! The rules, in this order; the first that applies is the answer:
//!
//! 1. selected already, pinned by a person, below what was kept before, older than what is selected ([`heads`]);
//! 2. a barrier between what runs and the offer is taken in its place, the lowest first, though it may be below the floor;
//! 3. known bad here, refused here before, a dead end, below the minimum ([`choose`]);
//! 4. held by a person, not this host's turn yet, outside the update windows ([`waits`]): nothing is wrong, and it is not time.
//!
//! Where nothing is selected and nothing runs, a person waits for the first version: rule 4 does not apply. A person who says
//! `--now` passes a refusal, the turn and the windows, but neither pin nor hold nor a known-bad mark.

use jiff::{SignedDuration, Timestamp};
use staging::policy::{self, Offer, Skip};
use staging::report::{Exit, Failure};
use staging::selection::Selection;
use staging::update_state::{Refused, UpdateState};
use staging::version::PackageVersion;

use crate::feed::Ramp;
use crate::window::Windows;

/// No next attempt lies further ahead; one that does was written by a clock that has stepped back since.
const FURTHEST: SignedDuration = SignedDuration::from_hours(24);
/// This updater, as far as refusals are concerned.
pub const JUDGE: &str = env!("CARGO_PKG_VERSION");

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

/// Where a job heads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heading {
    /// To what the channel offers.
    Offer,
    /// To a version on the way, that must have run before.
    Barrier(PackageVersion),
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
    /// Nothing now.
    Wait(Waiting),
    /// Nothing: this very archive could not be installed here.
    Refused(Refused),
    /// Nothing leads on from what runs here without a person.
    DeadEnd {
        /// What runs here.
        current: PackageVersion,
        /// Why, in the publisher's words.
        reason: String,
    },
    /// It cannot be updated to from here.
    BelowMinimum {
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

/// What time it is, for this host and one archive.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// Now.
    pub now: Timestamp,
    /// Whether a person said `--now`.
    pub at_once: bool,
    /// How the archive reaches hosts over time.
    pub ramp: Option<&'a Ramp>,
    /// Where this host stands among them.
    pub position: u64,
    /// When a job may roll.
    pub windows: &'a Windows,
}

/// Why it is not time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// A person holds updates.
    Held {
        /// Until then.
        until: Timestamp,
    },
    /// Other hosts come first.
    NotYet {
        /// This host's turn.
        turn: Timestamp,
    },
    /// It is outside the update windows.
    Window,
}

/// A wait, and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// Why.
    pub why: Why,
    /// The first moment at which nothing is in the way any more; none = the windows never open.
    pub at: Option<Timestamp>,
}

impl Facts<'_> {
    /// What is updated from: the selected version; where none is, what runs.
    pub fn current(&self) -> Option<&PackageVersion> {
        let selected = self.selection.map(|selection| &selection.version);
        selected.or(self.running)
    }
}

impl Waiting {
    /// The word for it.
    pub fn word(&self) -> &'static str {
        match self.why {
            Why::Held { .. } => "held",
            Why::NotYet { .. } => "notYet",
            Why::Window => "window",
        }
    }
}

impl std::fmt::Display for Waiting {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ends = match self.why {
            Why::Held { until } => {
                write!(
                    formatter,
                    "updates are held until {until} (end that with `rollproxy-updater hold off`)"
                )?;
                Some(until)
            }
            Why::NotYet { turn } => {
                write!(
                    formatter,
                    "it reaches hosts over time, and this host's turn comes at {turn}"
                )?;
                Some(turn)
            }
            Why::Window => {
                formatter.write_str("it is outside the update windows (update.windows)")?;
                None
            }
        };
        match self.at {
            Some(at) if Some(at) == ends => Ok(()),
            Some(at) => write!(formatter, "; it can be taken at {at}"),
            None => formatter.write_str("; the windows never open"),
        }
    }
}

/// Where a job heads when a channel offers `offered` and names `barriers`.
///
/// # Errors
/// Why it stays where it is.
pub fn heads(
    offered: &PackageVersion,
    barriers: &[PackageVersion],
    facts: Facts<'_>,
) -> Result<Heading, Skip> {
    policy::follows(offered, facts.selection, facts.state)?;
    let Some(current) = facts.current() else {
        return Ok(Heading::Offer);
    };
    // Nothing selected, but something runs: it counts as if it were selected.
    if current == offered {
        return Err(Skip::Current {
            version: current.clone(),
        });
    }
    if offered < current {
        return Err(Skip::Older {
            offered: offered.clone(),
            selected: current.clone(),
        });
    }
    let between = |barrier: &&PackageVersion| current < *barrier && *barrier < offered;
    Ok(match barriers.iter().filter(between).min() {
        Some(barrier) => Heading::Barrier(barrier.clone()),
        None => Heading::Offer,
    })
}

/// Chooses, once it is known where the job heads.
pub fn choose(offer: &Offer, way: Way<'_>, facts: Facts<'_>, terms: Terms<'_>) -> Choice {
    let state = facts.state;
    if let Err(skip) = policy::trusts(offer, state) {
        return Choice::Skip(skip);
    }
    if let Some(refused) = refused(&offer.archive, state, terms.at_once) {
        return Choice::Refused(refused.clone());
    }
    let current = facts.current();
    if let (Some(reason), Some(current)) = (way.dead_end, current) {
        return Choice::DeadEnd {
            current: current.clone(),
            reason: reason.to_owned(),
        };
    }
    if let (Some(minimum), Some(current)) = (way.minimum, current)
        && current < minimum
    {
        return Choice::BelowMinimum {
            minimum: minimum.clone(),
            current: current.clone(),
        };
    }
    if let Some(waiting) = current.and_then(|_| waits(state, terms)) {
        return Choice::Wait(waiting);
    }
    let same_archive = state.archives.get(&offer.version) == Some(&offer.archive);
    if same_archive && facts.installed.contains(&offer.version) {
        Choice::Roll
    } else {
        Choice::Install
    }
}

/// Whether it is not time for an update that nothing else stands against.
pub fn waits(state: &UpdateState, terms: Terms<'_>) -> Option<Waiting> {
    let now = terms.now;
    let held = state.held(now);
    let turn = terms
        .ramp
        .filter(|_| !terms.at_once)
        .map(|ramp| turn(ramp, terms.position))
        .filter(|turn| *turn > now);
    let first = [held, turn].into_iter().flatten().fold(now, Timestamp::max);
    let at = if terms.at_once {
        Some(first)
    } else {
        terms.windows.opens(first)
    };
    let why = match (held, turn) {
        (Some(until), _) => Why::Held { until },
        (None, Some(turn)) => Why::NotYet { turn },
        (None, None) if at == Some(now) => return None,
        (None, None) => Why::Window,
    };
    Some(Waiting { why, at })
}

/// The moment at which the share of hosts that take an archive reaches the one at `position`: `share` percent of them at the
/// start, then more and more, evenly, until all of them do at the end.
pub fn turn(ramp: &Ramp, position: u64) -> Timestamp {
    const ALL: u128 = 1 << 64;
    let position = u128::from(position);
    let at_the_start = u128::from(ramp.share.min(100)) * ALL / 100;
    if position < at_the_start {
        return ramp.start;
    }
    // What is left is more than nothing: the position is below all.
    let after = u128::from(ramp.duration_ms) * (position - at_the_start) / (ALL - at_the_start);
    i64::try_from(after)
        .ok()
        .and_then(|after| {
            ramp.start
                .checked_add(SignedDuration::from_millis(after))
                .ok()
        })
        .unwrap_or(Timestamp::MAX)
}

/// The refusal that stands against an archive, unless a person wants it tried again.
pub fn refused<'a>(archive: &str, state: &'a UpdateState, at_once: bool) -> Option<&'a Refused> {
    state.refused(archive, JUDGE).filter(|_| !at_once)
}

/// Whether a failure of bringing or publishing is the archive's own, so that bringing the same bytes again cannot help. The
/// digest was right: what is wrong with it was signed.
pub fn is_the_archives(failure: &Failure) -> bool {
    const OF_THE_FEED: [&str; 3] = ["ARCHIVE_MISSING", "ARCHIVE_LENGTH", "ARCHIVE_DIGEST"];
    const OTHERS: [&str; 6] = [
        "TARGET_MISMATCH",
        "CHANNEL_MISMATCH",
        "VERSION_MISMATCH",
        "PACKAGE_CHANGED_ITSELF",
        "ENTRY_FAILED",
        "PUBLISHED_DIFFERENT",
    ];
    let code = failure.code.as_str();
    let contents = ["ARCHIVE_", "MANIFEST_", "FILE_"];
    !failure.retry
        && failure.exit == Exit::Failed
        && !OF_THE_FEED.contains(&code)
        && !["READ", "WRITE"].iter().any(|end| code.ends_with(end))
        && (OTHERS.contains(&code) || contents.iter().any(|start| code.starts_with(start)))
}

/// Whether everything that a job goes on from is still as it was when it began; `ours` is the job itself, whose own step is no
/// change. What woke up after a newer job finished must neither overwrite nor roll back what that one did.
pub fn is_unchanged(saw: &Stood, now: &Stood, ours: Option<&str>) -> bool {
    let pending =
        saw.pending == now.pending || (now.pending.is_some() && now.pending.as_deref() == ours);
    saw.serial == now.serial && pending
}

/// What stands: the selection's serial, and the job whose version waits for its rollout.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stood {
    /// The selection's serial; none = nothing is selected.
    pub serial: Option<u64>,
    /// The job that set a version pending.
    pub pending: Option<String>,
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
    use crate::window::Window;
    use jiff::tz::TimeZone;

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
    #[derive(Clone, Copy)]
    struct Host {
        selected: Option<(&'static str, bool)>,
        running: Option<&'static str>,
        floor: Option<&'static str>,
        bad: bool,
        minimum: Option<&'static str>,
        dead_end: Option<&'static str>,
        installed: &'static [&'static str],
        archive: Option<&'static str>,
        barriers: &'static [&'static str],
        refused: bool,
        held: bool,
        ramp: bool,
        windows: bool,
        at_once: bool,
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
        barriers: &[],
        refused: false,
        held: false,
        ramp: false,
        windows: false,
        at_once: false,
    };

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn refusal(archive: &str) -> Refused {
        Refused {
            archive: archive.to_owned(),
            version: version("1.5.0"),
            code: "ENTRY_FAILED".to_owned(),
            message: "it does not start".to_owned(),
            at: Timestamp::UNIX_EPOCH,
            by: JUDGE.to_owned(),
        }
    }

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
        if host.refused {
            state.refused = Some(refusal("d"));
        }
        if host.held {
            state.hold_until = Some(at("2026-03-06T12:00:00Z"));
        }
        if let Some(archive) = host.archive {
            state
                .archives
                .insert(offer.version.clone(), archive.to_owned());
        }
        let installed: Vec<_> = host.installed.iter().copied().map(version).collect();
        let running = host.running.map(version);
        let selected = host.selected.map(|(text, pinned)| selection(text, pinned));
        let facts = Facts {
            selection: selected.as_ref(),
            state: &state,
            running: running.as_ref(),
            installed: &installed,
        };
        let minimum = host.minimum.map(version);
        let way = Way {
            minimum: minimum.as_ref(),
            dead_end: host.dead_end,
        };
        let barriers: Vec<_> = host.barriers.iter().copied().map(version).collect();
        match heads(&offer.version, &barriers, facts) {
            Err(skip) => return word(&skip),
            Ok(Heading::Barrier(_)) => return "barrier",
            Ok(Heading::Offer) => {}
        }
        let ramp = Ramp {
            start: at("2026-03-06T10:00:00Z"),
            share: 0,
            duration_ms: 0,
        };
        let windows = if host.windows {
            vec![Window::parse("02:00-04:00").unwrap()]
        } else {
            Vec::new()
        };
        let terms = Terms {
            now: at("2026-03-06T09:00:00Z"),
            at_once: host.at_once,
            ramp: host.ramp.then_some(&ramp),
            position: 7,
            windows: &Windows::new(windows, TimeZone::UTC),
        };
        match choose(&offer, way, facts, terms) {
            Choice::DeadEnd { .. } => "deadEnd",
            Choice::Install => "install",
            Choice::Roll => "roll",
            Choice::BelowMinimum { .. } => "belowMinimum",
            Choice::Refused(_) => "refused",
            Choice::Wait(waiting) => waiting.word(),
            Choice::Skip(skip) => word(&skip),
        }
    }

    #[test]
    fn every_rule_and_their_order() {
        let at = |text| Some((text, false));
        let all = Host {
            selected: at("1.4.0"),
            refused: true,
            dead_end: Some("x"),
            minimum: Some("1.4.5"),
            held: true,
            ramp: true,
            windows: true,
            ..BARE
        };
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
                    selected: Some(("1.4.0", true)),
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
                "known bad outweighs a minimum",
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
                "belowMinimum",
            ),
            (
                "running below the minimum",
                Host {
                    running: Some("1.4.0"),
                    minimum: Some("1.4.5"),
                    ..BARE
                },
                "belowMinimum",
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
                    selected: Some(("1.4.0", true)),
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
            ("a refusal outweighs all that follows", all, "refused"),
            (
                "a person does not wait, but holds and ends",
                Host {
                    at_once: true,
                    ..all
                },
                "deadEnd",
            ),
            (
                "a minimum outweighs the time",
                Host {
                    dead_end: None,
                    refused: false,
                    ..all
                },
                "belowMinimum",
            ),
            (
                "a hold outweighs turn and windows",
                Host {
                    dead_end: None,
                    refused: false,
                    minimum: None,
                    ..all
                },
                "held",
            ),
            (
                "also for a person who says now",
                Host {
                    dead_end: None,
                    minimum: None,
                    at_once: true,
                    ..all
                },
                "held",
            ),
            (
                "a turn outweighs windows",
                Host {
                    dead_end: None,
                    refused: false,
                    minimum: None,
                    held: false,
                    ..all
                },
                "notYet",
            ),
            (
                "a window that is closed",
                Host {
                    selected: at("1.4.0"),
                    windows: true,
                    ..BARE
                },
                "window",
            ),
            (
                "a person passes a refusal, the turn and the windows",
                Host {
                    selected: at("1.4.0"),
                    refused: true,
                    ramp: true,
                    windows: true,
                    at_once: true,
                    ..BARE
                },
                "install",
            ),
            (
                "a first install waits for nothing",
                Host {
                    held: true,
                    ramp: true,
                    windows: true,
                    ..BARE
                },
                "install",
            ),
            (
                "what runs and is not selected waits",
                Host {
                    running: Some("1.4.0"),
                    held: true,
                    ..BARE
                },
                "held",
            ),
            (
                "a barrier between",
                Host {
                    selected: at("1.2.0"),
                    barriers: &["1.3.0"],
                    bad: true,
                    ..BARE
                },
                "barrier",
            ),
            (
                "a barrier that runs, one passed, and one beyond",
                Host {
                    selected: at("1.3.0"),
                    barriers: &["1.2.0", "1.3.0", "1.5.0", "1.6.0"],
                    ..BARE
                },
                "install",
            ),
            (
                "a pin stops before a barrier",
                Host {
                    selected: Some(("1.2.0", true)),
                    barriers: &["1.3.0"],
                    ..BARE
                },
                "pinned",
            ),
            (
                "a barrier holds nobody back who has nothing",
                Host {
                    barriers: &["1.3.0"],
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

    #[test]
    fn the_lowest_barrier_above_what_runs_is_first() {
        let state = UpdateState::default();
        let barriers = ["1.10.0", "1.9.0", "2.0.0", "1.4.0"].map(version);
        for (current, expected) in [
            ("1.3.0", Some("1.4.0")),
            ("1.4.0", Some("1.9.0")),
            ("1.9.0-rc.1", Some("1.9.0")),
            ("1.9.0", Some("1.10.0")),
            ("1.10.0", None),
        ] {
            let selected = selection(current, false);
            let facts = Facts {
                selection: Some(&selected),
                state: &state,
                running: None,
                installed: &[],
            };
            let heading = heads(&version("2.0.0"), &barriers, facts).unwrap();
            let expected =
                expected.map_or(Heading::Offer, |barrier| Heading::Barrier(version(barrier)));
            assert_eq!(heading, expected, "{current}");
        }
    }

    #[test]
    fn a_barrier_may_be_below_the_floor_and_the_offer_may_not() {
        let mut state = UpdateState::default();
        state.kept(&version("1.4.0"));
        let selected = selection("1.1.0", false);
        let facts = Facts {
            selection: Some(&selected),
            state: &state,
            running: None,
            installed: &[],
        };
        let barriers = [version("1.2.0")];
        assert_eq!(
            heads(&version("1.5.0"), &barriers, facts).unwrap(),
            Heading::Barrier(version("1.2.0"))
        );
        let below = heads(&version("1.3.0"), &barriers, facts).unwrap_err();
        assert_eq!(word(&below), "belowFloor");
    }

    #[test]
    fn the_share_of_hosts_grows_evenly_from_its_start_to_all() {
        let ramp = |share, hours: u64| Ramp {
            start: at("2026-03-06T00:00:00Z"),
            share,
            duration_ms: hours * 3_600_000,
        };
        let half = u64::MAX / 2 + 1;
        for (share, hours, position, expected) in [
            (0, 10, 0, "2026-03-06T00:00:00Z"),
            (0, 10, half, "2026-03-06T05:00:00Z"),
            (0, 10, u64::MAX, "2026-03-06T09:59:59.999Z"),
            (50, 10, half - 1, "2026-03-06T00:00:00Z"),
            (50, 10, half, "2026-03-06T00:00:00Z"),
            (50, 10, half + half / 2, "2026-03-06T05:00:00Z"),
            (100, 10, u64::MAX, "2026-03-06T00:00:00Z"),
            (0, 0, u64::MAX, "2026-03-06T00:00:00Z"),
        ] {
            let turn = turn(&ramp(share, hours), position);
            assert_eq!(turn, at(expected), "{share} {position}");
        }
        let never = Ramp {
            duration_ms: u64::MAX,
            ..ramp(0, 0)
        };
        assert_eq!(turn(&never, u64::MAX), Timestamp::MAX);
        // At any moment, the share of hosts whose turn has come is the one that the ramp says.
        let ramp = ramp(20, 10);
        let hosts = (0..1000).map(|host| host * (u64::MAX / 1000));
        let turns: Vec<_> = hosts.map(|position| turn(&ramp, position)).collect();
        for (hour, share) in [(0, 200), (5, 600), (10, 1000)] {
            let now = ramp.start + SignedDuration::from_hours(hour);
            let come = turns.iter().filter(|turn| **turn <= now).count();
            assert!(come.abs_diff(share) <= 2, "{hour}: {come}");
        }
    }

    #[test]
    fn a_wait_says_when_everything_is_out_of_the_way() {
        let ramp = Ramp {
            start: at("2026-03-08T10:00:00Z"),
            share: 100,
            duration_ms: 0,
        };
        let mut state = UpdateState {
            hold_until: Some(at("2026-03-07T03:30:00Z")),
            ..UpdateState::default()
        };
        let windows = Windows::new(vec![Window::parse("02:00-04:00").unwrap()], TimeZone::UTC);
        let mut terms = Terms {
            now: at("2026-03-06T03:00:00Z"),
            at_once: false,
            ramp: None,
            position: 7,
            windows: &windows,
        };
        let waiting = waits(&state, terms).unwrap();
        assert_eq!(
            (waiting.word(), waiting.at),
            ("held", Some(at("2026-03-07T03:30:00Z")))
        );
        assert!(
            waiting
                .to_string()
                .ends_with("`rollproxy-updater hold off`)"),
            "{waiting}"
        );
        terms.ramp = Some(&ramp);
        let waiting = waits(&state, terms).unwrap();
        assert_eq!(
            (waiting.word(), waiting.at),
            ("held", Some(at("2026-03-09T02:00:00Z")))
        );
        assert!(
            waiting
                .to_string()
                .ends_with("can be taken at 2026-03-09T02:00:00Z"),
            "{waiting}"
        );
        state.hold_until = Some(terms.now);
        let waiting = waits(&state, terms).unwrap();
        assert_eq!(
            (waiting.word(), waiting.at),
            ("notYet", Some(at("2026-03-09T02:00:00Z")))
        );
        terms.ramp = None;
        assert_eq!(waits(&state, terms), None);
        terms.now = at("2026-03-06T04:00:00Z");
        let waiting = waits(&state, terms).unwrap();
        assert_eq!(
            (waiting.word(), waiting.at),
            ("window", Some(at("2026-03-07T02:00:00Z")))
        );
    }

    #[test]
    fn a_refusal_is_of_one_archive_and_one_updater() {
        let mut state = UpdateState {
            refused: Some(refusal("d")),
            ..UpdateState::default()
        };
        assert!(refused("d", &state, false).is_some());
        assert!(refused("d", &state, true).is_none());
        assert!(refused("e", &state, false).is_none());
        state.refused.as_mut().unwrap().by = "another".to_owned();
        assert!(refused("d", &state, false).is_none());
    }

    #[test]
    fn only_what_is_wrong_with_the_archive_itself_is_held_against_it() {
        for (code, retry, exit, its_own) in [
            ("ARCHIVE_ENTRY_PATH", false, Exit::Failed, true),
            ("MANIFEST_INVALID", false, Exit::Failed, true),
            ("FILE_DIGEST", false, Exit::Failed, true),
            ("ENTRY_FAILED", false, Exit::Failed, true),
            ("ENTRY_TIMED_OUT", true, Exit::Failed, false),
            ("ARCHIVE_CORRUPT", true, Exit::Failed, false),
            ("ARCHIVE_MISSING", false, Exit::Failed, false),
            ("ARCHIVE_DIGEST", false, Exit::Failed, false),
            ("ARCHIVE_WRITE", false, Exit::Failed, false),
            ("MANIFEST_READ", false, Exit::Failed, false),
            ("FEED_REFUSED", false, Exit::Failed, false),
            ("NO_SPACE", true, Exit::Failed, false),
            ("LAUNCHER_TOO_OLD", false, Exit::Failed, false),
            ("HOME_NOEXEC", false, Exit::Configuration, false),
        ] {
            let failure = Failure::new(code, "x", exit, retry);
            assert_eq!(is_the_archives(&failure), its_own, "{code}");
        }
    }

    #[test]
    fn a_stale_job_sees_that_a_newer_one_was_there() {
        let stood = |serial, pending: Option<&str>| Stood {
            serial,
            pending: pending.map(str::to_owned),
        };
        let saw = stood(Some(3), Some("older"));
        for (now, same) in [
            (stood(Some(3), Some("older")), true),
            (stood(Some(3), Some("mine")), true),
            (stood(Some(3), Some("newer")), false),
            (stood(Some(3), None), false),
            (stood(Some(4), Some("older")), false),
            (stood(Some(4), Some("mine")), false),
            (stood(None, Some("older")), false),
        ] {
            assert_eq!(is_unchanged(&saw, &now, Some("mine")), same, "{now:?}");
        }
        assert!(is_unchanged(&stood(None, None), &stood(None, None), None));
        assert!(!is_unchanged(
            &stood(None, Some("older")),
            &stood(None, None),
            None
        ));
    }
}
