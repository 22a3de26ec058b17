//! What a job may do with an offer of the feed: decided from values alone.

use crate::selection::Selection;
use crate::update_state::UpdateState;
use crate::version::PackageVersion;

/// A version that the feed offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The version.
    pub version: PackageVersion,
    /// SHA-256 of its archive.
    pub archive: String,
}

/// Why an offer is left alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Skip {
    /// A person pinned a version.
    #[error("version {version} is pinned: unpin with `rollproxy-launcher select latest`")]
    Pinned {
        /// The pinned one.
        version: PackageVersion,
    },
    /// It runs already.
    #[error("version {version} is already selected")]
    Current {
        /// The selected one.
        version: PackageVersion,
    },
    /// Less than what was once kept: a feed that goes back is not followed.
    #[error(
        "the feed offers {offered}, below {floor} which was kept before: only a person goes back, with `rollproxy-launcher select`"
    )]
    BelowFloor {
        /// The offer.
        offered: PackageVersion,
        /// The highest version ever kept.
        floor: PackageVersion,
    },
    /// Less than what is selected.
    #[error("the feed offers {offered}, and the newer {selected} is selected")]
    Older {
        /// The offer.
        offered: PackageVersion,
        /// The selected one.
        selected: PackageVersion,
    },
    /// This very archive failed here before.
    #[error(
        "version {version} is known bad here ({cause}): wait for the next release, or `rollproxy-launcher select {version}` to try it again"
    )]
    KnownBad {
        /// The version.
        version: PackageVersion,
        /// What it did.
        cause: String,
    },
}

impl Skip {
    /// A stable code, as in [`crate::report::Report::code`].
    pub fn code(&self) -> &'static str {
        match self {
            Skip::Pinned { .. } => "PINNED",
            Skip::Current { .. } => "UP_TO_DATE",
            Skip::BelowFloor { .. } => "BELOW_FLOOR",
            Skip::Older { .. } => "OLDER",
            Skip::KnownBad { .. } => "KNOWN_BAD",
        }
    }
}

/// Whether a job follows a channel to the version that it offers, whatever bytes that is: a person's pin stands above
/// everything the feed says, and the feed may not go back.
///
/// # Errors
/// The reason to leave it alone.
pub fn follows(
    offered: &PackageVersion,
    selection: Option<&Selection>,
    state: &UpdateState,
) -> Result<(), Skip> {
    if let Some(selection) = selection {
        if selection.version == *offered {
            return Err(Skip::Current {
                version: offered.clone(),
            });
        }
        if selection.pinned {
            return Err(Skip::Pinned {
                version: selection.version.clone(),
            });
        }
    }
    if let Some(floor) = &state.floor
        && offered < floor
    {
        return Err(Skip::BelowFloor {
            offered: offered.clone(),
            floor: floor.clone(),
        });
    }
    if let Some(selection) = selection
        && *offered < selection.version
    {
        return Err(Skip::Older {
            offered: offered.clone(),
            selected: selection.version.clone(),
        });
    }
    Ok(())
}

/// Whether nothing is known here against an archive.
///
/// # Errors
/// [`Skip::KnownBad`]
pub fn trusts(offer: &Offer, state: &UpdateState) -> Result<(), Skip> {
    match state.bad(&offer.archive) {
        Some(bad) => Err(Skip::KnownBad {
            version: offer.version.clone(),
            cause: bad.cause.clone(),
        }),
        None => Ok(()),
    }
}

/// What `select latest` takes: the highest installed version that was kept, which is no newer than the floor and not
/// known bad. Without a floor (nothing was ever kept), the selected one.
pub fn latest_kept(
    installed: &[PackageVersion],
    selection: Option<&Selection>,
    state: &UpdateState,
) -> Option<PackageVersion> {
    let Some(floor) = &state.floor else {
        return selection.map(|selection| selection.version.clone());
    };
    let pending = state.pending.as_ref().map(|pending| &pending.version);
    installed
        .iter()
        .filter(|version| {
            *version <= floor && Some(*version) != pending && state.bad_version(version).is_none()
        })
        .max()
        .cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::update_state::Pending;

    fn v(minor: u64) -> PackageVersion {
        PackageVersion::new(1, minor, 0)
    }

    fn offer(minor: u64) -> Offer {
        Offer {
            version: v(minor),
            archive: format!("archive-{minor}"),
        }
    }

    fn selection(minor: u64, pinned: bool) -> Selection {
        Selection {
            schema: 1,
            serial: 1,
            version: v(minor),
            previous: None,
            pinned,
            by: "job".into(),
            at: clock::now(),
        }
    }

    fn consider(
        offer: &Offer,
        selection: Option<&Selection>,
        state: &UpdateState,
    ) -> Result<(), Skip> {
        follows(&offer.version, selection, state).and_then(|()| trusts(offer, state))
    }

    fn code(result: Result<(), Skip>) -> &'static str {
        result.err().map_or("TAKE", |skip| skip.code())
    }

    #[test]
    fn offers_are_taken_or_skipped_for_the_reason_that_weighs_most() {
        let mut state = UpdateState::default();
        state.kept(&v(5));
        state.mark_bad("archive-7", &v(7), "crashed", clock::now());
        let on_five = selection(5, false);
        let gone_back = selection(3, false);
        assert_eq!(
            code(consider(&offer(6), None, &UpdateState::default())),
            "TAKE"
        );
        assert_eq!(code(consider(&offer(6), Some(&on_five), &state)), "TAKE");
        assert_eq!(
            code(consider(&offer(5), Some(&on_five), &state)),
            "UP_TO_DATE"
        );
        assert_eq!(code(consider(&offer(5), Some(&gone_back), &state)), "TAKE");
        assert_eq!(
            code(consider(&offer(4), Some(&gone_back), &state)),
            "BELOW_FLOOR"
        );
        assert_eq!(
            code(consider(&offer(4), Some(&on_five), &UpdateState::default())),
            "OLDER"
        );
        assert_eq!(
            code(consider(&offer(7), Some(&on_five), &state)),
            "KNOWN_BAD"
        );
        let mended = Offer {
            archive: "other bytes".into(),
            ..offer(7)
        };
        assert_eq!(code(consider(&mended, Some(&on_five), &state)), "TAKE");
        assert_eq!(
            code(consider(&offer(9), Some(&selection(5, true)), &state)),
            "PINNED"
        );
    }

    #[test]
    fn latest_is_the_highest_that_was_kept_not_the_highest_on_disk() {
        let mut state = UpdateState::default();
        assert_eq!(
            latest_kept(&[v(1), v(2)], Some(&selection(1, true)), &state),
            Some(v(1))
        );
        assert_eq!(latest_kept(&[v(1)], None, &state), None);
        state.kept(&v(5));
        let installed = [v(3), v(4), v(5), v(6)];
        assert_eq!(latest_kept(&installed, None, &state), Some(v(5)));
        state.archives.insert(v(5), "five".into());
        state.mark_bad("five", &v(5), "crashed", clock::now());
        assert_eq!(latest_kept(&installed, None, &state), Some(v(4)));
        state.pending = Some(Pending {
            version: v(4),
            job: "j".into(),
            at: clock::now(),
        });
        assert_eq!(latest_kept(&installed, None, &state), Some(v(3)));
        assert_eq!(latest_kept(&[v(6)], None, &state), None);
    }
}
