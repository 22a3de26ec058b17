//! One request to ourselves, over a socket pair.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;

use staging::report::{Exit, Report};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::{Relay, RelayError};

const TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST: &[u8] = b"GET /health HTTP/1.1\r\nhost: self-test\r\nconnection: close\r\n\r\n";

/// Why this relay must not get traffic.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    /// The socket pair could not be made or used.
    #[error("the relay's self-test could not talk to itself: {0}; check the limits on open files")]
    Talk(#[from] std::io::Error),
    /// The relay did not take the socket.
    #[error("the relay did not take its self-test's connection: {0}")]
    Adopt(#[from] RelayError),
    /// The answer was wrong.
    #[error(
        "the relay answered its self-test with {answer:?} and not 200; this package is broken, install another version"
    )]
    Answer {
        /// The answer's first line.
        answer: String,
    },
    /// No answer came.
    #[error("the relay did not answer its self-test within {} s; the machine may be overloaded", TIMEOUT.as_secs())]
    Timeout,
}

impl Report for SelfTestError {
    fn code(&self) -> &'static str {
        "RELAY_SELF_TEST"
    }

    fn exit(&self) -> Exit {
        Exit::Failed
    }

    fn retry(&self) -> bool {
        matches!(self, Self::Talk(_) | Self::Timeout)
    }
}

pub(super) async fn run(relay: &Relay) -> Result<(), SelfTestError> {
    tokio::time::timeout(TIMEOUT, ask(relay))
        .await
        .unwrap_or(Err(SelfTestError::Timeout))
}

async fn ask(relay: &Relay) -> Result<(), SelfTestError> {
    let (ours, theirs) = StdUnixStream::pair()?;
    ours.set_nonblocking(true)?;
    theirs.set_nonblocking(true)?;
    relay.adopt(OwnedFd::from(theirs))?;

    let mut ours = UnixStream::from_std(ours)?;
    ours.write_all(REQUEST).await?;
    let mut answer = Vec::new();
    ours.read_to_end(&mut answer).await?;
    if answer.starts_with(b"HTTP/1.1 200 ") && answer.ends_with(b"{\"status\":\"ok\"}") {
        return Ok(());
    }
    let line = answer
        .split(|byte| *byte == b'\r')
        .next()
        .unwrap_or_default();
    Err(SelfTestError::Answer {
        answer: String::from_utf8_lossy(line).chars().take(200).collect(),
    })
}
