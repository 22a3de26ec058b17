//! `check --self-test`: whether this updater can work with this home. The updater that is about to be installed answers it
//! from the staging folder, so that no update takes away the next one.

use staging::home::Home;
use staging::report::{Exit, Failure};
use staging::{selection, update_state};

use crate::feed::Feed;
use crate::settings::Settings;

/// Reads everything that a check reads, and writes nothing.
///
/// # Errors
/// What this updater cannot read; the exit code is always 1.
pub fn self_test(home: &Home) -> Result<Exit, Failure> {
    read(home).map_err(|failure| Failure {
        exit: Exit::Failed,
        ..failure
    })?;
    Ok(Exit::Done)
}

fn read(home: &Home) -> Result<(), Failure> {
    home.check()?;
    Settings::read(home)?;
    selection::read(home)?;
    update_state::read(home)?;
    Feed::cached(home)?;
    Ok(())
}
