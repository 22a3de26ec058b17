//! Bytes flow as they come, no faster than they are taken, and stop when either side leaves.

use std::time::Instant;

use fixtures::client::{End, StreamRequest, stream};
use fixtures::script::Script;

use super::*;

fn gated(script: &Script, gate: &str) -> String {
    let mut head = "POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n".to_owned();
    for (name, value) in script.fields() {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head + &format!("x-fixture-gate: {gate}\r\n\r\n{{}}")
}

#[tokio::test]
async fn each_event_arrives_before_the_next_is_written() {
    let proxy = Proxy::start().await;
    let script = Script::new(20, Duration::ZERO, 3);
    let mut wire = proxy.connect().await;
    wire.stream
        .write_all(gated(&script, "g").as_bytes())
        .await
        .unwrap();
    let head = soon(wire.head()).await.unwrap().unwrap();
    let mut framing = head.answer_framing();
    for index in 0..script.events() {
        proxy.upstream.open_gate("g", 1);
        let expected = script.event(index);
        let mut event = Vec::new();
        while event.len() < expected.len() {
            match soon(wire.piece(&mut framing)).await.unwrap() {
                fixtures::wire::Piece::Data(data) => event.extend(data),
                fixtures::wire::Piece::End => break,
            }
        }
        assert_eq!(event, expected, "event {index}");
    }
    assert_eq!(
        soon(wire.piece(&mut framing)).await.unwrap(),
        fixtures::wire::Piece::End
    );
}

#[tokio::test]
async fn many_streams_at_once_are_all_perfect() {
    let proxy = Proxy::start().await;
    let mut streams = tokio::task::JoinSet::new();
    for seed in 0..100 {
        let address = proxy.address;
        let script = Script {
            delta_bytes: 200,
            ..Script::new(30, Duration::from_millis(5), seed)
        };
        streams.spawn(async move { stream(address, &script.into()).await });
    }
    while let Some(outcome) = soon(streams.join_next()).await {
        let outcome = outcome.unwrap();
        assert!(outcome.is_perfect(), "{outcome:?}");
    }
    assert_eq!(proxy.upstream.counts().finished, 100);
    until(|| proxy.relay.load().exchanges == 0).await;
}

#[tokio::test]
async fn one_large_event_passes_in_pieces() {
    let proxy = Proxy::start().await;
    let script = Script {
        delta_bytes: 10 << 20,
        ..Script::new(1, Duration::ZERO, 5)
    };
    let mut wire = proxy.connect().await;
    proxy.upstream.open_gate("g", script.events() as usize);
    wire.stream
        .write_all(gated(&script, "g").as_bytes())
        .await
        .unwrap();
    let head = soon(wire.head()).await.unwrap().unwrap();
    let body = soon(wire.body(head.answer_framing())).await.unwrap();
    assert_eq!(fixtures::script::sha256(&body), script.digest());
}

#[tokio::test]
async fn a_client_that_leaves_cancels_the_upstream_also_while_nothing_flows() {
    let proxy = Proxy::start().await;
    let mut request = StreamRequest::from(Script::new(20, Duration::ZERO, 7));
    request.fields.push(("x-fixture-gate".into(), "g".into()));
    request.leave_after = Some(2);
    proxy.upstream.open_gate("g", 2);
    assert_eq!(soon(stream(proxy.address, &request)).await.end, End::Left);
    let left = Instant::now();
    let counts = soon(
        proxy
            .upstream
            .wait(|counts| counts.cancelled == 1 && counts.open == 0),
    )
    .await;
    assert!(
        left.elapsed() < Duration::from_secs(1),
        "{:?}",
        left.elapsed()
    );
    assert_eq!(counts.finished, 0);
    until(|| proxy.relay.load().connections == 0).await;
}

#[tokio::test]
async fn a_client_that_leaves_before_the_answer_cancels_the_upstream() {
    let proxy = Proxy::start().await;
    let mut wire = proxy.connect().await;
    let request = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-fixture-fault: no-answer\r\ncontent-length: 2\r\n\r\n{}";
    wire.stream.write_all(request).await.unwrap();
    soon(proxy.upstream.wait(|counts| counts.bytes_read == 2)).await;
    drop(wire);
    soon(
        proxy
            .upstream
            .wait(|counts| counts.cancelled == 1 && counts.open == 0),
    )
    .await;
    assert_eq!(proxy.relay.load().local_5xx, 0);
}

#[tokio::test]
async fn a_client_that_leaves_inside_its_body_cuts_the_upstreams_request() {
    let proxy = Proxy::start().await;
    let mut wire = proxy.connect().await;
    let request = b"POST /v1/messages?plain HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf";
    wire.stream.write_all(request).await.unwrap();
    soon(proxy.upstream.wait(|counts| counts.bytes_read == 4)).await;
    drop(wire);
    soon(
        proxy
            .upstream
            .wait(|counts| counts.bodies_cut == 1 && counts.open == 0),
    )
    .await;
}

#[tokio::test]
async fn a_reader_that_never_reads_stops_the_upstream() {
    const LENGTH: u64 = 200 << 20;
    // Kernel buffers of three sockets and ours; far from the whole.
    const BOUND: u64 = 40 << 20;
    let proxy = Proxy::start().await;
    let mut wire = proxy.connect().await;
    let head = format!(
        "GET /v1/large HTTP/1.1\r\nhost: x\r\nx-fixture-bytes: {LENGTH}\r\nx-fixture-seed: 1\r\n\r\n"
    );
    wire.stream.write_all(head.as_bytes()).await.unwrap();

    // Everything in between is full when the upstream cannot write for a while.
    let mut before = 0;
    soon(async {
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let now = proxy.upstream.counts().bytes_written;
            if now == before && now > 0 {
                break;
            }
            before = now;
        }
    })
    .await;
    assert!(before < BOUND, "{before}");

    // It still arrives when the reader comes back.
    let head = soon(wire.head()).await.unwrap().unwrap();
    let mut framing = head.answer_framing();
    let mut read = 0;
    while let fixtures::wire::Piece::Data(data) = soon(wire.piece(&mut framing)).await.unwrap() {
        read += data.len() as u64;
    }
    assert_eq!(read, LENGTH);
}
