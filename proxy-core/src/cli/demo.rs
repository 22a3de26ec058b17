//! `rollproxy demo`.
use staging::report::{Exit, Failure};

/// Placeholder while the rooms below it are built.
pub fn demo(_plain: bool) -> Result<Exit, Failure> {
    Ok(Exit::Failed)
}
