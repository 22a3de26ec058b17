//! The wall clock as it is written into documents.

use jiff::Timestamp;

/// Now, in whole milliseconds.
pub fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
}
