//! Each piece arrives before the next is written: nothing waits for company.

use std::io::Write;
use std::time::Instant;

use super::ends::*;
use super::*;

const REQUEST: &str = "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 2\r\n\r\n{}";

/// An event of exactly 100 bytes.
fn event(number: usize) -> Vec<u8> {
    let start = format!("data: {number} ");
    format!("{start}{}\n\n", "x".repeat(98 - start.len())).into_bytes()
}

/// Each piece is sent when the one before it has arrived. The time that each took.
async fn gated(
    from: &mut Peer,
    to: &mut Peer,
    pieces: impl IntoIterator<Item = Vec<u8>>,
) -> Vec<Duration> {
    let mut times = Vec::new();
    for piece in pieces {
        let sent = Instant::now();
        from.send(&piece).await;
        to.expect(&piece).await;
        times.push(sent.elapsed());
    }
    times.sort_unstable();
    times
}

#[tokio::test]
async fn an_answers_head_arrives_before_its_first_byte() {
    let ends = Ends::start().await;
    for head in [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    ] {
        let (mut client, mut upstream) = ends.asked(REQUEST).await;
        upstream.send(head).await;
        client.expect(head).await;
    }
    let (mut client, mut upstream) = ends.asked(REQUEST).await;
    upstream.send("HTTP/1.1 200 OK\r\n\r\n").await;
    client.head().await;
}

#[tokio::test]
async fn each_event_in_a_chunk_of_its_own_arrives_before_the_next_is_written() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(REQUEST).await;
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let events = (0..500).map(|number| chunk(&event(number)));
    let pieces = std::iter::once(head.into()).chain(events);
    let times = gated(&mut upstream, &mut client, pieces).await;
    // Whatever would wait for a timer or an acknowledgement would wait for 40 ms.
    assert!(times[250] < Duration::from_millis(20), "{:?}", times[250]);
    upstream.send("0\r\n\r\n").await;
    client.expect("0\r\n\r\n").await;
}

#[tokio::test]
async fn each_event_of_a_body_with_a_length_arrives_before_the_next_is_written() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(REQUEST).await;
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n";
    let pieces = std::iter::once(head.into()).chain((0..500).map(event));
    let times = gated(&mut upstream, &mut client, pieces).await;
    assert!(times[250] < Duration::from_millis(20), "{:?}", times[250]);
    client.send(REQUEST).await;
    upstream.expect(ends.onward(REQUEST)).await;
}

#[tokio::test]
async fn each_event_of_a_body_until_close_arrives_before_the_next_is_written() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(REQUEST).await;
    upstream.send("HTTP/1.1 200 OK\r\n\r\n").await;
    client.head().await;
    gated(&mut upstream, &mut client, (0..200).map(event)).await;
    drop(upstream);
    client.expect_closed().await;
}

#[tokio::test]
async fn parts_of_one_chunk_arrive_one_by_one_and_several_chunks_at_once() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(REQUEST).await;
    let pieces = [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n12\r\n0",
        "123456",
        "7",
        "89abcdefgh\r\n3\r\nab",
        "c\r\n1\r\na\r\n1\r\nb\r\n1\r\nc\r\n0F\r\n",
        "0123456789abcde",
    ];
    gated(
        &mut upstream,
        &mut client,
        pieces.map(|piece| piece.as_bytes().to_vec()),
    )
    .await;
    upstream.send("\r\n0\r\n\r\n").await;
    client.expect("\r\n0\r\n\r\n").await;
}

#[tokio::test]
async fn an_event_cut_inside_a_character_arrives_part_by_part() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(REQUEST).await;
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";
    upstream.send(head).await;
    client.expect(head).await;
    let text = "data: über 日本語 🌊\n\n".as_bytes();
    // In chunks of one byte, and byte by byte within one chunk.
    gated(&mut upstream, &mut client, text.chunks(1).map(chunk)).await;
    let size = format!("{:x}\r\n", text.len()).into_bytes();
    let whole = std::iter::once([&size[..], &text[..1]].concat());
    let pieces = whole.chain(text[1..].chunks(1).map(<[u8]>::to_vec));
    gated(&mut upstream, &mut client, pieces).await;
}

