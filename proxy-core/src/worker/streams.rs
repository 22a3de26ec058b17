//! The answer to `streams`: what is in flight, as much of it as a datagram holds.

use std::time::Instant;

use control::types::{HeldStream, StreamKind};

use crate::relay::{Held, Kind, Listing, Relay};

/// How much of a datagram the streams may take; the rest is for what is around them.
const ROOM: usize = 60 * 1024;
/// More do not fit, however short they are.
const MOST: usize = 600;

/// Asks the relay's threads.
pub async fn listed(relay: &Relay) -> (u64, Vec<HeldStream>) {
    let Listing { total, oldest } = relay.held(MOST).await;
    // One moment for all: an older one never looks younger.
    let now = Instant::now();
    let told = oldest.into_iter().map(|held| named(held, now));
    (total, fitting(told))
}

/// The first of them, as long as they fit.
fn fitting(streams: impl Iterator<Item = HeldStream>) -> Vec<HeldStream> {
    let mut left = ROOM;
    streams
        .take_while(|stream| {
            // With the comma. Text and numbers are always written.
            let length = serde_json::to_vec(stream).map_or(usize::MAX, |json| json.len() + 1);
            let fits = length <= left;
            left = left.saturating_sub(length);
            fits
        })
        .collect()
}

fn named(held: Held, now: Instant) -> HeldStream {
    HeldStream {
        client: held
            .client
            .map_or_else(|| "unix".to_owned(), |client| client.to_string()),
        route: held.route,
        kind: match held.kind {
            Kind::Exchange => StreamKind::Exchange,
            Kind::WebSocket => StreamKind::WebSocket,
            Kind::Tunnel => StreamKind::Tunnel,
        },
        age_ms: u64::try_from(now.saturating_duration_since(held.since).as_millis())
            .unwrap_or(u64::MAX),
        bytes_in: held.bytes_in,
        bytes_out: held.bytes_out,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::{Addressee, MAX_DATAGRAM, ToSupervisor, encode};

    fn stream(route: &str) -> HeldStream {
        HeldStream {
            client: "[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:65535".into(),
            route: route.into(),
            kind: StreamKind::WebSocket,
            age_ms: u64::MAX,
            bytes_in: u64::MAX,
            bytes_out: u64::MAX,
        }
    }

    #[test]
    fn as_many_as_fit_are_told_whatever_their_routes_are_made_of() {
        // The last is what bytes that are no text become: three bytes for each of 200.
        for route in [
            "/",
            &"/x".repeat(100),
            &"\u{1}".repeat(200),
            &"\u{fffd}".repeat(200),
        ] {
            let told = fitting(std::iter::repeat_n(stream(route), MOST));
            let message = ToSupervisor::Streams {
                id: u64::MAX,
                total: u64::MAX,
                streams: told.clone(),
            };
            let us = Addressee {
                generation: u64::MAX,
                pid: u32::MAX,
            };
            let length = encode(&message, us).len();
            assert!(length <= MAX_DATAGRAM, "{length}");
            let one = serde_json::to_vec(&stream(route)).unwrap().len() + 1;
            assert!(
                told.len() == MOST || length + one > ROOM,
                "{} of {one}",
                told.len()
            );
        }
    }
}
