//! Waiting for a condition, with a deadline that fails the test.

use std::time::{Duration, Instant};

/// How long a condition may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds.
///
/// # Panics
/// When it does not within [`PATIENCE`]; `what` says what was waited for.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    until_some(what, || condition().then_some(())).await;
}

/// Waits until `look` finds something.
///
/// # Panics
/// When it does not within [`PATIENCE`]; `what` says what was waited for.
pub async fn until_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            Instant::now() < deadline,
            "waited {PATIENCE:?} in vain until {what}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
