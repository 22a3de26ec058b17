//! Asking the supervisor for the rollout, and believing only what is seen afterwards.

use control::{By, Client, ControlError, Outcome, RolloutRequest, Step, Verdict};
use staging::home::Home;
use staging::report::{Exit, Failure};
use staging::selection;
use staging::version::PackageVersion;

/// What the request is bound to: the supervisor and the selection that the job saw at its start.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The supervisor's instance nonce.
    pub nonce: String,
    /// The selection's serial; none = nothing was selected.
    pub serial: Option<u64>,
}

/// Asks for the rollout to `version` and waits for the verdict. Blocking: the caller gives it a thread.
///
/// # Errors
/// The refusal, or that nobody knows how it ended.
pub fn rollout(
    home: &Home,
    version: &PackageVersion,
    job: &str,
    seen: Seen,
    on_step: &mut dyn FnMut(&Step),
) -> Result<Verdict, Failure> {
    let request = RolloutRequest {
        version: Some(version.to_string()),
        nonce: Some(seen.nonce),
        serial: seen.serial,
        job: Some(job.to_owned()),
        ..RolloutRequest::new(By::Job)
    };
    Client::new(home)
        .roll(&request, on_step)
        .map_err(|error| match error {
            // It was there when the job began: nothing is wrong with the version, which stays pending.
            gone @ ControlError::NotRunning { .. } => Failure::new(
                "SUPERVISOR_GONE",
                format!("{version} is pending, but {gone}"),
                Exit::Deferred,
                true,
            ),
            other => other.into_failure(),
        })
}

/// A verdict other than kept, as what the command ends with.
///
/// # Errors
/// Always, unless the verdict is kept.
pub fn kept(verdict: &Verdict, selected: Option<&PackageVersion>) -> Result<(), Failure> {
    if verdict.verdict == Outcome::Kept {
        return Ok(());
    }
    let code = verdict.code.as_deref().unwrap_or(match verdict.verdict {
        Outcome::RolledBack => "ROLLED_BACK",
        Outcome::Deferred => "ROLLOUT_DEFERRED",
        Outcome::Superseded => "ROLLOUT_SUPERSEDED",
        _ => "ROLLOUT_FAILED",
    });
    let selected = selected.map_or_else(|| "nothing".to_owned(), ToString::to_string);
    let exit = verdict.exit();
    Err(Failure::new(
        code,
        format!(
            "the rollout of {} {}: {}; selected is still {selected}",
            verdict.version,
            ended(verdict.verdict),
            verdict.reason.as_deref().unwrap_or("no reason was given"),
        ),
        exit,
        exit == Exit::Deferred,
    ))
}

/// How a rollout ended, as the rest of a sentence about it.
fn ended(outcome: Outcome) -> String {
    match outcome {
        Outcome::Failed => outcome.to_string(),
        other => format!("was {other}"),
    }
}

/// Reads selection and status once more after a kept rollout.
///
/// # Errors
/// Exit 2 when either disagrees, or cannot be read.
pub fn verify(home: &Home, version: &PackageVersion) -> Result<(), Failure> {
    let seen = Client::new(home)
        .status()
        .map_err(|error| error.to_string())
        .and_then(|status| {
            let selected = selection::read(home).map_err(|error| error.to_string())?;
            Ok(disagreement(
                version,
                selected.map(|selection| selection.version).as_ref(),
                status.selected_package_version.as_ref(),
                status.worker_version.as_ref(),
            ))
        });
    match seen {
        Ok(None) => Ok(()),
        Ok(Some(why)) | Err(why) => Err(Failure::new(
            "ROLLOUT_UNVERIFIED",
            format!("the rollout of {version} was kept, but {why}; see `rollproxy status`"),
            Exit::Unverified,
            false,
        )),
    }
}

/// What does not show the version that was kept.
fn disagreement(
    version: &PackageVersion,
    on_disk: Option<&PackageVersion>,
    in_status: Option<&PackageVersion>,
    active: Option<&PackageVersion>,
) -> Option<String> {
    let places = [
        ("the selection on disk is", on_disk),
        ("the supervisor says that selected is", in_status),
        ("the active worker is", active),
    ];
    places
        .into_iter()
        .find(|(_, seen)| *seen != Some(version))
        .map(|(place, seen)| {
            let seen = seen.map_or_else(|| "none".to_owned(), ToString::to_string);
            format!("{place} {seen}")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> PackageVersion {
        text.parse().unwrap()
    }

    #[test]
    fn each_verdict_has_its_exit_and_a_code() {
        use Outcome::{Deferred, Failed, RolledBack, Superseded};
        for (outcome, exit, code, said) in [
            (
                RolledBack,
                Exit::RolledBack,
                "ROLLED_BACK",
                "1.1.0 was rolled back: ",
            ),
            (Failed, Exit::Failed, "ROLLOUT_FAILED", "1.1.0 failed: "),
            (
                Deferred,
                Exit::Deferred,
                "ROLLOUT_DEFERRED",
                "1.1.0 was deferred: ",
            ),
            (
                Superseded,
                Exit::Deferred,
                "ROLLOUT_SUPERSEDED",
                "1.1.0 was superseded: ",
            ),
        ] {
            let mut verdict = Verdict {
                rollout: 1,
                verdict: outcome,
                version: version("1.1.0"),
                generation: None,
                code: None,
                reason: Some("it crashed".to_owned()),
                serial: None,
            };
            let failure = kept(&verdict, Some(&version("1.0.0"))).unwrap_err();
            assert_eq!((failure.exit, failure.code.as_str()), (exit, code));
            assert_eq!(failure.retry, exit == Exit::Deferred);
            for part in [said, "it crashed", "still 1.0.0"] {
                assert!(failure.message.contains(part), "{}", failure.message);
            }
            verdict.code = Some("WORKER_NOT_READY".to_owned());
            assert_eq!(kept(&verdict, None).unwrap_err().code, "WORKER_NOT_READY");
            verdict.verdict = Outcome::Kept;
            assert!(kept(&verdict, None).is_ok());
        }
    }

    #[test]
    fn every_place_has_to_show_the_version() {
        let (new, old) = (version("1.1.0"), version("1.0.0"));
        let (new, old) = (Some(&new), Some(&old));
        assert_eq!(disagreement(&version("1.1.0"), new, new, new), None);
        for (disk, status, active, part) in [
            (old, new, new, "on disk is 1.0.0"),
            (None, new, new, "on disk is none"),
            (new, old, new, "selected is 1.0.0"),
            (new, new, old, "worker is 1.0.0"),
            (new, new, None, "worker is none"),
        ] {
            let why = disagreement(&version("1.1.0"), disk, status, active).unwrap();
            assert!(why.contains(part), "{why}");
        }
    }
}
