//! Rollouts as people and jobs ask for them.

use control::types::{By, RolloutRequest};

/// A person's wish for a version.
pub fn by_person(version: &str) -> RolloutRequest {
    to(version, By::Person)
}

/// A job's wish for a version.
pub fn by_job(version: &str) -> RolloutRequest {
    to(version, By::Job)
}

/// A person's wish for a new generation of what runs.
pub fn same_version() -> RolloutRequest {
    RolloutRequest::new(By::Person)
}

fn to(version: &str, by: By) -> RolloutRequest {
    RolloutRequest {
        version: Some(version.to_owned()),
        ..RolloutRequest::new(by)
    }
}
