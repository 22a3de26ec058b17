//! Promise 1: an accepted request is never cut by an update, a rollback or a refused release.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use control::types::{By, Outcome, RolloutRequest};
use fixtures::client::{StreamRequest, stream};
use fixtures::script::Script;
use fixtures::upstream::Upstream;
use harness::{Proxy, TestHome, until};

fn roll_to(version: &str) -> RolloutRequest {
    RolloutRequest {
        version: Some(version.to_owned()),
        ..RolloutRequest::new(By::Person)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_outlives_three_rolls_and_every_byte_is_right() {
    let home = TestHome::new();
    let upstream = Upstream::start().await.unwrap();
    home.configure_upstream(&upstream.url(), "");
    for version in ["1.0.0", "1.1.0", "1.2.0"] {
        home.install(version);
    }
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    assert_eq!(proxy.active_version().as_deref(), Some("1.0.0"));

    // Ends only after the last roll: its upstream waits for a gate between two events.
    let address = proxy.address;
    let gated = StreamRequest {
        fields: vec![("x-fixture-gate".into(), "last-roll".into())],
        ..StreamRequest::from(Script::new(200, Duration::from_millis(1), 7))
    };
    let old = tokio::spawn(async move { stream(address, &gated).await });
    until("the stream reached the upstream", || {
        upstream.counts().concurrent == 1
    })
    .await;

    for (roll, version) in ["1.1.0", "1.2.0", "1.1.0"].into_iter().enumerate() {
        let verdict = proxy.roll(roll_to(version)).await.unwrap();
        assert_eq!(verdict.verdict, Outcome::Kept, "{verdict:?}");
        assert_eq!(proxy.active_version().as_deref(), Some(version));
        assert_eq!(home.selected().as_deref(), Some(version));
        let fresh = stream(
            address,
            &Script::new(10, Duration::ZERO, roll as u64).into(),
        )
        .await;
        assert!(fresh.is_perfect(), "{fresh:?}");
        let draining = proxy.now().rolling.draining;
        assert!(
            draining.iter().any(|place| place.generation == 1),
            "{draining:?}"
        );
    }
    upstream.open_gate("last-roll", 1_000_000);
    let outcome = old.await.unwrap();
    assert!(outcome.is_perfect(), "{outcome:?}");
    until("the oldest generation ended", || {
        proxy
            .now()
            .rolling
            .draining
            .iter()
            .all(|place| place.generation != 1)
    })
    .await;
}
