//! Clients that leave, drains and aborts.

use std::convert::Infallible;
use std::time::Instant;

use h2::Reason;
use http_body_util::{BodyExt, Collected, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::super::Local;
use super::super::passage::Received;
use super::*;

#[tokio::test]
async fn a_reset_stream_cancels_the_upstream_at_once_also_while_nothing_flows() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let client = front.connect().await;
        let script = Script::new(20, Duration::ZERO, 7);
        for (count, reason) in [(1, Reason::CANCEL), (2, Reason::NO_ERROR)] {
            let gate = format!("gate-{count}");
            upstream.open_gate(&gate, 2);
            let request = streaming(&script).header("x-fixture-gate", gate);
            let mut sender = client.sender.clone().ready().await.unwrap();
            let (answer, mut stream) = sender
                .send_request(request.body(()).unwrap(), false)
                .unwrap();
            stream.send_data(Bytes::from_static(b"{}"), true).unwrap();
            let mut answer = soon(answer).await.unwrap().into_body();
            let came = script.event(0).len() + script.event(1).len();
            bytes(&mut answer, came).await;
            let left = Instant::now();
            stream.send_reset(reason);
            soon(upstream.wait(|counts| counts.cancelled == count && counts.open == 0)).await;
            assert!(
                left.elapsed() < Duration::from_millis(500),
                "{:?}",
                left.elapsed()
            );
        }
        until(|| front.exchanges() == 0).await;
        assert_eq!(front.open.get(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_client_that_leaves_before_the_answer_cancels_the_upstream() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        for count in [1, 2] {
            let client = front.connect().await;
            let request = post("/v1/messages").header("x-fixture-fault", "no-answer");
            let mut sender = client.sender.clone().ready().await.unwrap();
            let (answer, mut stream) = sender
                .send_request(request.body(()).unwrap(), false)
                .unwrap();
            stream.send_data(Bytes::from_static(b"{}"), true).unwrap();
            soon(upstream.wait(|counts| counts.bytes_read == 2 * count)).await;
            if count == 1 {
                stream.send_reset(Reason::CANCEL);
            } else {
                drop((client, answer, stream, sender));
            }
            soon(upstream.wait(|counts| counts.cancelled == count && counts.open == 0)).await;
        }
        until(|| front.exchanges() == 0).await;
        assert_eq!(front.thread.counters.load().local_5xx, 0);
    })
    .await;
}

#[tokio::test]
async fn a_body_that_is_reset_in_its_middle_never_reaches_the_upstream_whole() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let client = front.connect().await;
        // hyper takes the last one for a clean end.
        for (count, reason) in [(1, Reason::CANCEL), (2, Reason::NO_ERROR)] {
            let mut sender = client.sender.clone().ready().await.unwrap();
            let (_answer, mut stream) = sender
                .send_request(post("/v1/messages?plain").body(()).unwrap(), false)
                .unwrap();
            stream
                .send_data(Bytes::from_static(b"half"), false)
                .unwrap();
            soon(upstream.wait(|counts| counts.bytes_read == 4 * count)).await;
            stream.send_reset(reason);
            soon(upstream.wait(|counts| counts.bodies_cut == count && counts.open == 0)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_body_that_does_not_go_on_in_time_is_408_and_cut() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::with(UpstreamConfig::new(upstream.url()), |config| {
            config.server.body_timeout = Duration::from_millis(200);
        })
        .await;
        let client = front.connect().await;
        let mut sender = client.sender.clone().ready().await.unwrap();
        let (answer, mut stream) = sender
            .send_request(post("/v1/messages?plain").body(()).unwrap(), false)
            .unwrap();
        stream
            .send_data(Bytes::from_static(b"half"), false)
            .unwrap();
        assert_eq!(json(soon(answer).await.unwrap()).await.0, 408);
        soon(upstream.wait(|counts| counts.bodies_cut == 1 && counts.open == 0)).await;
        assert_eq!(front.thread.counters.load().local_5xx, 0);
    })
    .await;
}

#[tokio::test]
async fn each_stream_is_in_flight_by_itself_until_its_answer_was_written() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let mut client = front.connect().await;
        let script = Script::new(20, Duration::ZERO, 7);
        let mut answers = Vec::new();
        for gate in ["one", "other"] {
            let request = streaming(&script).header("x-fixture-gate", gate);
            let answer = client.ask(request.body(()).unwrap(), b"{}").await;
            answers.push(answer.into_body());
            upstream.open_gate(gate, 1);
        }
        let first = script.event(0).len();
        for answer in &mut answers {
            bytes(answer, first).await;
        }
        let listing = front.thread.register.list(9);
        assert_eq!(listing.total, 2);
        for held in listing.oldest {
            assert!(
                held.client.is_some() && held.route.starts_with("/v1/"),
                "{held:?}"
            );
            assert_eq!((held.bytes_in, held.bytes_out), (2, first as u64));
        }
        upstream.open_gate("one", 100);
        upstream.open_gate("other", 100);
        for answer in &mut answers {
            read(answer).await.unwrap();
        }
        until(|| front.thread.register.list(9).total == 0).await;
    })
    .await;
}

#[tokio::test]
async fn giving_idle_connections_back_says_nothing_here_and_a_drain_after_it_does() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let mut client = front.connect().await;
        let warm_up = client.ask(post("/v1/x").body(()).unwrap(), b"{}").await;
        json(warm_up).await;
        let (give_back, mut returned) = tokio::sync::mpsc::unbounded_channel();
        front.phase.send_replace(Phase::GivingBack(give_back));
        for _ in 0..3 {
            tokio::task::yield_now().await;
            let again = client.ask(post("/v1/x").body(()).unwrap(), b"{}").await;
            assert_eq!(json(again).await.0, 200);
        }
        assert_eq!(front.open.get(), 1);
        front.drain();
        soon(&mut client.driver).await.unwrap().unwrap();
        until(|| front.open.get() == 0).await;
        assert!(returned.try_recv().is_err());
    })
    .await;
}

