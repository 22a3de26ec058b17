//! The contract between a supervisor and a worker of another version: what cannot be understood is
//! dropped and counted, never guessed; and a worker has what it was given, nothing else.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::fd::OwnedFd;
use std::process::Command;

use command_fds::{CommandFdExt, FdMapping};
use control::types::Outcome;
use fixtures::client::KeepAlive;
use fixtures::upstream::Upstream;
use harness::{
    Asked, ByHand, Proxy, Starting, TestHome, ask, binaries, by_person, connection, process,
    until_some,
};
use rollproxy::channel::{Addressee, MAX_DATAGRAM, ToSupervisor, ToWorker, encode};
use rollproxy::config::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supervisor_drops_and_counts_what_a_worker_must_not_say_and_the_worker_goes_on() {
    let home = TestHome::new();
    home.install_proxy("1.0.0");
    home.install_faulty("1.1.0", "garbage");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    assert_eq!(proxy.rolling().dropped_messages, 0);
    let verdict = proxy.roll(by_person("1.1.0")).await.unwrap();
    assert_eq!(verdict.verdict, Outcome::Kept, "{verdict:?}");
    let rolling = proxy.rolling();
    // Not text, no type, no object, unknown type, stale generation, wrong process, too long.
    assert_eq!((rolling.dropped_messages, rolling.last_failure), (7, None));
    assert_eq!(ask(proxy.address).await, Asked::by_faulty());
}

async fn answer(client: &mut TcpStream) -> String {
    let mut text = String::new();
    let read = client.read_to_string(&mut text);
    tokio::time::timeout(harness::PATIENCE, read)
        .await
        .expect("an answer")
        .unwrap();
    text
}

