//! One request and its answer, both directions at once: an answer may come before its request is sent to the end.

use std::future::poll_fn;
use std::task::Poll;

use super::answer;
use super::buffers::Buffer;
use super::client::{After, Client};
use super::flow::{Ending, Flow};
use super::framing::Body;
use super::request::Forward;
use super::thread::Thread;
use super::timeouts::Direction;
use super::tunnel;
use super::upstream::{self, Encryption};
use crate::gateway::answers::Failure;

/// Sends the request on, and its answer back.
pub(super) async fn run(
    thread: &Thread,
    client: &mut Client,
    forward: Forward,
    mut bytes: Buffer,
) -> After {
    let Forward {
        target,
        mut head,
        mut terms,
        upgrade,
    } = forward;
    bytes.consume(terms.head);
    let mut body = Body::new(terms.framing);
    let taken = match body.accept(bytes.unread()) {
        Ok(taken) => taken,
        Err(_bad) => {
            drop((head, bytes));
            return answer::refuse(thread, client, &terms, Failure::BadBody, &target).await;
        }
    };
    client.keep_ahead(&bytes.unread()[taken..]);
    // Who has begun to send its body does not wait for our word.
    terms.expects_continue &= taken == 0;

    let mut upstream = loop {
        let mut upstream = match thread.upstreams.kept(&target) {
            Some(upstream) => upstream,
            None => {
                head.settle();
                bytes.settle();
                match upstream::connect(
                    thread,
                    client,
                    &target,
                    Encryption::AsConfigured,
                    body.is_done(),
                )
                .await
                {
                    Some(Ok(upstream)) => upstream,
                    Some(Err(failure)) => {
                        return answer::fail(thread, client, &terms, failure, body, &target).await;
                    }
                    None => return After::Cut,
                }
            }
        };
        let begin = [head.unread(), &bytes.unread()[..taken]];
        let begun = poll_fn(|cx| Poll::Ready(upstream.stream.write(cx, &begin))).await;
        match begun {
            Ok(()) => break upstream,
            // Closed by the upstream before a byte was sent: another connection may be tried.
            Err(_) if upstream.reused && !target.is_tls() => {}
            Err(_) => {
                return answer::fail(thread, client, &terms, Failure::NoAnswer, body, &target)
                    .await;
            }
        }
    };
    drop(head);
    drop(bytes);

    let mut flow = Flow::new(thread, client, &mut upstream, &target, terms, upgrade, body);
    let ending = poll_fn(|cx| flow.poll(cx)).await;
    let reusable = flow.is_upstream_reusable();
    let (up, last, terms) = flow.into_rest();
    client.alarm.clear(Direction::Up);
    client.alarm.clear(Direction::Down);
    match ending {
        Ending::Answered => {
            match reusable {
                true => thread.upstreams.keep(upstream),
                false => drop(upstream),
            }
            match last {
                true => client.after_last(up.is_done()),
                false => answer::forget(thread, client, up).await,
            }
        }
        Ending::Switched(protocol) => tunnel::run(thread, client, upstream.stream, protocol).await,
        Ending::Failed(failure) => {
            drop(upstream);
            answer::fail(thread, client, &terms, failure, up, &target).await
        }
        Ending::Broken | Ending::ClientLeft => After::Cut,
    }
}
