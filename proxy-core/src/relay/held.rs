//! What is in flight on a thread, for whoever asks what holds a worker.
//!
//! A client's connection has one entry for its life, which its requests fill in one after the other; a request of an
//! HTTP/2 client has its own. Noting a request allocates nothing but its route's text, and that only when it is longer
//! than those before it.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use slab::Slab;

/// How much of a route is kept.
const ROUTE: usize = 200;

/// One thing in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The client; `None` for one of a Unix socket.
    pub client: Option<SocketAddr>,
    /// What was asked for, without its query, at most 200 bytes of it.
    pub route: String,
    /// What it is.
    pub kind: Kind,
    /// Since when.
    pub since: Instant,
    /// Bytes that the client sent, head included. Of an HTTP/2 request: its body's.
    pub bytes_in: u64,
    /// Bytes that the client was sent, head included. Of an HTTP/2 answer: its body's.
    pub bytes_out: u64,
}

/// What a [`Held`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// A request and its answer.
    #[default]
    Exchange,
    /// A WebSocket.
    WebSocket,
    /// Another tunnel.
    Tunnel,
}

/// The oldest of what is in flight, and how much there is in all.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// How many there are.
    pub total: u64,
    /// The oldest of them, the oldest first.
    pub oldest: Vec<Held>,
}

impl Listing {
    /// Adds another thread's, and keeps the oldest.
    pub(super) fn add(&mut self, other: Self, most: usize) {
        self.total += other.total;
        self.oldest.extend(other.oldest);
        self.oldest.sort_by_key(|held| held.since);
        self.oldest.truncate(most);
    }
}

/// All entries of one thread.
#[derive(Default)]
pub(super) struct Register {
    entries: RefCell<Slab<Rc<Entry>>>,
}

/// A connection's or a request's entry; gone when dropped.
pub(super) struct Record {
    entry: Rc<Entry>,
    key: usize,
    register: Rc<Register>,
}

/// What is known of one client.
#[derive(Default)]
pub(super) struct Entry {
    client: Option<SocketAddr>,
    /// When what is in flight began; `None` between two requests.
    since: Cell<Option<Instant>>,
    kind: Cell<Kind>,
    route: RefCell<Vec<u8>>,
    /// Since the connection's begin, and up to this request's.
    bytes_in: Cell<u64>,
    bytes_out: Cell<u64>,
    before_in: Cell<u64>,
    before_out: Cell<u64>,
}

impl Register {
    /// An entry for a client with nothing in flight.
    pub(super) fn record(self: &Rc<Self>, client: Option<SocketAddr>) -> Record {
        let entry = Rc::new(Entry {
            client,
            ..Entry::default()
        });
        let key = self.entries.borrow_mut().insert(Rc::clone(&entry));
        Record {
            entry,
            key,
            register: Rc::clone(self),
        }
    }

    /// What is in flight now.
    pub(super) fn list(&self, most: usize) -> Listing {
        let entries = self.entries.borrow();
        let mut begun: Vec<(Instant, &Entry)> = entries
            .iter()
            .filter_map(|(_, entry)| Some((entry.since.get()?, &**entry)))
            .collect();
        begun.sort_by_key(|(since, _)| *since);
        Listing {
            total: begun.len() as u64,
            oldest: begun
                .into_iter()
                .take(most)
                .map(|(since, entry)| entry.held(since))
                .collect(),
        }
    }
}

impl Record {
    /// Where its bytes are counted.
    pub(super) fn entry(&self) -> &Rc<Entry> {
        &self.entry
    }

    /// A request begins, of which `read` bytes were read already.
    pub(super) fn begin(&self, route: &[u8], read: usize) {
        let entry = &*self.entry;
        let mut kept = entry.route.borrow_mut();
        kept.clear();
        kept.extend_from_slice(&route[..route.len().min(ROUTE)]);
        entry.kind.set(Kind::Exchange);
        let all_in = entry.bytes_in.get();
        entry.before_in.set(all_in.saturating_sub(read as u64));
        entry.before_out.set(entry.bytes_out.get());
        entry.since.set(Some(Instant::now()));
    }

    /// It became something else.
    pub(super) fn becomes(&self, kind: Kind) {
        self.entry.kind.set(kind);
    }

    /// It is over.
    pub(super) fn end(&self) {
        self.entry.since.set(None);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.register.entries.borrow_mut().remove(self.key);
    }
}

