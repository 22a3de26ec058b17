//! The upstream, a process of its own: one thread, one epoll, answers made beforehand, events by a wheel.

use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::answer::{field, head_length};
use super::reactor::{INPUT, Reactor, TIMER, receive, send};
use super::wire;

const LISTENER: u64 = u64::MAX - 2;
const TICK: Duration = Duration::from_micros(100);
/// Between two events of a stream, in ticks: 100 ms.
const EVENT_INTERVAL: usize = 1_000;

struct Connection {
    socket: OwnedFd,
    /// A request that has not come whole.
    partial: Vec<u8>,
    stream: Option<Stream>,
}

struct Stream {
    number: u32,
    sent: u32,
    /// Its slot in the wheel.
    slot: usize,
}

struct Upstream {
    reactor: Reactor,
    listener: OwnedFd,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    wheel: Vec<Vec<usize>>,
    streams: usize,
    /// Ticks that are done, and when the first was.
    ticks: u64,
    since: u64,
    answer: wire::Answer,
    event: wire::Event,
}

/// Serves until standard input ends; says its port on standard output first.
pub fn run() {
    let listener = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .unwrap();
    // Accepted sockets inherit it.
    sockopt::set_tcp_nodelay(&listener, true).unwrap();
    let any = std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
    rustix::net::bind(&listener, &any).unwrap();
    rustix::net::listen(&listener, 4096).unwrap();
    let address = rustix::net::getsockname(&listener).unwrap();
    let address = std::net::SocketAddrV4::try_from(address).unwrap();
    println!("{}", address.port());
    std::io::stdout().flush().unwrap();
    let reactor = Reactor::new();
    reactor.add(&listener, LISTENER);
    Upstream {
        reactor,
        listener,
        connections: Vec::new(),
        free: Vec::new(),
        wheel: vec![Vec::new(); EVENT_INTERVAL],
        streams: 0,
        ticks: 0,
        since: 0,
        answer: wire::Answer::new(),
        event: wire::Event::new(),
    }
    .serve();
}

impl Upstream {
    fn serve(mut self) {
        let mut buffer = vec![0; 64 * 1024];
        let mut tokens = Vec::new();
        loop {
            self.reactor.wait(&mut tokens);
            for token in &tokens {
                match *token {
                    INPUT => return,
                    TIMER => {}
                    LISTENER => self.accept(),
                    token => self.hear(usize::try_from(token).unwrap(), &mut buffer),
                }
            }
            if self.streams > 0 {
                self.turn();
            }
        }
    }

    fn accept(&mut self) {
        while let Ok(socket) = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
            let key = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            self.reactor.add(&socket, key as u64);
            self.connections[key] = Some(Connection {
                socket,
                partial: Vec::new(),
                stream: None,
            });
        }
    }

    fn hear(&mut self, key: usize, buffer: &mut [u8]) {
        // What is ready in one look may have ended earlier in it.
        let Some(connection) = &mut self.connections[key] else {
            return;
        };
        let taken = match receive(&connection.socket, buffer) {
            Ok(Some(0)) | Err(_) => return self.end(key),
            Ok(None) => return,
            Ok(Some(taken)) => taken,
        };
        let mut held = std::mem::take(&mut connection.partial);
        if held.is_empty() {
            let used = self.serve_all(key, &buffer[..taken]);
            held.extend_from_slice(&buffer[used..taken]);
        } else {
            held.extend_from_slice(&buffer[..taken]);
            let used = self.serve_all(key, &held);
            held.drain(..used);
        }
        if !held.is_empty()
            && let Some(connection) = &mut self.connections[key]
        {
            connection.partial = held;
        }
    }

    /// Answers every whole request in `bytes`; how many bytes these were.
    fn serve_all(&mut self, key: usize, bytes: &[u8]) -> usize {
        let mut used = 0;
        while let Some(head) = head_length(&bytes[used..]) {
            let (head, rest) = bytes[used..].split_at(head);
            let Some(body) = rest.get(..wire::BODY) else {
                break;
            };
            used += head.len() + wire::BODY;
            let last = field(head, b"connection")
                .is_some_and(|value| value.eq_ignore_ascii_case(b"close"));
            let right = field(head, b"content-length") == Some(b"512");
            match wire::read_request_body(body).filter(|_| right) {
                Some((false, number)) => {
                    let answer = self.answer.to(number, last);
                    if !self.connections[key]
                        .as_ref()
                        .is_some_and(|to| to.send(answer))
                        || last
                    {
                        self.end(key);
                        return bytes.len();
                    }
                }
                Some((true, number)) => self.begin(key, number),
                None => {
                    let refusal = b"HTTP/1.1 400 Wrong\r\ncontent-length: 0\r\n\r\n";
                    if let Some(connection) = &self.connections[key] {
                        connection.send(refusal);
                    }
                    self.end(key);
                    return bytes.len();
                }
            }
        }
        used
    }

    /// The stream's head and first event. When the others are due is spread by the stream's number: streams know
    /// nothing of each other, and events that came in bunches would make it easier for a proxy than it is.
    fn begin(&mut self, key: usize, number: u32) {
        if self.streams == 0 {
            self.reactor.arm_every(TICK);
            (self.since, self.ticks) = (wire::now(), 0);
        }
        let Some(connection) = &mut self.connections[key] else {
            return;
        };
        let first = [wire::STREAM_HEAD, self.event.chunk(number, 0)].concat();
        if !connection.send(&first) {
            return self.end(key);
        }
        let slot = usize::try_from(number).unwrap() * 619 % EVENT_INTERVAL;
        connection.stream = Some(Stream {
            number,
            sent: 1,
            slot,
        });
        self.wheel[slot].push(key);
        self.streams += 1;
    }

    /// Does every tick that is due, late ones one by one: no event is left out.
    fn turn(&mut self) {
        let due = (wire::now() - self.since) / u64::try_from(TICK.as_nanos()).unwrap();
        while self.ticks < due && self.streams > 0 {
            self.ticks += 1;
            let slot = usize::try_from(self.ticks).unwrap() % EVENT_INTERVAL;
            let mut failed = Vec::new();
            for key in &self.wheel[slot] {
                let Some(connection) = &mut self.connections[*key] else {
                    continue;
                };
                let Some(stream) = &mut connection.stream else {
                    continue;
                };
                let event = self.event.chunk(stream.number, stream.sent);
                stream.sent += 1;
                if !connection.send(event) {
                    failed.push(*key);
                }
            }
            for key in failed {
                self.end(key);
            }
        }
    }

    fn end(&mut self, key: usize) {
        let Some(ended) = self.connections[key].take() else {
            return;
        };
        if let Some(stream) = ended.stream {
            let slot = &mut self.wheel[stream.slot];
            slot.retain(|other| *other != key);
            self.streams -= 1;
            if self.streams == 0 {
                self.reactor.arm_every(Duration::ZERO);
            }
        }
        self.free.push(key);
    }
}

impl Connection {
    /// All or nothing: what does not fit into the kernel's buffer ends the connection, which the load will notice.
    fn send(&self, bytes: &[u8]) -> bool {
        send(&self.socket, bytes) == Ok(bytes.len())
    }
}
