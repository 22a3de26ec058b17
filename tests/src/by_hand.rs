//! A real worker whose supervisor is the test.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};
use rollproxy::channel::{
    Addressee, Channel, Datagram, ToSupervisor, ToWorker, decode, encode, pair,
};
use rollproxy::config::Config;
use tokio::net::{TcpListener, TcpStream};

use crate::{PATIENCE, TestHome, binaries, until_some};

/// A real worker, and the test as its supervisor; killed when dropped.
pub struct ByHand {
    child: Child,
    channel: Channel,
    /// Whom its messages are about.
    pub us: Addressee,
    returned: Vec<OwnedFd>,
    transfers: u64,
}

impl ByHand {
    /// Starts the program under test as generation 7.
    pub fn start(home: &TestHome, config: &Config) -> Self {
        let (ours, theirs) = pair().unwrap();
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let memory = rustix::fs::memfd_create("rollproxy-config", flags).unwrap();
        rustix::io::write(&memory, &config.to_snapshot().unwrap()).unwrap();
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
            transfers: 0,
        }
    }

    /// A worker that was made active.
    pub async fn active(home: &TestHome, config: &Config) -> Self {
        let mut worker = Self::start(home, config);
        let ready = worker.hear().await;
        assert!(
            matches!(ready, Some(ToSupervisor::Ready { .. })),
            "{ready:?}"
        );
        worker.say(&ToWorker::Activate);
        assert_eq!(worker.hear().await, Some(ToSupervisor::Activated));
        worker
    }

    /// Sends a datagram as it is.
    #[track_caller]
    pub fn send(&self, bytes: &[u8]) {
        self.channel.try_send(bytes, None).unwrap();
    }

    /// Says something.
    #[track_caller]
    pub fn say(&self, message: &ToWorker) {
        self.send(&encode(message, self.us));
    }

    /// Offers a socket.
    #[track_caller]
    pub fn offer(&self, id: u64, socket: &OwnedFd) {
        let bytes = encode(&ToWorker::Socket { id }, self.us);
        self.channel.try_send(&bytes, Some(socket.as_fd())).unwrap();
    }

    /// Hands a socket over, through both phases.
    pub async fn hand_over(&mut self, socket: OwnedFd) {
        self.transfers += 1;
        let id = 1_000_000 + self.transfers;
        self.offer(id, &socket);
        let accepted = self.hear().await;
        assert_eq!(accepted, Some(ToSupervisor::SocketAccepted { id }));
        self.say(&ToWorker::SocketCommit { id });
        assert_eq!(self.hear().await, Some(ToSupervisor::SocketOwned { id }));
    }

    /// A new client, served by this worker.
    pub async fn client(&mut self) -> TcpStream {
        let (client, socket) = connection().await;
        self.hand_over(socket).await;
        client
    }

    async fn datagram(&mut self) -> Option<Datagram> {
        let receive = std::future::poll_fn(|context| self.channel.poll_recv(context));
        tokio::time::timeout(PATIENCE, receive)
            .await
            .expect("the worker speaks")
            .unwrap()
    }

    /// The next thing it says besides its load.
    pub async fn hear(&mut self) -> Option<ToSupervisor> {
        loop {
            let message = self.hear_all().await?;
            if !matches!(message, ToSupervisor::Load { .. }) {
                return Some(message);
            }
        }
    }

    /// The next thing it says.
    pub async fn hear_all(&mut self) -> Option<ToSupervisor> {
        let datagram = self.datagram().await?;
        let message = decode(&datagram.bytes, self.us).unwrap();
        let returned = matches!(message, ToSupervisor::SocketReturned { .. });
        assert_eq!(datagram.descriptor.is_some(), returned, "{message:?}");
        self.returned.extend(datagram.descriptor);
        Some(message)
    }

    /// Waits for the next connection that it gives back, and for nothing else.
    pub async fn hear_return(&mut self) -> OwnedFd {
        let said = self.hear().await;
        assert!(
            matches!(said, Some(ToSupervisor::SocketReturned { .. })),
            "{said:?}"
        );
        self.returned.pop().unwrap()
    }

    /// It says nothing besides its load and the answer to a ping: what it owed before was said before.
    pub async fn expect_silence(&mut self) {
        // Long enough for all that its threads may still have to tell its main loop.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let id = 999_999;
        self.say(&ToWorker::Ping { id });
        assert_eq!(self.hear().await, Some(ToSupervisor::Pong { id }));
    }

    /// The connections that it gave back and nobody took.
    pub fn returned(&mut self) -> &mut Vec<OwnedFd> {
        &mut self.returned
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Lets go of the channel, as a supervisor that died.
    pub fn leave(&mut self) {
        let (nobody, _) = pair().unwrap();
        self.channel = Channel::new(nobody).unwrap();
    }

    /// Waits for its end; its exit code.
    pub async fn ended(&mut self) -> Option<i32> {
        let status = until_some("the worker ends", || self.child.try_wait().unwrap()).await;
        status.code()
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connected client, and the accepted socket as a supervisor holds it.
pub async fn connection() -> (TcpStream, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    client.set_nodelay(true).unwrap();
    let accepted = listener.accept().await.unwrap().0.into_std().unwrap();
    (client, accepted.into())
}
