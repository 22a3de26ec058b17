//! The load, a process of its own: one thread, one epoll, every answer checked to the byte.

mod closed;
mod open;
mod streams;

use std::io::Write;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::answer::{AnswerReader, Fault};
use super::reactor::{connect, receive, send};
use super::wire::{self, Request, Want};

/// What to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    pub kind: Kind,
    pub address: SocketAddrV4,
    /// Before the figures count.
    pub warm: Duration,
    /// While the figures count.
    pub window: Duration,
    /// Whether the window waits for a word on standard input; streams only.
    pub wait: bool,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Kind {
    /// So many clients, each with a connection, each asking again once it has its answer.
    KeepAlive { clients: usize },
    /// So many clients, each with a new connection for every request.
    OneConnection { clients: usize },
    /// So many requests a second, whatever becomes of the earlier ones.
    OpenLoop { rate: u32 },
    /// So many event streams, opened at so many a second.
    Streams { streams: usize, opening: u32 },
}

/// What the load says, a line each.
#[derive(Debug, Serialize, Deserialize)]
pub enum Said {
    /// All streams are open, and a word is waited for.
    Ready,
    /// The figures count from now on.
    Begin,
    /// They no longer do; so many requests or events there were in all, since the start or the word to begin.
    End { all: u64 },
    /// All is over.
    Result(Outcome),
}

/// What was seen.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// The window as it really was.
    pub seconds: f64,
    pub counted: u64,
    /// Of whole answers; of events, from the upstream's write to our read.
    pub latency: Quantiles,
    /// Of streams, from the intended opening.
    pub first_byte: Quantiles,
    /// Between two events of a stream.
    pub gap: Quantiles,
    pub errors: u64,
    pub first_error: Option<String>,
}

/// Nanoseconds.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Quantiles {
    pub p50: u64,
    pub p95: u64,
    pub p99: u64,
    pub max: u64,
}

impl Quantiles {
    fn of(mut times: Vec<u64>) -> Self {
        times.sort_unstable();
        let at = |share: f64| {
            let last = times.len().checked_sub(1)?;
            times.get((last as f64 * share).round() as usize).copied()
        };
        Self {
            p50: at(0.5).unwrap_or(0),
            p95: at(0.95).unwrap_or(0),
            p99: at(0.99).unwrap_or(0),
            max: at(1.0).unwrap_or(0),
        }
    }
}

/// Does what the plan says; what is seen goes to standard output.
pub fn run(plan: &Plan) {
    let outcome = match plan.kind {
        Kind::KeepAlive { clients } => closed::run(plan, clients, Want::Answer),
        Kind::OneConnection { clients } => closed::run(plan, clients, Want::LastAnswer),
        Kind::OpenLoop { rate } => open::run(plan, rate),
        Kind::Streams { streams, opening } => streams::run(plan, streams, opening),
    };
    say(&Said::Result(outcome));
}

fn say(what: &Said) {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, what).unwrap();
    out.write_all(b"\n").unwrap();
    out.flush().unwrap();
}

/// Times that the plan sets, on the monotonic clock.
struct Clock {
    begin: u64,
    end: u64,
    /// When whoever has not answered is given up.
    late: u64,
}

impl Clock {
    fn new(plan: &Plan) -> Self {
        let begin = wire::now() + nanos(plan.warm);
        let end = begin + nanos(plan.window);
        Self {
            begin,
            end,
            late: end + nanos(Duration::from_secs(10)),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}

/// Errors: how many, and the first one in words.
#[derive(Default)]
struct Faults {
    many: u64,
    first: Option<Fault>,
}

impl Faults {
    fn note(&mut self, fault: Fault) {
        self.many += 1;
        self.first.get_or_insert(fault);
    }
}

/// A client with its connection and one request at a time.
struct Client {
    socket: OwnedFd,
    answer: AnswerReader,
    body: Vec<u8>,
    number: u32,
    /// When the request was sent, or should have been.
    since: u64,
}

/// What became of a client's answer.
enum Progress {
    /// More is to come.
    Waiting,
    /// It is here.
    Answered,
    /// It is here, and the connection has ended.
    Closed,
}

impl Client {
    fn connect(address: SocketAddrV4) -> Result<Self, Fault> {
        let socket = connect(address).map_err(|error| format!("connect: {error}"))?;
        Ok(Self {
            socket,
            answer: AnswerReader::new(),
            body: Vec::with_capacity(wire::BODY),
            number: 0,
            since: 0,
        })
    }

    fn ask(&mut self, request: &mut Request, number: u32, since: u64) -> Result<(), Fault> {
        (self.number, self.since) = (number, since);
        self.answer = AnswerReader::new();
        self.body.clear();
        let bytes = request.numbered(number);
        match send(&self.socket, bytes) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(sent) => Err(format!("only {sent} bytes of a request could be sent")),
            Err(error) => Err(format!("send: {error}")),
        }
    }

    fn hear(&mut self, buffer: &mut [u8]) -> Result<Progress, Fault> {
        let taken = match receive(&self.socket, buffer) {
            Ok(None) => return Ok(Progress::Waiting),
            Ok(Some(0)) if self.answer.is_done() => return Ok(Progress::Closed),
            Ok(Some(0)) => return Err("the connection ended before the answer".into()),
            Ok(Some(taken)) => taken,
            Err(error) => return Err(format!("receive: {error}")),
        };
        let body = &mut self.body;
        self.answer.read(&buffer[..taken], &mut |piece| {
            body.extend_from_slice(piece);
            Ok(())
        })?;
        if !self.answer.is_done() {
            return Ok(Progress::Waiting);
        }
        match wire::read_answer_body(&self.body) {
            Some(number) if number == self.number => Ok(Progress::Answered),
            Some(number) => Err(format!("answer {number} to request {}", self.number)),
            None => Err("the answer's body is not the upstream's".into()),
        }
    }
}