impl Entry {
    pub(super) fn read(&self, bytes: usize) {
        self.bytes_in.set(self.bytes_in.get() + bytes as u64);
    }

    pub(super) fn written(&self, bytes: usize) {
        self.bytes_out.set(self.bytes_out.get() + bytes as u64);
    }

    fn held(&self, since: Instant) -> Held {
        Held {
            client: self.client,
            route: String::from_utf8_lossy(&self.route.borrow()).into_owned(),
            kind: self.kind.get(),
            since,
            bytes_in: self.bytes_in.get() - self.before_in.get(),
            bytes_out: self.bytes_out.get() - self.before_out.get(),
        }
    }
}

/// What the first line of a head that was parsed asks for, without its query: a path, a host and port, or `*`.
pub(super) fn route_of(head: &[u8]) -> &[u8] {
    let head = head.trim_ascii_start();
    let mut words = head.split(|byte| matches!(byte, b' ' | b'\r'));
    let target = words.nth(1).unwrap_or_default();
    let path = match target.first() {
        Some(b'/' | b'*') => target,
        _ => match target.windows(3).position(|part| part == b"://") {
            // What follows the authority; nothing is the root.
            Some(scheme) => {
                let authority = &target[scheme + 3..];
                match authority
                    .iter()
                    .position(|byte| matches!(byte, b'/' | b'?'))
                {
                    Some(at) if authority[at] == b'/' => &authority[at..],
                    _ => b"/",
                }
            }
            None => target,
        },
    };
    path.split(|byte| *byte == b'?').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_the_path_without_its_query_in_every_form_of_a_target() {
        for (head, route) in [
            ("GET /v1/messages HTTP/1.1\r\n", "/v1/messages"),
            ("GET /v1/models?key=secret HTTP/1.1\r\n", "/v1/models"),
            ("\r\nGET /a HTTP/1.1\r\n", "/a"),
            ("OPTIONS * HTTP/1.1\r\n", "*"),
            ("CONNECT api.example:443 HTTP/1.1\r\n", "api.example:443"),
            ("GET http://user@host/a/b?c=/d HTTP/1.1\r\n", "/a/b"),
            ("GET http://host HTTP/1.1\r\n", "/"),
            ("GET http://host?secret=/a HTTP/1.1\r\n", "/"),
            ("GET", ""),
        ] {
            let found = std::str::from_utf8(route_of(head.as_bytes())).unwrap();
            assert_eq!(found, route, "{head:?}");
        }
    }

    #[test]
    fn each_request_of_a_connection_has_its_own_route_age_and_bytes() {
        let register = Rc::new(Register::default());
        let client = "127.0.0.1:5".parse().unwrap();
        let record = register.record(Some(client));
        assert_eq!(register.list(9), Listing::default());
        record.entry().read(100);
        record.begin(b"/first", 60);
        record.entry().read(5);
        record.entry().written(7);
        let listed = register.list(9);
        let [held] = &listed.oldest[..] else {
            panic!("{listed:?}");
        };
        assert_eq!(
            (listed.total, held.client, &*held.route),
            (1, Some(client), "/first")
        );
        assert_eq!(
            (held.bytes_in, held.bytes_out, held.kind),
            (65, 7, Kind::Exchange)
        );
        record.becomes(Kind::WebSocket);
        assert_eq!(register.list(9).oldest[0].kind, Kind::WebSocket);
        record.end();
        assert_eq!(register.list(9).total, 0);

        record.entry().read(30);
        record.begin(&[b'x'; 300], 30);
        let again = &register.list(9).oldest[0];
        assert_eq!(
            (again.bytes_in, again.bytes_out, again.kind),
            (30, 0, Kind::Exchange)
        );
        assert_eq!(again.route.len(), ROUTE);
        drop(record);
        assert_eq!(register.list(9), Listing::default());
    }

    #[test]
    fn the_oldest_come_first_and_the_rest_is_only_counted() {
        let (one, other) = (Rc::new(Register::default()), Rc::new(Register::default()));
        let mut records = Vec::new();
        for number in 0..6 {
            let record = [&one, &other][number % 2].record(None);
            record.begin(format!("/{number}").as_bytes(), 0);
            records.push(record);
        }
        let mut all = one.list(2);
        assert_eq!((all.total, all.oldest.len()), (3, 2));
        all.add(other.list(2), 3);
        let routes: Vec<&str> = all.oldest.iter().map(|held| &*held.route).collect();
        assert_eq!((all.total, routes), (6, vec!["/0", "/1", "/2"]));
    }
}
