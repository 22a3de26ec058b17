//! Streams that are open and silent, as many as wanted.

use std::net::SocketAddr;
use std::time::Duration;

use fixtures::script::Script;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// How many are opened at a time.
const AT_ONCE: usize = 64;

pub struct Held(Vec<TcpStream>);

impl Held {
    /// Opens them and waits until each has had its first event.
    pub async fn open(address: SocketAddr, many: usize) -> Self {
        let (mut opening, mut open) = (JoinSet::new(), Vec::with_capacity(many));
        for _ in 0..many {
            if opening.len() == AT_ONCE {
                open.push(opening.join_next().await.unwrap().unwrap());
            }
            opening.spawn(one(address));
        }
        open.extend(opening.join_all().await);
        Self(open)
    }

    /// How many have ended, or said more than they were allowed to.
    pub fn disturbed(&self) -> usize {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let silent = |stream: &&TcpStream| {
            recv(stream, &mut [0; 1][..], flags) == Err(rustix::io::Errno::AGAIN)
        };
        self.0.len() - self.0.iter().filter(silent).count()
    }
}

async fn one(address: SocketAddr) -> TcpStream {
    let mut fields = String::new();
    // The second event never comes.
    for (name, value) in Script::new(10, Duration::from_secs(3600), 1).fields() {
        fields.push_str(&format!("{name}: {value}\r\n"));
    }
    let head = format!(
        "POST /v1/messages HTTP/1.1\r\nHost: {address}\r\n{fields}Content-Length: 0\r\n\r\n"
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    // An event's end is its chunk's last line.
    while !read.ends_with(b"\n\n\r\n") {
        let count = stream.read_buf(&mut read).await.unwrap();
        assert_ne!(
            count,
            0,
            "a stream ended: {}",
            String::from_utf8_lossy(&read)
        );
    }
    stream
}
