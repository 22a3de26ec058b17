//! What is measured, and by which columns it is shown.

use std::time::Duration;

use super::load::{Kind, Plan};

/// One kind of traffic.
pub struct Scenario {
    /// What `--only` calls it.
    pub key: &'static str,
    pub title: &'static str,
    pub kind: Kind,
    pub columns: &'static [Column],
}

/// One figure of a scenario.
pub struct Column {
    pub key: &'static str,
    pub title: &'static str,
    pub decimals: usize,
}

const fn column(key: &'static str, title: &'static str, decimals: usize) -> Column {
    Column {
        key,
        title,
        decimals,
    }
}

const BESIDE: Column = column("beside", "other work, % of the machine", 0);
const REQUESTS: &[Column] = &[
    column("rate", "requests/s", 0),
    column("p50", "p50 µs", 0),
    column("p99", "p99 µs", 0),
    column("cpu", "CPU µs a request", 1),
    BESIDE,
];
const CONNECTIONS: &[Column] = &[
    column("rate", "requests/s", 0),
    column("p50", "p50 µs", 0),
    column("p99", "p99 µs", 0),
    column("cpu", "CPU µs a request", 1),
    column("cpu-root", "of it supervisor or master", 1),
    BESIDE,
];
const EVENTS: &[Column] = &[
    column("cpu", "CPU µs an event", 1),
    column("memory", "KiB a stream", 1),
    column("idle-memory", "MiB idle", 1),
    column("first-p50", "first byte p50 ms", 2),
    column("first-p99", "first byte p99 ms", 2),
    column("gap-p99", "gap p99 ms", 1),
    column("p50", "event p50 µs", 0),
    column("p99", "event p99 µs", 0),
    column("rate", "events/s", 0),
    BESIDE,
];

/// All of them.
pub fn all(quick: bool) -> Vec<Scenario> {
    let streams = if quick { 500 } else { 2_000 };
    vec![
        Scenario {
            key: "keep-alive",
            title: "Keep-alive, 512-byte POSTs, 32 clients",
            kind: Kind::KeepAlive { clients: 32 },
            columns: REQUESTS,
        },
        Scenario {
            key: "one-connection",
            title: "One connection a request, 512-byte POSTs, 32 clients",
            kind: Kind::OneConnection { clients: 32 },
            columns: CONNECTIONS,
        },
        Scenario {
            key: "open-loop",
            title: "Open loop, 2,000 requests/s, times from when a request was due",
            kind: Kind::OpenLoop { rate: 2_000 },
            columns: REQUESTS,
        },
        Scenario {
            key: "streams",
            title: if quick {
                "500 event streams of 10 events/s"
            } else {
                "2,000 event streams of 10 events/s"
            },
            kind: Kind::Streams {
                streams,
                opening: 1_000,
            },
            columns: EVENTS,
        },
    ]
}

impl Scenario {
    pub fn plan(&self, address: std::net::SocketAddrV4, quick: bool) -> Plan {
        Plan {
            kind: self.kind,
            address,
            warm: Duration::from_millis(if quick { 300 } else { 1_000 }),
            window: Duration::from_secs(if quick { 1 } else { 5 }),
            wait: false,
        }
    }
}