const GET_STATUS: &[u8] = b"GET /status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_drops_and_counts_what_it_does_not_understand_and_reads_no_socket_before_its_commit()
 {
    let home = TestHome::new();
    let mut worker = ByHand::start(&home, &Config::default());
    let version = rollproxy::COMPILED_VERSION.to_owned();
    assert_eq!(
        worker.hear().await,
        Some(ToSupervisor::Ready {
            version,
            protocol: 1
        })
    );

    worker.send(b"\xff\xfe not even text");
    worker.send(b"{}");
    let Addressee { generation, pid } = worker.us;
    worker
        .send(format!(r#"{{"type":"conquer","generation":{generation},"pid":{pid}}}"#).as_bytes());
    let stale = Addressee {
        generation: 6,
        ..worker.us
    };
    worker.send(&encode(&ToWorker::Shutdown, stale));
    let stranger = Addressee {
        pid: 1,
        ..worker.us
    };
    worker.send(&encode(&ToWorker::Shutdown, stranger));
    worker.send(&vec![b'x'; MAX_DATAGRAM + 1]);
    // From a newer version: a field more is no reason to misunderstand.
    worker.send(
        format!(r#"{{"type":"activate","generation":{generation},"pid":{pid},"mood":"good"}}"#)
            .as_bytes(),
    );
    assert_eq!(worker.hear().await, Some(ToSupervisor::Activated));
    worker.say(&ToWorker::Ping { id: 4 });
    assert_eq!(worker.hear().await, Some(ToSupervisor::Pong { id: 4 }));

    // As when the kernel had no descriptor left for it.
    worker.say(&ToWorker::Socket { id: 1 });
    let refused = worker.hear().await;
    assert!(
        matches!(refused, Some(ToSupervisor::SocketRefused { id: 1, .. })),
        "{refused:?}"
    );

    let (mut client, socket) = connection().await;
    client.write_all(GET_STATUS).await.unwrap();
    worker.offer(2, &socket);
    assert_eq!(
        worker.hear().await,
        Some(ToSupervisor::SocketAccepted { id: 2 })
    );
    worker.say(&ToWorker::Ping { id: 5 });
    assert_eq!(worker.hear().await, Some(ToSupervisor::Pong { id: 5 }));
    let unread = rustix::io::ioctl_fionread(&socket).unwrap();
    assert_eq!(unread, GET_STATUS.len() as u64, "read before its commit");
    worker.say(&ToWorker::SocketCommit { id: 2 });
    assert_eq!(
        worker.hear().await,
        Some(ToSupervisor::SocketOwned { id: 2 })
    );
    drop(socket);
    let text = answer(&mut client).await;
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let status: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(status["worker"]["droppedMessages"], 6, "{status}");
    assert_eq!(status["worker"]["active"], true, "{status}");

    // Withdrawn: a commit that comes too late is for nobody, and its copy is closed.
    let (mut client, socket) = connection().await;
    client.write_all(GET_STATUS).await.unwrap();
    worker.offer(3, &socket);
    assert_eq!(
        worker.hear().await,
        Some(ToSupervisor::SocketAccepted { id: 3 })
    );
    worker.say(&ToWorker::SocketCancel { id: 3 });
    worker.say(&ToWorker::SocketCommit { id: 3 });
    worker.say(&ToWorker::Ping { id: 6 });
    assert_eq!(worker.hear().await, Some(ToSupervisor::Pong { id: 6 }));
    assert_eq!(
        rustix::io::ioctl_fionread(&socket).unwrap(),
        GET_STATUS.len() as u64
    );

    // Accepted before the drain: still owned, and given back unread, for no answer was begun. After it: refused.
    let (mut late, late_socket) = connection().await;
    worker.offer(4, &late_socket);
    assert_eq!(
        worker.hear().await,
        Some(ToSupervisor::SocketAccepted { id: 4 })
    );
    worker.say(&ToWorker::Drain {
        close: false,
        returns: None,
    });
    worker.offer(5, &socket);
    let refused = worker.hear().await;
    assert!(
        matches!(refused, Some(ToSupervisor::SocketRefused { id: 5, .. })),
        "{refused:?}"
    );
    late.write_all(GET_STATUS).await.unwrap();
    worker.say(&ToWorker::SocketCommit { id: 4 });
    assert_eq!(
        worker.hear().await,
        Some(ToSupervisor::SocketOwned { id: 4 })
    );
    drop(late_socket);
    let returned = worker.hear().await;
    assert!(
        matches!(returned, Some(ToSupervisor::SocketReturned { .. })),
        "{returned:?}"
    );
    let unread = rustix::io::ioctl_fionread(&worker.returned()[0]).unwrap();
    assert_eq!(
        unread,
        GET_STATUS.len() as u64,
        "a byte was lost on the way back"
    );
    assert_eq!(worker.hear().await, Some(ToSupervisor::Drained));
    assert_eq!(worker.hear().await, None);
    assert_eq!(worker.ended().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_has_its_channel_and_its_configuration_and_no_descriptor_of_the_supervisor() {
    let upstream = Upstream::start().await.unwrap();
    let home = TestHome::new();
    home.configure_upstream(&upstream.url(), "");
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    // Whoever starts a supervisor may leak into it what it did not mean to.
    let leaked = home.folder().join("leaked");
    let leak: OwnedFd = std::fs::File::create(&leaked).unwrap().into();
    let mut command = Command::new(binaries().path("rollproxy-launcher"));
    command
        .arg("serve")
        .fd_mappings(vec![FdMapping {
            parent_fd: leak,
            child_fd: 9,
        }])
        .unwrap();
    let proxy = Starting::run(&home, &mut command).answering().await;
    proxy.serves().await;

    let pid = proxy.active_pid();
    let of_supervisor = process::descriptors_at_rest(proxy.pid()).await;
    let path = leaked.to_str().unwrap();
    assert!(
        of_supervisor.contains(&(9, path.to_owned())),
        "the test leaks nothing: {of_supervisor:?}"
    );
    let of_worker = process::descriptors(pid);
    let target = |number| {
        of_worker
            .iter()
            .find(|(fd, _)| *fd == number)
            .unwrap()
            .1
            .as_str()
    };
    assert_eq!(target(0), "/dev/null");
    assert!(target(1).ends_with("supervisor.log") && target(2).ends_with("supervisor.log"));
    assert!(target(3).starts_with("socket:"), "{of_worker:?}");
    for (number, target) in of_worker.iter().filter(|(number, _)| *number > 3) {
        // Its configuration, until it has read it; and what its own runtime made: wakers, timers, sockets.
        let own = ["/memfd:rollproxy-config", "anon_inode:", "socket:"];
        assert!(
            own.iter().any(|kind| target.starts_with(kind)),
            "{number}: {target}"
        );
    }
    for (number, target) in of_worker
        .iter()
        .filter(|(_, target)| target.starts_with("socket:"))
    {
        assert!(
            of_supervisor.iter().all(|(_, theirs)| theirs != target),
            "{number}: {target} is shared"
        );
    }

    // And the other way round: of a connection that the worker owns, the supervisor keeps nothing.
    let mut client = KeepAlive::new(proxy.address, 1);
    client.request().await;
    assert_eq!(client.counts().fresh_ok, 1, "{:?}", client.counts());
    let sockets = |pid| {
        let all = process::descriptors(pid);
        all.into_iter()
            .filter(|(_, target)| target.starts_with("socket:"))
            .count()
    };
    let before = of_supervisor
        .iter()
        .filter(|(_, target)| target.starts_with("socket:"))
        .count();
    until_some("the supervisor closed its copy", || {
        (sockets(proxy.pid()) == before).then_some(())
    })
    .await;
    client.request().await;
    assert_eq!(client.counts().reused_ok, 1, "{:?}", client.counts());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_tells_what_it_holds_the_oldest_first_and_as_much_as_one_message_carries() {
    let upstream = Upstream::start().await.unwrap();
    let home = TestHome::new();
    let mut config = Config::default();
    let to = rollproxy::config::Upstream::new(upstream.url());
    config.upstreams.insert("fixture".into(), to);
    config.routes = vec![rollproxy::config::Route::new("/v1/*", "fixture")];
    let mut worker = ByHand::active(&home, &config).await;
    let streams = async |worker: &mut ByHand, id: u64| {
        worker.say(&ToWorker::Streams { id });
        match worker.hear().await {
            Some(ToSupervisor::Streams {
                id: answered,
                total,
                streams,
            }) if answered == id => (total, streams),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(streams(&mut worker, 1).await, (0, Vec::new()));

    let long = "x".repeat(300);
    let mut clients = Vec::new();
    for number in 0..260_u64 {
        let mut client = worker.client().await;
        let ask = format!(
            "POST /v1/{number:03}/{long}?k=1 HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n"
        );
        client.write_all(ask.as_bytes()).await.unwrap();
        upstream.wait(|counts| counts.concurrent > number).await;
        clients.push((client, ask.len() as u64));
    }
    let (total, told) = streams(&mut worker, 2).await;
    assert_eq!(total, 260);
    assert!((100..260).contains(&told.len()), "{}", told.len());
    for (number, (stream, (client, sent))) in told.iter().zip(&clients).enumerate() {
        assert_eq!(stream.client, client.local_addr().unwrap().to_string());
        assert!(stream.route.starts_with(&format!("/v1/{number:03}/xxx")));
        assert_eq!(stream.route.len(), 200);
        assert_eq!((stream.bytes_in, stream.bytes_out), (*sent, 0));
    }
    assert!(told.is_sorted_by(|one, next| one.age_ms >= next.age_ms));
    // It listens on meanwhile, and what is over is no longer told.
    drop(clients);
    let mut id = 3;
    while streams(&mut worker, id).await.0 > 0 {
        id += 1;
    }
}
