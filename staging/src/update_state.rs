//! `state/update.json`: what this host has learned about versions. Archives are known by their digest, so that a
//! version published again with other bytes is judged anew.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::document::{self, Document, DocumentError};
use crate::home::Home;
use crate::locks::StateLock;
use crate::version::PackageVersion;

/// The longest that updates may be held.
pub const LONGEST_HOLD: Duration = Duration::from_secs(90 * 86_400);

/// An archive that was not ready this often is known bad.
pub const NOT_READY_LIMIT: u32 = 3;

/// What a host has learned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateState {
    /// Always written as 1.
    pub schema: u32,
    /// Published and validated, not yet proven under traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<Pending>,
    /// The last version that passed validation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validated: Option<PackageVersion>,
    /// The highest version ever kept: the feed may not offer less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<PackageVersion>,
    /// Archives that a rollout proved bad, by digest.
    #[serde(default)]
    pub known_bad: BTreeMap<String, KnownBad>,
    /// How often in a row an archive was not ready, by digest.
    #[serde(default)]
    pub not_ready: BTreeMap<String, u32>,
    /// The digest of the archive that each version came from (packed here: of its manifest).
    #[serde(default)]
    pub archives: BTreeMap<PackageVersion, String>,
    /// Not before this time is the feed asked again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt: Option<Timestamp>,
    /// How many runs in a row failed for a passing cause.
    #[serde(default)]
    pub failed_attempts: u32,
    /// The last time the feed was asked, and what came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_check: Option<LastCheck>,
    /// Until then a person wants no update that a job decides on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_until: Option<Timestamp>,
    /// The archive that was brought last and cannot be installed here, so that it is not brought again at every check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refused>,
    /// A place in the fleet that a job asked for and did not give back yet: written before asking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet_lock: Option<FleetPlace>,
}

/// Why an archive is not brought again: no rollout proved it bad, it never came that far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    /// SHA-256 of the archive.
    pub archive: String,
    /// The version it was.
    pub version: PackageVersion,
    /// The code of what is wrong with it.
    pub code: String,
    /// What is wrong with it.
    pub message: String,
    /// When that was seen.
    pub at: Timestamp,
    /// Which updater saw it: another one judges for itself.
    pub by: String,
}

/// A place in the fleet, as far as this host knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetPlace {
    /// The job that asked for it.
    pub job: String,
    /// When.
    pub at: Timestamp,
    /// Where, without credentials; of an older updater's place that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
}

/// A version that waits for its rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pending {
    /// The version.
    pub version: PackageVersion,
    /// The job that brought it.
    pub job: String,
    /// Since when it waits.
    pub at: Timestamp,
}

/// Why an archive is known bad.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KnownBad {
    /// The version it was.
    pub version: PackageVersion,
    /// What it did, such as `crashed with SIGSEGV`.
    pub cause: String,
    /// When.
    pub at: Timestamp,
}

/// The last look at the feed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastCheck {
    /// When.
    pub at: Timestamp,
    /// The outcome: a stable code such as `UP_TO_DATE`, or an error's.
    pub outcome: String,
    /// The version on offer, if one was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered: Option<PackageVersion>,
}

impl Default for UpdateState {
    fn default() -> Self {
        UpdateState {
            schema: UpdateState::SCHEMA,
            pending: None,
            validated: None,
            floor: None,
            known_bad: BTreeMap::new(),
            not_ready: BTreeMap::new(),
            archives: BTreeMap::new(),
            next_attempt: None,
            failed_attempts: 0,
            last_check: None,
            hold_until: None,
            refused: None,
            fleet_lock: None,
        }
    }
}

impl Document for UpdateState {
    const SCHEMA: u32 = 1;
    const NAME: &'static str = "update state";
}

impl UpdateState {
    /// The mark against an archive.
    pub fn bad(&self, digest: &str) -> Option<&KnownBad> {
        self.known_bad.get(digest)
    }

    /// The mark against an installed version, by the archive it came from.
    pub fn bad_version(&self, version: &PackageVersion) -> Option<&KnownBad> {
        self.known_bad.get(self.archives.get(version)?)
    }

    /// Marks an archive for good.
    pub fn mark_bad(&mut self, digest: &str, version: &PackageVersion, cause: &str, at: Timestamp) {
        self.not_ready.remove(digest);
        self.known_bad.insert(
            digest.to_owned(),
            KnownBad {
                version: version.clone(),
                cause: cause.to_owned(),
                at,
            },
        );
    }

