//! `select`: a person chooses the version. With a supervisor it is a rollout, and the rollout's outcome is the command's;
//! without one the selection is written at once.

use std::time::Duration;

use control::{By, Client, ControlError, Outcome, RolloutRequest, Status, Verdict};
use staging::contents;
use staging::home::Home;
use staging::launch::LaunchError;
use staging::locks::StateLock;
use staging::ownership::{Owner, Ownership};
use staging::package::{self, Package};
use staging::policy;
use staging::report::{Exit, Failure, Format, Report, line, note};
use staging::selection::{self, Change, Selection};
use staging::update_state::{self, Pending, UpdateState};
use staging::version::PackageVersion;

/// How long another holder of the state lock is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// This version, pinned.
    Exactly(PackageVersion),
    /// The highest that was kept, not pinned.
    Latest,
}

/// What came of it.
struct Done {
    version: PackageVersion,
    previous: Option<PackageVersion>,
    pinned: bool,
    verdict: Option<Verdict>,
}

/// Selects a version and says what came of it.
pub fn run(home: &Home, which: &str, format: Format) -> Result<Exit, Failure> {
    let wanted = wanted(which)?;
    home.check()?;
    let installed = package::list(home)?;
    let state = update_state::read(home)?;
    let before = selection::read(home).map_err(|error| Failure {
        // Scripts know this as what any other failure of `select` is.
        exit: error.exit(),
        ..LaunchError::from(error).into()
    })?;
    let version = choose(&wanted, &installed, before.as_ref(), &state)?;
    check_whole(&Package::open(home, &version)?)?;
    let pin = matches!(wanted, Wanted::Exactly(_));
    let bad = state.bad_version(&version);
    if let Some(bad) = bad {
        note(&format!(
            "warning: {version} is known bad here ({}); you name it, so the mark is cleared",
            bad.cause
        ));
    }
    let client = Client::new(home);
    let done = match client.status() {
        Ok(status) => roll(&client, &status, version, pin, bad.is_some(), format)?,
        Err(ControlError::NotRunning { .. }) => write(home, version, pin)?,
        Err(other) => return Err(other.into_failure()),
    };
    line(&match format {
        Format::Text => text(&done),
        Format::Json => json(&done),
    });
    crate::DONE
}

fn wanted(which: &str) -> Result<Wanted, Failure> {
    if which == "latest" {
        return Ok(Wanted::Latest);
    }
    Ok(Wanted::Exactly(which.parse()?))
}

/// The version that is meant, among those that are installed.
fn choose(
    wanted: &Wanted,
    installed: &[PackageVersion],
    selection: Option<&Selection>,
    state: &UpdateState,
) -> Result<PackageVersion, Failure> {
    let (version, missing) = match wanted {
        Wanted::Exactly(version) => (Some(version.clone()), format!("{version} is not installed")),
        Wanted::Latest => (
            policy::latest_kept(installed, selection, state),
            "no installed version was ever kept".to_owned(),
        ),
    };
    version
        .filter(|version| installed.contains(version))
        .ok_or_else(|| {
            let installed: Vec<String> = installed.iter().map(ToString::to_string).collect();
            Failure::new(
                "NOT_INSTALLED",
                format!("{missing}; installed: {}", or_none(&installed.join(", "))),
                Exit::NoPackage,
                false,
            )
        })
}

/// A package that a person's word makes the selected one still is what was installed.
fn check_whole(package: &Package) -> Result<(), Failure> {
    for entry in package.manifest.entries.keys() {
        package.entry(entry)?;
    }
    contents::verify(&package.root, &package.manifest).map_err(|error| {
        let version = &package.manifest.version;
        Failure::new(
            error.code(),
            format!("package {version} is damaged: {error}; install it again, or select another"),
            Exit::NoPackage,
            false,
        )
    })
}

