//! Many event streams at once, each event checked for its place.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::{Clock, Faults, Outcome, Plan, Quantiles, Said, nanos, say};
use crate::answer::{AnswerReader, Fault};
use crate::reactor::{INPUT, Reactor, TIMER, connect, receive, send};
use crate::wire::{self, EVENT_LENGTH, Request, Want};

/// A stream that says nothing for so long at the end of the window is stuck.
const STUCK: Duration = Duration::from_secs(2);

struct Stream {
    socket: OwnedFd,
    answer: AnswerReader,
    /// When it should have been opened, until its first byte is here.
    opened: Option<u64>,
    events: Events,
}

/// What came over one stream.
struct Events {
    stream: u32,
    next: u32,
    partial: Vec<u8>,
    last_at: u64,
}

/// What came over all of them.
#[derive(Default)]
struct Tally {
    counting: bool,
    all: u64,
    counted: u64,
    latency: Vec<u64>,
    gap: Vec<u64>,
}

pub(super) fn run(plan: &Plan, many: usize, opening: u32) -> Outcome {
    let mut reactor = Reactor::new();
    let mut request = Request::new(&plan.address.to_string(), Want::Stream);
    let mut streams: Vec<Option<Stream>> = Vec::with_capacity(many);
    let mut clock = Clock::new(plan);
    let start = wire::now();
    let due = |key: usize| start + key as u64 * 1_000_000_000 / u64::from(opening);
    let mut faults = Faults::default();
    let mut tally = Tally::default();
    let mut first_bytes = Vec::with_capacity(many);
    let mut said_end = None;
    let (mut waiting, mut said_ready) = (plan.wait, false);
    let mut begun = 0;
    let mut buffer = vec![0; 64 * 1024];
    let mut tokens = Vec::new();
    reactor.arm(due(1));
    'open: loop {
        reactor.wait(&mut tokens);
        for token in &tokens {
            match *token {
                INPUT if said_end.is_some() => break 'open,
                INPUT if told_to_begin() => {
                    waiting = false;
                    tally.all = 0;
                    clock = Clock::new(plan);
                }
                INPUT => std::process::exit(1),
                TIMER => {}
                token => {
                    let key = usize::try_from(token).unwrap();
                    let Some(stream) = &mut streams[key] else {
                        continue;
                    };
                    match stream.hear(&mut buffer, &mut tally) {
                        Ok(first) => first_bytes.extend(first),
                        Err(fault) => {
                            faults.note(fault);
                            streams[key] = None;
                        }
                    }
                }
            }
        }
        let now = wire::now();
        if streams.len() < many {
            while streams.len() < many && due(streams.len()) <= now {
                let key = streams.len();
                let stream = Stream::open(plan, key, due(key), &mut request);
                let stream = stream.map_err(|fault| faults.note(fault)).ok();
                if let Some(stream) = &stream {
                    reactor.add(&stream.socket, key as u64);
                }
                streams.push(stream);
            }
            reactor.arm(due(streams.len()));
            // The window begins some time after the last stream was opened.
            clock = Clock::new(plan);
            continue;
        }
        if waiting {
            if !said_ready && now >= clock.begin {
                said_ready = true;
                say(&Said::Ready);
            }
            continue;
        }
        if begun == 0 && now >= clock.begin {
            begun = now;
            tally.counting = true;
            say(&Said::Begin);
        }
        if said_end.is_none() && now >= clock.end {
            tally.counting = false;
            said_end = Some(now);
            for stream in streams.iter().flatten() {
                if stream.events.last_at + nanos(STUCK) < now {
                    faults.note("a stream that stopped without an end".into());
                }
            }
            say(&Said::End { all: tally.all });
        }
        if now >= clock.late {
            faults.note("nobody told the load to end".into());
            break;
        }
    }
    Outcome {
        seconds: (said_end.unwrap_or(clock.end) - begun) as f64 / 1e9,
        counted: tally.counted,
        latency: Quantiles::of(tally.latency),
        first_byte: Quantiles::of(first_bytes),
        gap: Quantiles::of(tally.gap),
        errors: faults.many,
        first_error: faults.first,
    }
}

/// Whether the word came, and not the end.
fn told_to_begin() -> bool {
    let mut byte = [0];
    std::io::stdin().read(&mut byte).is_ok_and(|read| read == 1)
}

impl Stream {
    fn open(plan: &Plan, key: usize, due: u64, request: &mut Request) -> Result<Self, Fault> {
        let socket = connect(plan.address).map_err(|error| format!("connect: {error}"))?;
        let stream = u32::try_from(key).unwrap();
        let bytes = request.numbered(stream);
        if send(&socket, bytes) != Ok(bytes.len()) {
            return Err("a request could not be sent".into());
        }
        Ok(Self {
            socket,
            answer: AnswerReader::new(),
            opened: Some(due),
            events: Events {
                stream,
                next: 0,
                partial: Vec::new(),
                last_at: wire::now(),
            },
        })
    }

    /// Takes what came; after the first bytes, how long they took.
    fn hear(&mut self, buffer: &mut [u8], tally: &mut Tally) -> Result<Option<u64>, Fault> {
        let taken = match receive(&self.socket, buffer) {
            Ok(None) => return Ok(None),
            Ok(Some(0)) => return Err("a stream was cut".into()),
            Ok(Some(taken)) => taken,
            Err(error) => return Err(format!("receive: {error}")),
        };
        let now = wire::now();
        let first = self.opened.take().map(|opened| now - opened);
        let events = &mut self.events;
        self.answer.read(&buffer[..taken], &mut |piece| {
            events.take(piece, now, tally)
        })?;
        if self.answer.is_done() {
            return Err("a stream ended that has no end".into());
        }
        Ok(first)
    }
}

impl Events {
    fn take(&mut self, mut piece: &[u8], now: u64, tally: &mut Tally) -> Result<(), Fault> {
        if !self.partial.is_empty() {
            let missing = (EVENT_LENGTH - self.partial.len()).min(piece.len());
            self.partial.extend_from_slice(&piece[..missing]);
            piece = &piece[missing..];
            if self.partial.len() < EVENT_LENGTH {
                return Ok(());
            }
            let whole = std::mem::take(&mut self.partial);
            self.check(&whole, now, tally)?;
        }
        while let Some((event, rest)) = piece.split_at_checked(EVENT_LENGTH) {
            self.check(event, now, tally)?;
            piece = rest;
        }
        self.partial.extend_from_slice(piece);
        Ok(())
    }

    fn check(&mut self, event: &[u8], now: u64, tally: &mut Tally) -> Result<(), Fault> {
        let sent = wire::read_event(event, self.stream, self.next).ok_or_else(|| {
            let (stream, next) = (self.stream, self.next);
            let got = String::from_utf8_lossy(event);
            format!("event {next} of stream {stream} is {got:?}")
        })?;
        tally.all += 1;
        if tally.counting {
            tally.counted += 1;
            tally.latency.push(now.saturating_sub(sent));
            if self.next > 0 {
                tally.gap.push(now - self.last_at);
            }
        }
        self.next += 1;
        self.last_at = now;
        Ok(())
    }
}
