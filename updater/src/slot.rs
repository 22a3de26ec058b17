//! This host's place in its fleet: asked for before a rollout, given back after it, and never forgotten in between. That it was
//! asked for is on disk before it is asked for, so that the next run gives back what a killed one took.

use control::{Client, Status};
use staging::clock;
use staging::home::Home;
use staging::locks::StateLock;
use staging::node::NodeId;
use staging::ownership::Ownership;
use staging::report::{Failure, note};
use staging::update_state::{self, FleetPlace};

use crate::before::LOCK_TIMEOUT;
use crate::fleet::{FleetError, FleetLock};
use crate::interrupt::Interrupt;
use crate::settings::Settings;

/// The lock that this host shares with its fleet, if one is configured.
///
/// # Errors
/// A URL that cannot be asked.
pub fn configured(settings: &Settings, node: &NodeId) -> Result<Option<FleetLock>, Failure> {
    let Some(base) = &settings.fleet_lock else {
        return Ok(None);
    };
    let lock = FleetLock::new(base, &settings.fleet_lock_group, &node.for_fleet())
        .and_then(|lock| lock.trusting(settings.ca_file.as_deref()));
    lock.map(Some).map_err(|error| {
        let mut failure = Failure::from(error);
        failure.message = format!("{}: {}", settings.file.display(), failure.message);
        failure
    })
}

/// Takes a place for `job`.
///
/// # Errors
/// The server's refusal, no answer, or a signal.
pub async fn take(
    home: &Home,
    lock: &FleetLock,
    job: &str,
    interrupt: &mut Interrupt,
) -> Result<(), Failure> {
    let place = FleetPlace {
        job: job.to_owned(),
        at: clock::now(),
        server: Some(lock.to_string()),
    };
    write(home, Some(place))?;
    let mut refused = false;
    let asked = interrupt.unless(async {
        let asked = lock.pre_reboot().await;
        refused = matches!(asked, Err(FleetError::Refused { .. }));
        asked.map_err(Failure::from)
    });
    let asked = asked.await;
    if refused {
        // Without an answer it may have been given all the same: then it stays noted, and the next run gives it back.
        write(home, None)?;
    }
    asked
}

/// Gives the place back, if one is noted: the rollout has its verdict. That this fails is told, and tried by the next run.
pub async fn give_back(home: &Home, lock: Option<&FleetLock>) {
    told(try_give_back(home, lock).await);
}

/// Gives the place back, if one is noted and no rollout needs it any more. That this fails is told, and tried by the next run.
pub async fn settle(home: &Home, lock: Option<&FleetLock>) {
    let looked = home.clone();
    let busy = tokio::task::spawn_blocking(move || is_noted(&looked) && busy(&looked));
    if !busy.await.unwrap_or(true) {
        give_back(home, lock).await;
    }
}

fn told(given_back: Result<(), Failure>) {
    if let Err(failure) = given_back {
        note(&format!(
            "warning: the place in the fleet is not given back yet, the next check tries again: {}",
            failure.message
        ));
    }
}

async fn try_give_back(home: &Home, lock: Option<&FleetLock>) -> Result<(), Failure> {
    let Some(place) = update_state::read(home)?.fleet_lock else {
        return Ok(());
    };
    match (lock, place.server) {
        // Another one knows nothing of it, and must not hear of it.
        (Some(lock), Some(server)) if server != lock.to_string() => note(&format!(
            "warning: the place taken at {server} cannot be given back, for update.fleet_lock is {lock} now: free it there by hand, for the member {}",
            lock.member()
        )),
        (Some(lock), _) => lock.steady_state().await?,
        (None, _) => note(
            "warning: a place in a fleet is noted, but update.fleet_lock is not set any more: it is forgotten",
        ),
    }
    write(home, None)
}

fn is_noted(home: &Home) -> bool {
    update_state::read(home).map_or(true, |state| state.fleet_lock.is_some())
}

/// Whether a rollout runs, or may run.
fn busy(home: &Home) -> bool {
    match Ownership::observe(home) {
        Ok(ownership) if ownership.supervisor().is_none() => false,
        Ok(_) => Client::new(home)
            .status()
            .map_or(true, |status| rolls(&status)),
        Err(_) => true,
    }
}

/// Whether the supervisor is in the middle of a rollout or its probation.
pub fn rolls(status: &Status) -> bool {
    let rolling = &status.rolling;
    let under_way = rolling
        .last_rollout
        .as_ref()
        .is_some_and(|rollout| rollout.verdict.is_none());
    rolling.candidate.is_some() || rolling.probation.is_some() || under_way
}

fn write(home: &Home, place: Option<FleetPlace>) -> Result<(), Failure> {
    let lock = StateLock::acquire(home, LOCK_TIMEOUT)?;
    update_state::modify(&lock, home, |state| state.fleet_lock = place)?;
    Ok(())
}