    /// Counts that an archive was not ready; marks it at [`NOT_READY_LIMIT`]. Says whether it is known bad now.
    pub fn count_not_ready(
        &mut self,
        digest: &str,
        version: &PackageVersion,
        at: Timestamp,
    ) -> bool {
        let count = self.not_ready.entry(digest.to_owned()).or_insert(0);
        *count = count.saturating_add(1);
        if *count < NOT_READY_LIMIT {
            return self.known_bad.contains_key(digest);
        }
        let cause = format!("not ready {count} times");
        self.mark_bad(digest, version, &cause, at);
        true
    }

    /// Takes every mark off a version, as when a person selects it. Says whether there was one.
    pub fn clear_bad(&mut self, version: &PackageVersion) -> bool {
        if let Some(digest) = self.archives.get(version) {
            self.not_ready.remove(digest);
        }
        let before = self.known_bad.len();
        self.known_bad.retain(|_, bad| bad.version != *version);
        self.known_bad.len() != before
    }

    /// Until when updates are held, if they are now. One that is further ahead than any hold may be was made by a clock that
    /// was wrong, and holds nothing.
    pub fn held(&self, now: Timestamp) -> Option<Timestamp> {
        let longest = SignedDuration::try_from(LONGEST_HOLD).unwrap_or(SignedDuration::MAX);
        self.hold_until
            .filter(|until| *until > now && until.duration_since(now) <= longest)
    }

    /// Why an archive is not to be brought again, in the eyes of the updater `by`.
    pub fn refused(&self, archive: &str, by: &str) -> Option<&Refused> {
        self.refused
            .as_ref()
            .filter(|refused| refused.archive == archive && refused.by == by)
    }

    /// Takes note that a version was kept: the floor rises to it (never sinks), nothing of it is pending, and its
    /// failures to be ready are forgotten.
    pub fn kept(&mut self, version: &PackageVersion) {
        if self.floor.as_ref().is_none_or(|floor| floor < version) {
            self.floor = Some(version.clone());
        }
        if self
            .pending
            .as_ref()
            .is_some_and(|pending| pending.version == *version)
        {
            self.pending = None;
        }
        if let Some(digest) = self.archives.get(version) {
            self.not_ready.remove(digest);
        }
    }
}

/// What this host has learned; nothing yet where the file is not there.
///
/// # Errors
/// [`DocumentError`]
pub fn read(home: &Home) -> Result<UpdateState, DocumentError> {
    Ok(document::read(&home.update_state_file())?.unwrap_or_default())
}

/// Changes what is known and writes it, if it is another then. Gives back what `change` gave.
///
/// # Errors
/// [`DocumentError`]: also if the old one cannot be read, for floor and marks would be lost.
pub fn modify<R>(
    _lock: &StateLock,
    home: &Home,
    change: impl FnOnce(&mut UpdateState) -> R,
) -> Result<R, DocumentError> {
    let old = read(home)?;
    let mut new = old.clone();
    let result = change(&mut new);
    if new != old {
        document::write(&home.update_state_file(), &new)?;
    }
    Ok(result)
}

