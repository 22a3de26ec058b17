//! Streams and keep-alive clients through five updates by the real updater, from an `http://` feed.
//!
//! `cargo bench -p rollproxy-tests --bench updates`. Ends with exit code 1 if anything was lost.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use fixtures::client::{KeepAlive, KeepAliveCounts, StreamOutcome, StreamRequest, stream};
use fixtures::script::Script;
use fixtures::upstream::Upstream;
use harness::{FileServer, Proxy, TestFeed, TestHome};

const STREAMS: u64 = 200;
const STREAM_LIFE: Duration = Duration::from_secs(60);
const EVENT_INTERVAL: Duration = Duration::from_millis(100);
const KEEP_ALIVE_CLIENTS: u64 = 50;
const REQUEST_INTERVAL: Duration = Duration::from_millis(100);
const UPDATES: [&str; 5] = ["1.1.0", "1.2.0", "1.3.0", "1.4.0", "1.5.0"];

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    if runtime.block_on(run()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

async fn run() -> bool {
    let home = TestHome::new();
    let upstream = Upstream::start().await.unwrap();
    let feed = TestFeed::new();
    let server = FileServer::start(feed.path()).await;
    feed.pin(&home, &server.url()).await;
    let follow = std::fs::read_to_string(home.home.config_file()).unwrap();
    let follow = follow
        .split_once("[update]")
        .map(|(_, update)| format!("[update]{update}"))
        .unwrap();
    home.configure_upstream(&upstream.url(), &follow);
    feed.release("1.0.0");
    home.tool("rollproxy-updater")
        .arg("check")
        .run()
        .await
        .expect(0);
    let proxy = Proxy::start(&home).await;
    let address = proxy.address;

    let deltas = u32::try_from(STREAM_LIFE.as_millis() / EVENT_INTERVAL.as_millis()).unwrap()
        - Script::FRAME;
    let streams: Vec<_> = (0..STREAMS)
        .map(|seed| {
            let request = StreamRequest::from(Script::new(deltas, EVENT_INTERVAL, seed));
            tokio::spawn(async move { stream(address, &request).await })
        })
        .collect();
    let (enough, told) = tokio::sync::watch::channel(false);
    let clients: Vec<_> = (0..KEEP_ALIVE_CLIENTS)
        .map(|seed| {
            let mut told = told.clone();
            let client = KeepAlive::new(address, seed).asking_version();
            tokio::spawn(client.run(REQUEST_INTERVAL, async move {
                let _ = told.wait_for(|enough| *enough).await;
            }))
        })
        .collect();

    let pause = STREAM_LIFE / (u32::try_from(UPDATES.len()).unwrap() + 1);
    for version in UPDATES {
        tokio::time::sleep(pause.saturating_sub(Duration::from_secs(2))).await;
        feed.release(version);
        let begun = Instant::now();
        let answer = home
            .tool("rollproxy-updater")
            .args(["check", "--format", "json"])
            .run()
            .await
            .expect(0)
            .json();
        println!(
            "{version}: {} in {:.2} s (download {} ms of {} bytes, staging {} ms)",
            answer["outcome"],
            begun.elapsed().as_secs_f64(),
            answer["downloadMs"],
            answer["bytes"],
            answer["stagingMs"]
        );
        assert_eq!(proxy.active_version().as_deref(), Some(version));
    }

    let mut outcomes = Vec::new();
    for stream in streams {
        outcomes.push(stream.await.unwrap());
    }
    enough.send_replace(true);
    let mut counts = KeepAliveCounts::default();
    for client in clients {
        counts.add(&client.await.unwrap());
    }
    let status = proxy.now();
    report(
        &outcomes,
        &counts,
        upstream.counts().cancelled,
        &status.rolling,
    )
}

fn report(
    outcomes: &[StreamOutcome],
    counts: &KeepAliveCounts,
    cancelled: u64,
    rolling: &control::types::Rolling,
) -> bool {
    let perfect = outcomes
        .iter()
        .filter(|outcome| outcome.is_perfect())
        .count();
    let events: u64 = outcomes
        .iter()
        .map(|outcome| u64::from(outcome.events))
        .sum();
    let gap = outcomes
        .iter()
        .map(|outcome| outcome.longest_gap)
        .max()
        .unwrap_or_default();
    let lost = outcomes.len() - perfect;
    println!(
        "streams: {} opened, {perfect} perfect, {lost} lost; {events} events; longest gap {gap:?}",
        outcomes.len()
    );
    for outcome in outcomes
        .iter()
        .filter(|outcome| !outcome.is_perfect())
        .take(5)
    {
        println!("  lost: {outcome:?}");
    }
    println!(
        "keep-alive: fresh {} ok, {} lost; reused {} ok, {} lost; {} refused, {} not 2xx, {} wrong; {} idle connections found closed",
        counts.fresh_ok,
        counts.fresh_lost,
        counts.reused_ok,
        counts.reused_lost,
        counts.refused,
        counts.non_2xx,
        counts.wrong,
        counts.closed_idle_seen_before_send
    );
    println!("by version: {:?}", counts.by_version);
    println!(
        "supervisor: {} returned, {} rejected, {} transfers failed, {} messages dropped; upstream saw {cancelled} abandoned",
        rolling.returned_sockets,
        rolling.rejected_sockets,
        rolling.failed_transfers,
        rolling.dropped_messages
    );
    lost == 0 && counts.lost() == 0 && cancelled == 0
}