#[tokio::test]
async fn a_drain_says_goaway_lets_streams_finish_and_closes() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let mut busy = front.connect().await;
        let mut idle = front.connect().await;
        let script = Script::new(20, Duration::ZERO, 7);
        let warm_up = idle.ask(post("/v1/x").body(()).unwrap(), b"{}").await;
        json(warm_up).await;
        let request = streaming(&script).header("x-fixture-gate", "g");
        let mut answer = busy.ask(request.body(()).unwrap(), b"{}").await.into_body();
        upstream.open_gate("g", 1);
        bytes(&mut answer, script.event(0).len()).await;

        front.drain();
        soon(&mut idle.driver).await.unwrap().unwrap();
        until(|| front.open.get() == 1).await;
        // GOAWAY came here, too: nothing new is asked on this connection.
        until(|| {
            let mut sender = busy.sender.clone();
            let waker = std::task::Waker::noop();
            let polled = sender.poll_ready(&mut std::task::Context::from_waker(waker));
            matches!(polled, std::task::Poll::Ready(Err(_)))
        })
        .await;
        assert_eq!(front.exchanges(), 1);

        upstream.open_gate("g", 100);
        let rest = read(&mut answer).await.unwrap();
        assert_eq!(rest, script.bytes()[script.event(0).len()..]);
        soon(&mut busy.driver).await.unwrap().unwrap();
        until(|| front.open.get() == 0).await;
    })
    .await;
}

#[tokio::test]
async fn an_abort_cuts_streams_and_never_ends_them() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let mut client = front.connect().await;
        let script = Script::new(20, Duration::ZERO, 7);
        let request = streaming(&script).header("x-fixture-gate", "g");
        let mut answer = client
            .ask(request.body(()).unwrap(), b"{}")
            .await
            .into_body();
        upstream.open_gate("g", 1);
        bytes(&mut answer, script.event(0).len()).await;
        front.phase.send_replace(Phase::Aborted);
        read(&mut answer).await.unwrap_err();
        until(|| front.open.get() == 0 && front.exchanges() == 0).await;
        soon(upstream.wait(|counts| counts.cancelled == 1 && counts.open == 0)).await;
    })
    .await;
}

#[tokio::test]
async fn a_connection_without_requests_is_closed_in_time_and_a_busy_one_is_not() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::with(UpstreamConfig::new(upstream.url()), |config| {
            config.server.idle_timeout = Duration::from_millis(300);
        })
        .await;
        let mut busy = front.connect().await;
        let script = Script::new(1, Duration::ZERO, 7);
        let request = streaming(&script).header("x-fixture-gate", "g");
        let mut answer = busy.ask(request.body(()).unwrap(), b"{}").await.into_body();
        let mut idle = front.connect().await;
        until(|| front.open.get() == 2).await;
        soon(&mut idle.driver).await.unwrap().unwrap();
        until(|| front.open.get() == 1).await;
        upstream.open_gate("g", 100);
        assert_eq!(read(&mut answer).await.unwrap(), script.bytes());
        soon(&mut busy.driver).await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test]
async fn thousands_of_requests_that_are_reset_at_once_leave_nothing_behind() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let client = front.connect().await;
        let script = Script::new(20, Duration::from_secs(1), 7);
        for _ in 0..2_000 {
            let Ok(mut sender) = soon(client.sender.clone().ready()).await else {
                break;
            };
            let Ok((_answer, mut stream)) =
                sender.send_request(streaming(&script).body(()).unwrap(), false)
            else {
                break;
            };
            stream.send_reset(Reason::CANCEL);
            tokio::task::yield_now().await;
        }
        until(|| front.exchanges() == 0).await;
        soon(upstream.wait(|counts| counts.open == 0)).await;
    })
    .await;
}

#[tokio::test]
async fn a_body_that_is_reset_without_an_error_does_not_look_whole() {
    local(async {
        for is_whole in [true, false] {
            let (near, far) = tokio::io::duplex(64 * 1024);
            let (sender, mut came) = tokio::sync::mpsc::unbounded_channel();
            // Read by a task of its own, for a reset ends the service that it came with.
            let service = service_fn(move |request: Request<Incoming>| {
                let sender = sender.clone();
                tokio::task::spawn_local(async move {
                    let body = Received {
                        body: request.into_body(),
                        entry: Rc::default(),
                    }
                    .collect()
                    .await;
                    sender.send(body.map(Collected::to_bytes)).ok();
                });
                std::future::pending::<Result<Response<Empty<Bytes>>, Infallible>>()
            });
            let served = hyper::server::conn::http2::Builder::new(Local)
                .serve_connection(TokioIo::new(far), service);
            tokio::task::spawn_local(served);
            let (sender, connection) = h2::client::handshake(near).await.unwrap();
            tokio::task::spawn_local(connection);
            let mut sender = soon(sender.ready()).await.unwrap();
            let (_answer, mut stream) = sender
                .send_request(post("/v1/x").body(()).unwrap(), false)
                .unwrap();
            stream
                .send_data(Bytes::from_static(b"half"), is_whole)
                .unwrap();
            if !is_whole {
                tokio::task::yield_now().await;
                stream.send_reset(Reason::NO_ERROR);
            }
            let body = soon(came.recv()).await.unwrap();
            assert_eq!(body.is_ok(), is_whole, "{body:?}");
        }
    })
    .await;
}