/// Sets a version pending.
///
/// # Errors
/// As [`modify`].
pub fn set_pending(
    lock: &StateLock,
    home: &Home,
    version: &PackageVersion,
    job: &str,
    digest: &str,
) -> Result<(), DocumentError> {
    modify(lock, home, |state| {
        state.archives.insert(version.clone(), digest.to_owned());
        state.validated = Some(version.clone());
        // A person had it tried again, and now nothing is wrong with it.
        state.refused = state.refused.take().filter(|old| old.archive != digest);
        state.pending = Some(Pending {
            version: version.clone(),
            job: job.to_owned(),
            at: clock::now(),
        });
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::home;
    use proptest::prelude::*;

    fn v(minor: u64) -> PackageVersion {
        PackageVersion::new(1, minor, 0)
    }

    #[test]
    fn absent_is_empty_and_changes_are_read_back() {
        let (_folder, home) = home();
        assert_eq!(read(&home).unwrap(), UpdateState::default());
        let lock = StateLock::acquire(&home, Duration::ZERO).unwrap();
        modify(&lock, &home, |_| ()).unwrap();
        assert!(
            !home.update_state_file().exists(),
            "nothing changed, yet something was written"
        );
        set_pending(&lock, &home, &v(2), "job-1", "aa").unwrap();
        let state = read(&home).unwrap();
        assert_eq!(state.pending.map(|pending| pending.version), Some(v(2)));
        assert_eq!(state.archives.get(&v(2)).map(String::as_str), Some("aa"));
    }

    #[test]
    fn a_broken_state_is_never_taken_for_an_empty_one() {
        let (_folder, home) = home();
        let lock = StateLock::acquire(&home, Duration::ZERO).unwrap();
        for broken in [
            "",
            "{}",
            "null",
            r#"{"schema":1,"floor":7}"#,
            r#"{"schema":2}"#,
        ] {
            std::fs::write(home.update_state_file(), broken).unwrap();
            assert!(read(&home).is_err(), "{broken:?}");
            assert!(modify(&lock, &home, |state| state.floor = Some(v(9))).is_err());
            assert_eq!(
                std::fs::read_to_string(home.update_state_file()).unwrap(),
                broken
            );
        }
    }

    #[test]
    fn three_times_not_ready_is_known_bad_and_being_kept_forgives() {
        let at = clock::now();
        let mut state = UpdateState::default();
        state.archives.insert(v(1), "aa".into());
        assert!(!state.count_not_ready("aa", &v(1), at));
        assert!(!state.count_not_ready("aa", &v(1), at));
        state.kept(&v(1));
        assert!(!state.count_not_ready("aa", &v(1), at));
        assert!(!state.count_not_ready("aa", &v(1), at));
        assert!(state.count_not_ready("aa", &v(1), at));
        assert!(state.bad("aa").is_some() && state.bad("bb").is_none());
        assert!(state.bad_version(&v(1)).is_some());
        assert!(state.clear_bad(&v(1)));
        assert!(!state.clear_bad(&v(1)));
        assert!(state.bad_version(&v(1)).is_none());
    }

    #[test]
    fn a_hold_that_a_wrong_clock_made_holds_nothing() {
        let now = clock::now();
        let held = |until: SignedDuration| {
            let state = UpdateState {
                hold_until: Some(now + until),
                ..UpdateState::default()
            };
            state.held(now).is_some()
        };
        assert!(held(SignedDuration::from_hours(24)));
        assert!(held(SignedDuration::from_hours(90 * 24)));
        assert!(!held(SignedDuration::from_hours(365 * 24)));
        assert!(!held(SignedDuration::from_hours(-1)));
    }

    #[test]
    fn a_kept_version_is_no_longer_pending_and_another_still_is() {
        let mut state = UpdateState {
            pending: Some(Pending {
                version: v(2),
                job: "j".into(),
                at: clock::now(),
            }),
            ..UpdateState::default()
        };
        state.kept(&v(1));
        assert!(state.pending.is_some());
        state.kept(&v(2));
        assert!(state.pending.is_none());
    }

    proptest! {
        #[test]
        fn the_floor_is_the_highest_ever_kept(kept in proptest::collection::vec(0u64..20, 1..12)) {
            let mut state = UpdateState::default();
            for minor in &kept {
                state.kept(&v(*minor));
            }
            prop_assert_eq!(state.floor, kept.iter().max().map(|minor| v(*minor)));
        }

        #[test]
        fn a_corrupted_state_keeps_its_floor_or_is_an_error(at in 0usize..400, byte in any::<u8>()) {
            let mut state = UpdateState::default();
            state.kept(&v(3));
            state.mark_bad("aa", &v(4), "crashed", clock::now());
            let mut bytes = serde_json::to_vec(&state).unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            let folder = crate::scratch::Scratch::new();
            let home = Home::at(folder.path());
            std::fs::create_dir(home.state()).unwrap();
            std::fs::write(home.update_state_file(), &bytes).unwrap();
            if let Ok(read) = read(&home) {
                // A key turned into an unknown one is the only way to lose a value, and it stands in the bytes.
                let text = String::from_utf8_lossy(&bytes);
                prop_assert_eq!(read.floor.is_some(), text.contains("\"floor\":"));
                prop_assert_eq!(!read.known_bad.is_empty(), text.contains("\"knownBad\":"));
            }
        }
    }
}
