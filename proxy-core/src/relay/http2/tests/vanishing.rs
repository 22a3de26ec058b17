//! Upstreams whose end of a shared connection is not there any more, without a word.

use futures_util::FutureExt;
use tokio_util::either::Either;

use super::super::passage::Passage;
use super::super::shared::{Link, Pulse, Slot};
use super::super::stream::{Attempt, attempt};
use super::*;
use crate::gateway::answers::Failure;

const PULSE: Pulse = Pulse {
    after: Duration::from_millis(100),
    within: Duration::from_millis(300),
};

#[tokio::test]
async fn a_connection_that_does_not_answer_is_given_up_and_a_slow_answer_is_waited_for() {
    local(async {
        for is_there in [true, false] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let config = UpstreamConfig::new(format!("http://{address}"));
            let target = Front::with(config, |_| {}).await.target();
            let stream = TcpStream::connect(address).await.unwrap();
            let (near, _) = listener.accept().await.unwrap();
            let (link, far) = tokio::join!(
                Link::begin(&target, Either::Left(stream), PULSE),
                h2::server::handshake(near),
            );
            let slot = Rc::new(Slot::of(&link.map_err(|(_, cause)| cause).unwrap()));
            let mut far = far.unwrap();
            let request = post("/v1/x").body(()).unwrap();
            let passage = Passage::new(http_body_util::Empty::<Bytes>::new(), Duration::ZERO);
            let mut asking = std::pin::pin!(attempt(&slot, "one", request, &passage));
            assert!(asking.as_mut().now_or_never().is_none());
            let (_head, mut respond) = soon(far.accept()).await.unwrap().unwrap();
            if is_there {
                // Ten pings later.
                let waiting = async {
                    tokio::select! {
                        _ = far.accept() => panic!("nothing more is asked"),
                        _ = asking.as_mut() => panic!("nothing was answered"),
                        () = tokio::time::sleep(PULSE.after * 10) => {}
                    }
                };
                waiting.await;
                respond.send_response(Response::new(()), true).unwrap();
                tokio::task::spawn_local(async move { while far.accept().await.is_some() {} });
                assert!(matches!(soon(asking).await, Attempt::Answered(_)));
            } else {
                // It is not polled: nobody reads at the other end.
                let failed = soon(asking).await;
                assert!(matches!(failed, Attempt::Failed(Failure::NoAnswer)));
            }
        }
    })
    .await;
}
