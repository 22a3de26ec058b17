//! The contract of giving connections back, with a real worker: a standby gives its idle connections back within its
//! credit and can be made active again; nobody's connection is lost, closed or served twice, whenever it dies.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use control::types::Outcome;
use fixtures::upstream::Upstream;
use fixtures::wire::Wire;
use harness::{
    ByHand, PATIENCE, Proxy, TestHome, by_person, connection, process, until, until_some,
};
use rollproxy::channel::{ToSupervisor, ToWorker};
use rollproxy::config::{Config, Route, Upstream as UpstreamConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n";

/// One request on a connection that goes on.
async fn ask(client: &mut TcpStream) -> u16 {
    client.write_all(HEALTH).await.unwrap();
    answer(client).await
}

async fn answer(client: &mut TcpStream) -> u16 {
    let mut wire = Wire::new(client);
    let asked = async {
        let head = wire.head().await.unwrap().expect("an answer");
        wire.body(head.answer_framing()).await.unwrap();
        head.status().unwrap()
    };
    tokio::time::timeout(PATIENCE, asked)
        .await
        .expect("in time")
}

/// Whether the connection ends without another byte.
async fn is_closed(client: &mut TcpStream) -> bool {
    let mut byte = [0];
    let read = tokio::time::timeout(PATIENCE, client.read(&mut byte)).await;
    matches!(read.expect("an end in time"), Ok(0) | Err(_))
}

/// Whose connection this is, as a number that both ends know.
fn port_of(socket: &OwnedFd) -> u16 {
    let peer = rustix::net::getpeername(socket).unwrap().unwrap();
    std::net::SocketAddr::try_from(peer).unwrap().port()
}

fn port(client: &TcpStream) -> u16 {
    client.local_addr().unwrap().port()
}

async fn served(worker: &mut ByHand, count: usize) -> Vec<TcpStream> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut client = worker.client().await;
        assert_eq!(ask(&mut client).await, 200);
        clients.push(client);
    }
    clients
}

fn standby(returns: u32) -> ToWorker {
    ToWorker::Standby {
        returns: Some(returns),
    }
}

fn drain(returns: Option<u32>) -> ToWorker {
    ToWorker::Drain {
        close: false,
        returns,
    }
}

/// A configuration whose `/v1/*` goes to the fixture.
fn config_to(upstream: &Upstream) -> Config {
    let mut config = Config::default();
    let to = UpstreamConfig::new(upstream.url());
    config.upstreams.insert("fixture".into(), to);
    config.routes = vec![Route::new("/v1/*", "fixture")];
    config
}