#[tokio::test]
async fn compressed_events_arrive_one_by_one_and_compressed() {
    let ends = Ends::start().await;
    let request = "GET /v1/x HTTP/1.1\r\nHost: proxy\r\nAccept-Encoding: gzip\r\n\r\n";
    let (mut client, mut upstream) = ends.asked(request).await;
    let head = "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n";
    upstream.send(head).await;
    client.expect(head).await;
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    let mut plain = flate2::write::GzDecoder::new(Vec::new());
    for number in 0..50 {
        packed.write_all(&event(number)).unwrap();
        packed.flush().unwrap();
        let piece = std::mem::take(packed.get_mut());
        upstream.send(chunk(&piece)).await;
        client.expect(chunk(&piece)).await;
        // What has arrived is enough to read the event.
        plain.write_all(&piece).unwrap();
        plain.flush().unwrap();
        assert!(plain.get_ref().ends_with(&event(number)), "event {number}");
    }
    let end = packed.finish().unwrap();
    upstream.send(chunk(&end)).await;
    client.expect(chunk(&end)).await;
}

/// How long one event of this size takes in pieces of 16 KiB, each sent when the one before has arrived.
async fn time_of_one_event(ends: &Ends, length: usize) -> Duration {
    let (mut client, mut upstream) = ends.asked(REQUEST).await;
    let event = [b"data: ", &vec![b'x'; length][..], b"\n\n"].concat();
    let head = format!(
        "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\nd",
        event.len()
    );
    upstream.send(&head).await;
    client
        .expect(head.replace("Connection: close\r\n", ""))
        .await;
    let started = Instant::now();
    gated(
        &mut upstream,
        &mut client,
        event[1..].chunks(16 << 10).map(<[u8]>::to_vec),
    )
    .await;
    let took = started.elapsed();
    upstream.send("\r\n0\r\n\r\n").await;
    client.expect("\r\n0\r\n\r\n").await;
    took
}

#[tokio::test]
async fn a_large_event_takes_time_in_proportion_to_its_size() {
    let ends = Ends::start().await;
    let mut ratios = Vec::new();
    for _ in 0..5 {
        let small = time_of_one_event(&ends, 5 << 19).await;
        let large = time_of_one_event(&ends, 10 << 20).await;
        ratios.push(large.as_secs_f64() / small.as_secs_f64());
    }
    ratios.sort_by(f64::total_cmp);
    // Four times the bytes; with a relay that looks at the whole event again for each piece, sixteen times the work.
    assert!(ratios[2] < 8.0, "{ratios:?}");
}

#[tokio::test]
async fn a_large_request_body_is_seen_piece_by_piece() {
    const PIECE: usize = 64 << 10;
    const LENGTH: usize = 28 << 20;
    let ends = Ends::start().await;
    let body = fixtures::script::noise(3, LENGTH);
    let head = format!("POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: {LENGTH}\r\n\r\n");
    let (mut client, mut upstream) = ends.asked(&head).await;
    gated(
        &mut client,
        &mut upstream,
        body.chunks(PIECE).map(<[u8]>::to_vec),
    )
    .await;
    let answer = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
    upstream.send(answer).await;
    client
        .expect(answer.replace("Connection: close\r\n", ""))
        .await;

    let head = "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (mut client, mut upstream) = ends.asked(head).await;
    gated(&mut client, &mut upstream, body.chunks(PIECE).map(chunk)).await;
    client.send("0\r\n\r\n").await;
    upstream.expect("0\r\n\r\n").await;
}

#[tokio::test]
async fn a_small_piece_upward_does_not_wait_for_the_next() {
    let ends = Ends::start().await;
    let head = "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (mut client, mut upstream) = ends.asked(head).await;
    let times = gated(
        &mut client,
        &mut upstream,
        (0..500).map(|number| chunk(&event(number))),
    )
    .await;
    assert!(times[250] < Duration::from_millis(20), "{:?}", times[250]);
}

#[tokio::test]
async fn the_kernel_is_told_not_to_wait_for_company_either() {
    let ends = Ends::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = Peer::new(
        TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap(),
    );
    let accepted = listener.accept().await.unwrap().0.into_std().unwrap();
    let same = accepted.try_clone().unwrap();
    ends.relay.adopt(accepted.into()).unwrap();
    client.send(REQUEST).await;
    ends.upstream().await.expect(ends.onward(REQUEST)).await;
    assert!(same.nodelay().unwrap());
}
