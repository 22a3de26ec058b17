//! One worker as the supervisor holds it: its process and its channel.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};

use crate::channel::{
    Addressee, Channel, Datagram, Id, SendFailure, ToSupervisor, ToWorker, decode, encode,
};
use crate::clock::Moment;

use super::liveness::Liveness;
use super::process::Process;
use super::rollout::Generation;

/// Messages handled before anything else gets a turn.
const MESSAGES_A_TURN: usize = 256;

/// What a worker last said it has in hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Load {
    /// Client connections.
    pub connections: u64,
    /// Exchanges in flight.
    pub exchanges: u64,
}

/// A worker process.
pub struct Link {
    /// Its number.
    pub generation: Generation,
    /// Its process.
    pub process: Process,
    /// Its pings.
    pub liveness: Liveness,
    /// What it has in hand.
    pub load: Load,
    /// When its channel ended. The kernel closes a dying process's channel a moment before its pidfd
    /// tells, so the end of a channel is believed to be all there is only after a while.
    pub closed_at: Option<Moment>,
    channel: Option<Channel>,
    outbox: VecDeque<Vec<u8>>,
}

/// What reading a channel brought.
#[derive(Debug, Default)]
pub struct Heard {
    /// Understood messages, in order, each with the descriptor that came with it.
    pub messages: Vec<(ToSupervisor, Option<OwnedFd>)>,
    /// Datagrams that were dropped.
    pub dropped: u64,
    /// The channel is at its end.
    pub closed: bool,
}

impl Link {
    /// A worker that was just started.
    pub fn new(
        generation: Generation,
        process: Process,
        channel: Channel,
        liveness: Liveness,
    ) -> Self {
        Self {
            generation,
            process,
            liveness,
            load: Load::default(),
            closed_at: None,
            channel: Some(channel),
            outbox: VecDeque::new(),
        }
    }

    fn addressee(&self) -> Addressee {
        Addressee {
            generation: self.generation,
            pid: self.process.pid(),
        }
    }

    /// Says something; kept in order and for later when the worker is slow.
    pub fn say(&mut self, message: &ToWorker) {
        self.outbox.push_back(encode(message, self.addressee()));
        self.flush();
    }

    /// Sends what had to wait. Says whether anything still does.
    pub fn flush(&mut self) -> bool {
        let Some(channel) = &self.channel else {
            self.outbox.clear();
            return false;
        };
        while let Some(bytes) = self.outbox.front() {
            match channel.try_send(bytes, None) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(SendFailure::BackPressure) => return true,
                // Reading will find the end of the channel and say so.
                Err(SendFailure::Closed) => self.outbox.clear(),
            }
        }
        false
    }

    /// Whether the worker can be sent a socket now: nothing waits before it.
    pub fn is_open(&self) -> bool {
        self.channel.is_some() && self.outbox.is_empty()
    }

    /// Sends a socket under this id; the supervisor keeps its copy.
    ///
    /// # Errors
    /// When it could not be sent now.
    pub fn offer(&self, id: Id, socket: BorrowedFd<'_>) -> Result<(), SendFailure> {
        let bytes = encode(&ToWorker::Socket { id }, self.addressee());
        match &self.channel {
            Some(channel) => channel.try_send(&bytes, Some(socket)),
            None => Err(SendFailure::Closed),
        }
    }

    /// What came from the worker, if anything did.
    pub fn poll_hear(&mut self, context: &mut std::task::Context<'_>) -> std::task::Poll<Heard> {
        use std::task::Poll;
        let addressee = self.addressee();
        let Some(channel) = &mut self.channel else {
            return Poll::Pending;
        };
        let mut heard = Heard::default();
        for _ in 0..MESSAGES_A_TURN {
            match channel.poll_recv(context) {
                Poll::Pending => break,
                Poll::Ready(Ok(Some(datagram))) => heard.take(datagram, addressee),
                Poll::Ready(Ok(None) | Err(_)) => {
                    heard.closed = true;
                    self.channel = None;
                    break;
                }
            }
        }
        if heard.is_empty() {
            Poll::Pending
        } else {
            Poll::Ready(heard)
        }
    }

    /// Everything that is there now, to the end if the worker is dead: asked of the kernel itself,
    /// before a deadline is believed or a death is settled.
    pub fn hear_rest(&mut self) -> Heard {
        let addressee = self.addressee();
        let mut heard = Heard::default();
        while let Some(channel) = &mut self.channel {
            match channel.try_recv() {
                Ok(Some(datagram)) => heard.take(datagram, addressee),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Ok(None) | Err(_) => {
                    heard.closed = true;
                    self.channel = None;
                }
            }
        }
        heard
    }
}

/// A worker, for another process image.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CarriedLink {
    /// Its number.
    pub generation: Generation,
    /// Its process, which is not reaped yet.
    pub pid: u32,
    /// Its channel's descriptor, unless that has ended.
    pub channel: Option<i32>,
    liveness: Liveness,
    #[serde(default)]
    load: Load,
    #[serde(default)]
    closed_at: Option<Moment>,
    /// What it is still to be told.
    #[serde(default)]
    outbox: Vec<String>,
}

impl Link {
    /// Everything as it is.
    pub fn carry(&self) -> CarriedLink {
        CarriedLink {
            generation: self.generation,
            pid: self.process.pid(),
            channel: self
                .channel
                .as_ref()
                .map(|channel| channel.as_fd().as_raw_fd()),
            liveness: self.liveness.clone(),
            load: self.load,
            closed_at: self.closed_at,
            // Our own words: JSON, and so text.
            outbox: self
                .outbox
                .iter()
                .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
                .collect(),
        }
    }

    /// The descriptor that has to be carried for [`CarriedLink::channel`].
    pub fn channel(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(AsFd::as_fd)
    }

    /// The same again.
    pub fn resume(carried: CarriedLink, process: Process, channel: Option<Channel>) -> Self {
        Self {
            generation: carried.generation,
            process,
            liveness: carried.liveness,
            load: carried.load,
            closed_at: carried.closed_at,
            channel,
            outbox: carried.outbox.into_iter().map(String::into_bytes).collect(),
        }
    }
}

impl Heard {
    fn take(&mut self, datagram: Datagram, from: Addressee) {
        match decode::<ToSupervisor>(&datagram.bytes, from) {
            Ok(message) => self.messages.push((message, datagram.descriptor)),
            Err(dropped) => {
                tracing::debug!(generation = from.generation, %dropped, "dropped what a worker said");
                self.dropped += 1;
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.dropped == 0 && !self.closed
    }
}
