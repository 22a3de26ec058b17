//! The contract between a supervisor and a worker of another version: what cannot be understood is
//! dropped and counted, never guessed; and a worker has what it was given, nothing else.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use command_fds::{CommandFdExt, FdMapping};
use control::types::Outcome;
use fixtures::client::KeepAlive;
use fixtures::upstream::Upstream;
use harness::{Asked, Proxy, Starting, TestHome, ask, binaries, by_person, process, until_some};
use rollproxy::channel::{
    Addressee, Channel, Datagram, MAX_DATAGRAM, ToSupervisor, ToWorker, decode, encode, pair,
};
use rollproxy::config::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

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

/// A real worker, and the test as its supervisor.
struct ByHand {
    child: Child,
    channel: Channel,
    us: Addressee,
    /// The connections it gave back.
    returned: Vec<OwnedFd>,
}

impl ByHand {
    fn start(home: &TestHome) -> Self {
        let (ours, theirs) = pair().unwrap();
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let memory = rustix::fs::memfd_create("rollproxy-config", flags).unwrap();
        rustix::io::write(&memory, &Config::default().to_snapshot().unwrap()).unwrap();
        let mut command = Command::new(binaries().path("rollproxy"));
        command
            .args(["worker", "--generation", "7"])
            .env_clear()
            .env("ROLLPROXY_HOME", home.home.root())
            .stdin(Stdio::null())
            .fd_mappings(vec![
                FdMapping {
                    parent_fd: theirs,
                    child_fd: 3,
                },
                FdMapping {
                    parent_fd: memory,
                    child_fd: 4,
                },
            ])
            .unwrap();
        let child = command.spawn().unwrap();
        let us = Addressee {
            generation: 7,
            pid: child.id(),
        };
        Self {
            child,
            channel: Channel::new(ours).unwrap(),
            us,
            returned: Vec::new(),
        }
    }

    fn send(&self, bytes: &[u8]) {
        self.channel.try_send(bytes, None).unwrap();
    }

    fn say(&self, message: &ToWorker) {
        self.send(&encode(message, self.us));
    }

    fn offer(&self, id: u64, socket: &OwnedFd) {
        let bytes = encode(&ToWorker::Socket { id }, self.us);
        self.channel.try_send(&bytes, Some(socket.as_fd())).unwrap();
    }

    async fn datagram(&mut self) -> Option<Datagram> {
        let receive = std::future::poll_fn(|context| self.channel.poll_recv(context));
        tokio::time::timeout(harness::PATIENCE, receive)
            .await
            .expect("the worker speaks")
            .unwrap()
    }

    /// The next thing it says besides its load.
    async fn hear(&mut self) -> Option<ToSupervisor> {
        loop {
            let datagram = self.datagram().await?;
            let message = decode(&datagram.bytes, self.us).unwrap();
            let returned = matches!(message, ToSupervisor::SocketReturned { .. });
            assert_eq!(datagram.descriptor.is_some(), returned, "{message:?}");
            self.returned.extend(datagram.descriptor);
            if !matches!(message, ToSupervisor::Load { .. }) {
                return Some(message);
            }
        }
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connected client, and the accepted socket as a supervisor holds it.
async fn connection() -> (TcpStream, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let accepted = listener.accept().await.unwrap().0.into_std().unwrap();
    (client, accepted.into())
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
    let mut worker = ByHand::start(&home);
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
    let unread = rustix::io::ioctl_fionread(&worker.returned[0]).unwrap();
    assert_eq!(
        unread,
        GET_STATUS.len() as u64,
        "a byte was lost on the way back"
    );
    assert_eq!(worker.hear().await, Some(ToSupervisor::Drained));
    assert_eq!(worker.hear().await, None);
    let status = until_some("the worker ends", || worker.child.try_wait().unwrap()).await;
    assert!(status.success(), "{status}");
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
