//! The life of one client connection: request after request, until either side has enough.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use super::Drain;
use super::answer::{self, Rest};
use super::client::{After, Client, More};
use super::counters::Counters;
use super::exchange;
use super::framing::Body;
use super::head::Asked;
use super::request::{self, Next};
use super::thread::Thread;
use super::{bridge, http2, tunnel};
use crate::gateway::answers::{self, Failure, Shape};

/// Serves the socket until its end.
pub(super) async fn serve(thread: &Rc<Thread>, socket: OwnedFd) {
    let mut client = match Client::adopt(thread, socket) {
        Ok(client) => client,
        Err(error) => {
            tracing::warn!(%error, "a connection could not be taken over and was closed");
            return;
        }
    };
    let mut may_be_http2 = true;
    loop {
        let bytes = match client.more(thread).await {
            More::Bytes(bytes) => bytes,
            More::Ended => return,
            More::GiveBack => return give_back(thread, client),
            More::TooSlow => {
                let answer = answers::failure(Shape::default(), Failure::HeadTimeout, "");
                return refuse(thread, &mut client, &answer).await;
            }
        };
        // Old clients send an empty line behind a body; alone it begins no request (RFC 9112, section 2.2).
        if bytes.unread() == b"\r\n" && client.may_send_empty_line() {
            continue;
        }
        if may_be_http2 {
            if bytes.unread().starts_with(http2::PREFACE) {
                // Rare, and large: on the heap, so that every other connection's task stays small.
                let first = bytes.unread().to_vec();
                drop(bytes);
                return Box::pin(http2(thread, client, first)).await;
            }
            if http2::PREFACE.starts_with(bytes.unread()) {
                client.keep_part(bytes);
                continue;
            }
        }
        let next = request::decide(thread, &client, bytes.unread());
        if let Next::Incomplete = next {
            client.keep_part(bytes);
            continue;
        }
        may_be_http2 = false;
        client.begin(bytes.unread());
        let _in_flight = Counters::request(&thread.counters);
        let after = match next {
            Next::Incomplete => continue,
            Next::Refuse(answer) => {
                drop(bytes);
                return refuse(thread, &mut client, &answer).await;
            }
            Next::Answer(answer, terms) => {
                let mut body = Body::new(terms.framing);
                let rest = &bytes.unread()[terms.head..];
                match body.accept(rest) {
                    Ok(taken) => {
                        client.keep_ahead(&rest[taken..]);
                        drop(bytes);
                        let rest = Rest::of(&terms, body);
                        answer::answer(thread, &mut client, &answer, terms.asked, rest).await
                    }
                    Err(_bad) => {
                        drop(bytes);
                        let answer = answers::failure(terms.shape, Failure::BadBody, "");
                        return refuse(thread, &mut client, &answer).await;
                    }
                }
            }
            Next::Forward(forward) => exchange::run(thread, &mut client, forward, bytes).await,
            Next::Cross(crossing) => {
                Box::pin(bridge::run(thread, &mut client, *crossing, bytes)).await
            }
            Next::Connect(target, length) => {
                client.keep_ahead(&bytes.unread()[length..]);
                drop(bytes);
                Box::pin(tunnel::connect(thread, &mut client, &target)).await
            }
        };
        match after {
            After::Next => client.record.end(),
            After::Close | After::Cut => return,
            After::Linger => return answer::linger(thread, &mut client).await,
        }
    }
}

/// Answers what is no request, and closes: nothing that follows can be believed.
async fn refuse(thread: &Thread, client: &mut Client, answer: &answers::LocalAnswer) {
    let after = answer::answer(thread, client, answer, Asked::Other, Rest::unknown()).await;
    if after != After::Cut {
        answer::linger(thread, client).await;
    }
}

/// Nobody there to take it: closed, which between two requests cuts nothing.
fn give_back(thread: &Thread, mut client: Client) {
    if let Some(Drain::GiveBack(to)) = &*thread.drain.borrow()
        && let Some(socket) = client.stream.release()
    {
        let _closed = to.send(socket);
    }
}

async fn http2(thread: &Rc<Thread>, client: Client, first: Vec<u8>) {
    // Its requests have entries of their own.
    let Client { stream, peer, .. } = client;
    if let Some(io) = stream.into_io() {
        http2::serve(thread, io, first, peer).await;
    }
}