/// Lets the supervisor roll, then reads the status once more: only what is seen is reported.
fn roll(
    client: &Client,
    status: &Status,
    version: PackageVersion,
    pin: bool,
    clear_known_bad: bool,
    format: Format,
) -> Result<Done, Failure> {
    let previous = status.selected_package_version.clone();
    if shows(status, &version, pin) && !clear_known_bad {
        return Ok(Done {
            previous,
            version,
            pinned: pin,
            verdict: None,
        });
    }
    let request = RolloutRequest {
        version: Some(version.to_string()),
        pin: Some(pin),
        clear_known_bad,
        ..RolloutRequest::new(By::Person).seen(status)
    };
    let verdict = client
        .roll(&request, &mut |step| {
            if format == Format::Text {
                let generation = step
                    .generation
                    .map(|generation| format!(" (generation {generation})"))
                    .unwrap_or_default();
                let detail = step
                    .detail
                    .as_ref()
                    .map(|detail| format!(": {detail}"))
                    .unwrap_or_default();
                line(&format!(
                    "{} {}{generation}{detail}",
                    step.step, step.version
                ));
            }
        })
        .map_err(ControlError::into_failure)?;
    if verdict.verdict != Outcome::Kept {
        return Err(unsuccessful(&verdict, previous.as_ref()));
    }
    let after = client
        .status()
        .map_err(|error| unverified(&version, &error.to_string()))?;
    if !shows(&after, &version, pin) {
        return Err(unverified(
            &version,
            &format!(
                "the supervisor now shows {} selected (pinned: {}) and {} at work",
                shown(after.selected_package_version.as_ref()),
                after.pinned,
                shown(after.worker_version.as_ref()),
            ),
        ));
    }
    Ok(Done {
        version,
        previous,
        pinned: pin,
        verdict: Some(verdict),
    })
}

/// Whether a status shows the version selected, pinned as wanted, and at work.
fn shows(status: &Status, version: &PackageVersion, pin: bool) -> bool {
    status.selected_package_version.as_ref() == Some(version)
        && status.worker_version.as_ref() == Some(version)
        && status.pinned == pin
}

/// A rollout that was not kept: its own code, and what is selected now.
fn unsuccessful(verdict: &Verdict, selected: Option<&PackageVersion>) -> Failure {
    let code = verdict
        .code
        .clone()
        .unwrap_or_else(|| "ROLLOUT_NOT_KEPT".to_owned());
    let reason = verdict.reason.as_deref().unwrap_or("no reason was given");
    let exit = verdict.exit();
    Failure::new(
        &code,
        format!(
            "the rollout of {} {}: {reason}; selected is still {}",
            verdict.version,
            match verdict.verdict {
                Outcome::Failed => "failed".to_owned(),
                other => format!("was {other}"),
            },
            shown(selected)
        ),
        exit,
        exit == Exit::Deferred,
    )
}

fn unverified(version: &PackageVersion, why: &str) -> Failure {
    Failure::new(
        "SELECTION_UNVERIFIED",
        format!("the rollout of {version} was kept, but {why}; see `rollproxy status`"),
        Exit::Unverified,
        false,
    )
}

/// Writes the selection; nobody supervises.
fn write(home: &Home, version: PackageVersion, pin: bool) -> Result<Done, Failure> {
    let lock = StateLock::acquire(home, LOCK_TIMEOUT)?;
    // Looked at under the lock: a supervisor that starts now reads the selection after us.
    if let Owner::Supervisor(identity) = Ownership::observe(home)?.owner() {
        return Err(Failure::new(
            "SUPERVISOR_SILENT",
            format!(
                "a supervisor (process {}) owns this home, but does not answer on its control socket; nothing was selected",
                identity.pid
            ),
            Exit::Deferred,
            true,
        ));
    }
    update_state::modify(&lock, home, |state| {
        if pin {
            state.clear_bad(&version);
        }
        // A pinned host rolls to nothing that was meant to come next.
        let is_pending = |pending: &Pending| pin || pending.version == version;
        if state.pending.as_ref().is_some_and(is_pending) {
            state.pending = None;
        }
    })?;
    let change = Change {
        version: version.clone(),
        pinned: pin,
        by: "person".to_owned(),
    };
    let written = selection::write(&lock, home, change)?;
    let previous = written.previous;
    Ok(Done {
        version,
        previous,
        pinned: pin,
        verdict: None,
    })
}

fn text(done: &Done) -> String {
    let pin = if done.pinned { "pinned" } else { "not pinned" };
    let verdict = match &done.verdict {
        Some(verdict) => format!("; rollout {} {}", verdict.rollout, verdict.verdict),
        None => String::new(),
    };
    format!("selected {}, {pin}{verdict}", done.version)
}

fn json(done: &Done) -> String {
    serde_json::json!({
        "outcome": "selected",
        "version": done.version,
        "previous": done.previous,
        "pinned": done.pinned,
        "verdict": done.verdict,
    })
    .to_string()
}

fn shown(version: Option<&PackageVersion>) -> String {
    version.map_or_else(|| "nothing".to_owned(), ToString::to_string)
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}
