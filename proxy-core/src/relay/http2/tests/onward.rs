//! What an HTTP/1 client's connection uses: bytes of its own towards an HTTP/2 upstream.

use std::convert::Infallible;

use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::mpsc;

use super::super::{Answer, onward, wants_http2};
use super::played::Played;
use super::*;
use crate::gateway::answers::Failure;

type Pieces = mpsc::UnboundedSender<Result<Frame<Bytes>, Infallible>>;

/// Sends a request whose body the test makes.
fn sent(front: &Front) -> (Pieces, JoinHandle<Result<Response<Answer>, Failure>>) {
    let (pieces, mut body) = mpsc::unbounded_channel();
    let body = futures_util::stream::poll_fn(move |cx| body.poll_recv(cx));
    let request = Request::post("/v1/x?y")
        .header("host", "proxy")
        .header("connection", "keep-alive, x-hop")
        .header("x-hop", "1")
        .body(StreamBody::new(body))
        .unwrap();
    let (thread, target) = (Rc::clone(&front.thread), front.target());
    assert!(wants_http2(&target));
    let answer = tokio::task::spawn_local(async move { onward(&thread, request, &target).await });
    (pieces, answer)
}

fn data(bytes: &'static [u8]) -> Result<Frame<Bytes>, Infallible> {
    Ok(Frame::data(Bytes::from_static(bytes)))
}

#[tokio::test]
async fn a_body_flows_both_ways_piece_by_piece() {
    local(async {
        let mut upstream = Played::start().await;
        let front = upstream.front().await;
        let (pieces, answer) = sent(&front);
        let mut asked = upstream.next().await;
        let uri = format!("http://{}/v1/x?y", upstream.address);
        assert_eq!(asked.head.uri, *uri);
        for name in ["host", "connection", "x-hop", "content-length"] {
            assert!(!asked.head.headers.contains_key(name), "{name}");
        }
        let mut down = asked.answer();
        let mut answer = soon(answer).await.unwrap().unwrap();
        for _ in 0..10 {
            pieces.send(data(b"up")).unwrap();
            assert_eq!(bytes(&mut asked.body, 2).await, b"up");
            down.send_data(Bytes::from_static(b"down"), false).unwrap();
            let frame = soon(answer.body_mut().frame()).await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), &b"down"[..]);
        }
        drop(pieces);
        assert_eq!(read(&mut asked.body).await.unwrap(), b"");
        down.send_data(Bytes::new(), true).unwrap();
        let rest = soon(answer.into_body().collect()).await.unwrap();
        assert_eq!(rest.to_bytes(), &b""[..]);
    })
    .await;
}

#[tokio::test]
async fn the_answer_or_the_wait_for_it_dropped_resets_the_upstream() {
    local(async {
        let mut upstream = Played::start().await;
        let front = upstream.front().await;
        for answered in [false, true] {
            let (pieces, answer) = sent(&front);
            pieces.send(data(b"up")).unwrap();
            let mut asked = upstream.next().await;
            let mut down = answered.then(|| asked.answer());
            if answered {
                drop(soon(answer).await.unwrap().unwrap());
            } else {
                answer.abort();
            }
            assert_eq!(asked.reset(down.as_mut()).await, h2::Reason::CANCEL);
            // And lets go of the client's body.
            soon(pieces.closed()).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_body_that_the_upstream_wants_no_more_of_is_let_go_of() {
    local(async {
        let mut upstream = Played::start().await;
        let front = upstream.front().await;
        let (pieces, answer) = sent(&front);
        pieces.send(data(b"up")).unwrap();
        let mut asked = upstream.next().await;
        let mut down = asked.answer();
        down.send_data(Bytes::from_static(b"no"), true).unwrap();
        drop((asked, down));
        let answer = soon(answer).await.unwrap().unwrap();
        soon(pieces.closed()).await;
        let body = soon(answer.into_body().collect()).await.unwrap();
        assert_eq!(body.to_bytes(), &b"no"[..]);
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_is_cut_ends_with_an_error() {
    local(async {
        let mut upstream = Played::start().await;
        let front = upstream.front().await;
        let (_pieces, answer) = sent(&front);
        let mut asked = upstream.next().await;
        let mut down = asked.answer();
        down.send_data(Bytes::from_static(b"half"), false).unwrap();
        let answer = soon(answer).await.unwrap().unwrap();
        down.send_reset(h2::Reason::NO_ERROR);
        soon(answer.into_body().collect()).await.unwrap_err();
    })
    .await;
}