async fn worker(home: &TestHome) -> ByHand {
    ByHand::active(home, &Config::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_refuses_new_sockets_owns_what_it_accepted_and_gives_both_kinds_of_idle_back() {
    let home = TestHome::new();
    let mut worker = worker(&home).await;
    let mut used = served(&mut worker, 1).await.remove(0);
    let fresh = worker.client().await;
    let (accepted, socket) = connection().await;
    worker.offer(1, &socket);
    assert_eq!(
        worker.hear().await,
        Some(ToSupervisor::SocketAccepted { id: 1 })
    );

    worker.say(&standby(64));
    let mut back = vec![worker.hear_return().await, worker.hear_return().await];
    worker.offer(2, &socket);
    let reason = "standby".to_owned();
    let refused = Some(ToSupervisor::SocketRefused { id: 2, reason });
    assert_eq!(worker.hear().await, refused);
    worker.say(&ToWorker::SocketCommit { id: 1 });
    assert_eq!(
        worker.hear().await,
        Some(ToSupervisor::SocketOwned { id: 1 })
    );
    back.push(worker.hear_return().await);
    let mut ports: Vec<u16> = back.iter().map(port_of).collect();
    ports.sort_unstable();
    let mut wanted = vec![port(&used), port(&fresh), port(&accepted)];
    wanted.sort_unstable();
    assert_eq!(ports, wanted);

    // Active again: it takes sockets, those among them that it gave back.
    worker.say(&ToWorker::Activate);
    assert_eq!(worker.hear().await, Some(ToSupervisor::Activated));
    for socket in back {
        worker.hand_over(socket).await;
    }
    assert_eq!(ask(&mut used).await, 200);
    worker.expect_silence().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_connection_is_given_back_when_its_exchange_ends_and_its_answer_says_nothing() {
    let upstream = Upstream::start().await.unwrap();
    let home = TestHome::new();
    let mut worker = ByHand::active(&home, &config_to(&upstream)).await;
    let mut client = worker.client().await;
    client
        .write_all(b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{")
        .await
        .unwrap();
    until("the request came through", || {
        upstream.counts().concurrent == 1
    })
    .await;
    worker.say(&standby(64));
    worker.expect_silence().await;
    client.write_all(b"}").await.unwrap();
    let mut wire = Wire::new(&mut client);
    let head = wire.head().await.unwrap().unwrap();
    assert_eq!((head.status(), head.field("connection")), (Some(200), None));
    wire.body(head.answer_framing()).await.unwrap();
    let back = worker.hear_return().await;
    assert_eq!(port_of(&back), port(&client));
    assert_eq!(rustix::io::ioctl_fionread(&back).unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_than_the_credit_is_under_way_and_everything_comes_back_in_the_end() {
    for standby_first in [true, false] {
        let home = TestHome::new();
        let mut worker = worker(&home).await;
        let clients = served(&mut worker, 50).await;
        match standby_first {
            true => worker.say(&standby(1)),
            false => worker.say(&drain(Some(1))),
        }
        let mut back = vec![port_of(&worker.hear_return().await)];
        for _ in 1..clients.len() {
            // Whoever drains says nothing before its last connection is back.
            worker.expect_silence().await;
            worker.say(&ToWorker::ReturnCredit { count: 1 });
            back.push(port_of(&worker.hear_return().await));
        }
        back.sort_unstable();
        let mut wanted: Vec<u16> = clients.iter().map(port).collect();
        wanted.sort_unstable();
        assert_eq!(back, wanted);
        if standby_first {
            worker.expect_silence().await;
            worker.say(&drain(Some(1)));
        }
        assert_eq!(worker.hear().await, Some(ToSupervisor::Drained));
        assert_eq!(worker.hear().await, None);
        assert_eq!(worker.ended().await, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_credit_is_served_again_by_a_worker_that_is_made_active() {
    let home = TestHome::new();
    let mut worker = worker(&home).await;
    let mut clients = served(&mut worker, 20).await;
    for _ in 0..10 {
        worker.say(&standby(3));
        let mut back = Vec::new();
        for _ in 0..3 {
            back.push(worker.hear_return().await);
        }
        // Nobody watches what waits: what it asks meanwhile waits with it.
        for client in &mut clients {
            client.write_all(HEALTH).await.unwrap();
        }
        worker.say(&ToWorker::Activate);
        // No return after it: that would be sent here again.
        assert_eq!(worker.hear().await, Some(ToSupervisor::Activated));
        for socket in back {
            worker.hand_over(socket).await;
        }
        worker.say(&ToWorker::ReturnCredit { count: 3 });
        for client in &mut clients {
            assert_eq!(answer(client).await, 200);
        }
        worker.expect_silence().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standby_and_active_in_quick_turns_lose_no_connection_and_answer_each_request_once() {
    let home = TestHome::new();
    let mut worker = worker(&home).await;
    let clients = served(&mut worker, 10).await;
    let enough = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let asking: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            let enough = enough.clone();
            tokio::spawn(async move {
                let mut answers = 0_u32;
                while !enough.load(std::sync::atomic::Ordering::Relaxed) {
                    assert_eq!(ask(&mut client).await, 200);
                    answers += 1;
                }
                answers
            })
        })
        .collect();
    let (mut turns, mut returns) = (0, 0);
    while turns < 200 || returns < 20 {
        turns += 1;
        worker.say(&standby(2));
        worker.say(&ToWorker::Activate);
        let mut back = Vec::new();
        loop {
            match worker.hear().await {
                Some(ToSupervisor::Activated) => break,
                Some(ToSupervisor::SocketReturned { .. }) => back.append(worker.returned()),
                other => panic!("{other:?}"),
            }
        }
        returns += back.len();
        let count = u32::try_from(back.len()).unwrap();
        worker.say(&ToWorker::ReturnCredit { count });
        for socket in back {
            worker.hand_over(socket).await;
        }
    }
    enough.store(true, std::sync::atomic::Ordering::Relaxed);
    for client in asking {
        assert!(client.await.unwrap() > 0);
    }
    worker.expect_silence().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_point_of_its_returns_each_connection_is_with_the_supervisor_or_closed_once()
{
    const CLIENTS: usize = 12;
    for heard in 0..=CLIENTS {
        let home = TestHome::new();
        let mut worker = worker(&home).await;
        let mut clients = served(&mut worker, CLIENTS).await;
        worker.say(&standby(5));
        let mut back = Vec::new();
        for _ in 0..heard {
            back.push(worker.hear_return().await);
            worker.say(&ToWorker::ReturnCredit { count: 1 });
        }
        worker.kill();
        // What was sent before its death is received after it.
        while worker.hear().await.is_some() {}
        back.append(worker.returned());
        assert!(back.len() >= heard, "{} of {heard}", back.len());
        let ports: Vec<u16> = back.iter().map(port_of).collect();
        for client in &mut clients {
            if ports.contains(&port(client)) {
                // Open, and nothing was read of what it sends now.
                client.write_all(HEALTH).await.unwrap();
            } else {
                assert!(is_closed(client).await);
            }
        }
        for socket in &back {
            until_some("its request is there, unread", || {
                let unread = rustix::io::ioctl_fionread(socket).unwrap();
                (unread == HEALTH.len() as u64).then_some(())
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_keeps_no_descriptor_of_what_it_gave_back() {
    let home = TestHome::new();
    let mut worker = worker(&home).await;
    let pid = i32::try_from(worker.us.pid).unwrap();
    let before = process::descriptors_at_rest(pid).await.len();
    let clients = served(&mut worker, 30).await;
    assert_eq!(process::descriptors(pid).len(), before + clients.len());
    worker.say(&standby(64));
    for _ in 0..clients.len() {
        worker.hear_return().await;
    }
    until("only its own are left", || {
        process::descriptors(pid).len() == before
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supervisor_that_dies_while_returns_wait_leaves_a_worker_that_answers_them_before_it_ends()
 {
    let home = TestHome::new();
    let mut worker = worker(&home).await;
    let mut clients = served(&mut worker, 5).await;
    worker.say(&drain(Some(1)));
    let back = worker.hear_return().await;
    let with_us = clients.iter().position(|one| port(one) == port_of(&back));
    drop(clients.remove(with_us.unwrap()));
    for client in &mut clients {
        client.write_all(HEALTH).await.unwrap();
    }
    worker.leave();
    for client in &mut clients {
        assert_eq!(answer(client).await, 200);
        assert!(is_closed(client).await);
    }
    assert_eq!(worker.ended().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supervisor_that_counts_no_returns_gets_all_at_once() {
    let home = TestHome::new();
    let mut worker = worker(&home).await;
    let clients = served(&mut worker, 200).await;
    worker.say(&drain(None));
    for _ in 0..clients.len() {
        worker.hear_return().await;
    }
    assert_eq!(worker.hear().await, Some(ToSupervisor::Drained));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_worker_takes_nothing_and_goes_on_by_itself_when_nobody_renews_the_pause() {
    let home = TestHome::new();
    let mut worker = worker(&home).await;
    let _clients = served(&mut worker, 3).await;
    let pause = |id, lease_ms| ToWorker::Admission {
        id,
        paused: true,
        lease_ms,
    };
    worker.say(&pause(1, 60_000));
    let mut back = Vec::new();
    let (mut answered, mut left) = (false, 3);
    while !answered || left > 0 {
        match worker.hear().await {
            Some(ToSupervisor::SocketReturned { .. }) => left -= 1,
            Some(ToSupervisor::Admission {
                id,
                connections,
                exchanges,
            }) => {
                // The last answers may just have been read.
                assert!(!answered && connections <= 3 && exchanges <= connections);
                assert_eq!(id, 1);
                answered = true;
            }
            other => panic!("{other:?}"),
        }
        back.append(worker.returned());
    }
    let refused = |id| {
        let reason = "paused".to_owned();
        Some(ToSupervisor::SocketRefused { id, reason })
    };
    let (_client, socket) = connection().await;
    worker.offer(1, &socket);
    assert_eq!(worker.hear().await, refused(1));

    // Renewed with less: the last word counts. It is still as paused as before until that is over.
    let renewed = Instant::now();
    worker.say(&pause(2, 700));
    let none = ToSupervisor::Admission {
        id: 2,
        connections: 0,
        exchanges: 0,
    };
    assert_eq!(worker.hear().await, Some(none));
    worker.offer(2, &socket);
    assert_eq!(worker.hear().await, refused(2));
    let mut id = 3;
    loop {
        worker.offer(id, &socket);
        match worker.hear().await {
            Some(ToSupervisor::SocketRefused { .. }) => {}
            Some(ToSupervisor::SocketAccepted { .. }) => break,
            other => panic!("{other:?}"),
        }
        id += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(renewed.elapsed() >= Duration::from_millis(600));
    worker.say(&ToWorker::SocketCancel { id });
    for socket in back {
        worker.hand_over(socket).await;
    }

    // Ended by word.
    worker.say(&pause(4, 60_000));
    for _ in 0..4 {
        worker.hear().await;
    }
    worker.say(&ToWorker::Admission {
        id: 5,
        paused: false,
        lease_ms: 0,
    });
    assert!(matches!(
        worker.hear().await,
        Some(ToSupervisor::Admission { id: 5, .. })
    ));
    worker.hand_over(socket).await;
    worker.expect_silence().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_says_no_once_it_is_told_to_and_everything_else_goes_on() {
    let home = TestHome::new();
    let mut worker = worker(&home).await;
    let mut client = worker.client().await;
    let ready = b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n";
    client.write_all(ready).await.unwrap();
    assert_eq!(answer(&mut client).await, 200);
    worker.say(&ToWorker::Unready);
    worker.expect_silence().await;
    client.write_all(ready).await.unwrap();
    assert_eq!(answer(&mut client).await, 503);
    assert_eq!(ask(&mut client).await, 200);
    let mut another = worker.client().await;
    assert_eq!(ask(&mut another).await, 200);
}

/// A home that serves 1.0.0, and has a faulty 1.1.0 whose connections go on.
async fn rolling(fault: &str) -> (TestHome, Proxy) {
    let home = TestHome::new();
    home.configure("[rollout]\nrecovery_min = \"50ms\"\n");
    home.install_proxy("1.0.0");
    home.install_faulty("1.1.0", &format!("keep-alive {fault}"));
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    let verdict = proxy.roll(by_person("1.1.0")).await.unwrap();
    assert_eq!(verdict.verdict, Outcome::Kept, "{verdict:?}");
    (home, proxy)
}

async fn clients_of(proxy: &Proxy, count: usize) -> Vec<TcpStream> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut client = TcpStream::connect(proxy.address).await.unwrap();
        client.set_nodelay(true).unwrap();
        assert_eq!(ask(&mut client).await, 200);
        clients.push(client);
    }
    clients
}

/// Whether the connection still serves; one answer or one end, nothing else.
async fn goes_on(client: &mut TcpStream) -> bool {
    if client.write_all(HEALTH).await.is_err() {
        return false;
    }
    let mut first = [0; 9];
    let read = client.read_exact(&mut first);
    match tokio::time::timeout(PATIENCE, read).await.expect("in time") {
        Ok(_) => {
            assert_eq!(&first, b"HTTP/1.1 ");
            let mut rest = Vec::new();
            // The next one's worker says how long it is; a moment tells whether more than one answer came.
            while let Ok(Ok(byte)) =
                tokio::time::timeout(Duration::from_millis(100), client.read_u8()).await
            {
                rest.push(byte);
            }
            let answers = rest.windows(9).filter(|part| part == b"HTTP/1.1 ").count();
            assert_eq!(answers, 0, "{}", String::from_utf8_lossy(&rest));
            true
        }
        Err(_) => false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_dies_between_two_messages_of_a_return_costs_only_what_it_still_holds() {
    const CLIENTS: usize = 10;
    for (fault, returned) in [
        ("crash-before-returned=1", 0),
        ("crash-after-returned=1", 1),
        ("crash-before-returned=4", 3),
        ("crash-after-returned=10", 10),
    ] {
        let (_home, proxy) = rolling(fault).await;
        let mut clients = clients_of(&proxy, CLIENTS).await;
        let faulty = proxy.active();
        let before = proxy.rolling();
        let verdict = proxy.roll(by_person("1.0.0")).await.unwrap();
        assert_eq!(verdict.verdict, Outcome::Kept, "{verdict:?}");
        until("it is dead", || {
            !process::is_alive(i32::try_from(faulty.pid).unwrap())
        })
        .await;
        let mut served = 0;
        for client in &mut clients {
            served += usize::from(goes_on(client).await);
        }
        assert_eq!(served, returned, "{fault}");
        let after = proxy.rolling();
        assert_eq!(
            after.returned_sockets - before.returned_sockets,
            returned as u64,
            "{fault}"
        );
        assert_eq!(after.rejected_sockets, 0, "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_counts_no_credits_or_knows_none_loses_nobody_a_connection() {
    for fault in ["no-credit", "old-protocol", ""] {
        let (_home, proxy) = rolling(fault).await;
        let mut clients = clients_of(&proxy, 150).await;
        let verdict = proxy.roll(by_person("1.0.0")).await.unwrap();
        assert_eq!(verdict.verdict, Outcome::Kept, "{verdict:?}");
        until("the former worker has ended", || {
            proxy.rolling().draining.is_empty()
        })
        .await;
        for client in &mut clients {
            assert_eq!(ask(client).await, 200, "{fault}");
        }
        let rolling = proxy.rolling();
        assert_eq!(rolling.last_failure, None, "{fault}");
        assert!(rolling.returned_sockets >= 150, "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_was_read_before_it_was_owned_is_closed_and_counted_and_never_served_twice()
 {
    let home = TestHome::new();
    home.configure("[rollout]\nrecovery_min = \"50ms\"\n");
    home.install_proxy("1.0.0");
    home.install_faulty("1.1.0", &format!("told-by={}", home.told_file().display()));
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    home.tell("read-before-owned");
    proxy.roll(by_person("1.1.0")).await.unwrap();
    home.tell("");
    let mut client = TcpStream::connect(proxy.address).await.unwrap();
    assert!(!goes_on(&mut client).await);
    until("it is counted", || proxy.rolling().closed_sockets == 1).await;
    until("the next one serves", || {
        proxy
            .status()
            .is_some_and(|now| now.rolling.active.is_some())
    })
    .await;
    assert_eq!(proxy.rolling().rejected_sockets, 0);
}
