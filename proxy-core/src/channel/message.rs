//! What supervisor and worker say to each other.

use std::borrow::Cow;

use control::types::HeldStream;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The longest datagram, in bytes.
pub const MAX_DATAGRAM: usize = 64 * 1024;

/// Names one transfer, unique on its channel.
pub type Id = u64;

/// Whom a message is about: one worker process. Carried by every message, both ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Addressee {
    /// The worker's generation.
    pub generation: u64,
    /// The worker's process id.
    pub pid: u32,
}

/// What the supervisor says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "kebab-case",
    rename_all_fields = "camelCase"
)]
pub enum ToWorker {
    /// Take new sockets from now on, and give none back any more; answered by `activated`.
    Activate,
    /// Keep what is in flight and be ready to take over again (`activate`); take no new sockets, and
    /// give idle connections back at once.
    Standby {
        /// How many returns may be unanswered before a `return-credit`; none = an older supervisor,
        /// which counts none.
        #[serde(default)]
        returns: Option<u32>,
    },
    /// A [`Self::Standby`]'s or [`Self::Drain`]'s returns were taken: so many more may follow.
    ReturnCredit {
        /// How many.
        count: u32,
    },
    /// `/ready` says 503 from now on; everything else goes on as it was.
    Unready,
    /// What is in flight; answered by `streams` with the same id.
    Streams {
        /// Chosen by the supervisor.
        id: Id,
    },
    /// No new request is begun while paused: idle connections are given back, no socket is taken.
    /// Answered by `admission` with the same id, and again by asking again.
    Admission {
        /// Chosen by the supervisor.
        id: Id,
        /// Paused, or as usual again.
        paused: bool,
        /// After so many milliseconds without another such message it is as usual again by itself.
        #[serde(default)]
        lease_ms: u64,
    },
    /// Finish what is in flight, give idle connections back, then say `drained` and exit.
    Drain {
        /// Nobody is there to take connections over (the supervisor stops): idle ones are closed
        /// here, where a request that has just arrived can still be answered.
        #[serde(default)]
        close: bool,
        /// As in [`Self::Standby`].
        #[serde(default)]
        returns: Option<u32>,
    },
    /// Exit now; whatever is still served is cut: WebSockets are closed with 1012 at a frame's end,
    /// answers are aborted.
    Shutdown,
    /// Answered by `pong` with the same id.
    Ping {
        /// Chosen by the supervisor.
        id: Id,
    },
    /// Comes with an accepted socket; answered by `socket-accepted` or `socket-refused`.
    Socket {
        /// Names the transfer.
        id: Id,
    },
    /// The accepted socket is the worker's; answered by `socket-owned` before a byte is read.
    SocketCommit {
        /// Names the transfer.
        id: Id,
    },
    /// The accepted socket is not the worker's after all; it closes its copy.
    SocketCancel {
        /// Names the transfer.
        id: Id,
    },
}

/// Whom a fatal error is the fault of. A bad configuration never blames a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub enum Blame {
    /// The package itself.
    #[default]
    Package,
    /// The configuration it was given.
    Configuration,
    /// The host: descriptors, memory, threads.
    Host,
    /// Something that this version does not know: no version is blamed for that.
    #[serde(other)]
    Unknown,
}

/// What a worker says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "kebab-case",
    rename_all_fields = "camelCase"
)]
pub enum ToSupervisor {
    /// Started, and its own self-test request was answered.
    Ready {
        /// The version of the package the worker stands in.
        version: String,
        /// The channel protocol it speaks.
        protocol: u32,
    },
    /// Takes new sockets.
    Activated,
    /// Nothing is left to serve; exits next.
    Drained,
    /// What it has in hand.
    Load {
        /// Client connections.
        connections: u64,
        /// Requests whose answer is not finished.
        exchanges: u64,
        /// Requests since the start.
        requests: u64,
        /// Answers of class 5xx that are the proxy's own, since the start.
        #[serde(default)]
        local_5xx: u64,
    },
    /// Answers `ping`.
    Pong {
        /// The ping's id.
        id: Id,
    },
    /// Cannot go on; exits next.
    Fatal {
        /// Why, for a person.
        reason: String,
        /// Whose fault.
        #[serde(default)]
        blame: Blame,
    },
    /// Has the descriptor, has not read from it.
    SocketAccepted {
        /// Names the transfer.
        id: Id,
    },
    /// Does not take the socket (demoted meanwhile, no descriptors left): not a crime.
    SocketRefused {
        /// Names the transfer.
        id: Id,
        /// Why.
        #[serde(default)]
        reason: String,
    },
    /// Serves the socket; the supervisor may close its copy.
    SocketOwned {
        /// Names the transfer.
        id: Id,
    },
    /// Comes with a connection that is between two requests: another worker shall serve the next one.
    SocketReturned {
        /// Names the return.
        id: Id,
    },
    /// Answers `streams`: what is in flight, the oldest first, as much of it as a datagram holds.
    Streams {
        /// The question's id.
        id: Id,
        /// How many there are in all.
        total: u64,
        /// The oldest of them.
        streams: Vec<HeldStream>,
    },
    /// Answers `admission`: what is in hand at that moment.
    Admission {
        /// The question's id.
        id: Id,
        /// Client connections.
        connections: u64,
        /// Requests whose answer is not finished.
        exchanges: u64,
    },
}

#[derive(Serialize)]
struct Envelope<'a, M> {
    #[serde(flatten)]
    message: &'a M,
    #[serde(flatten)]
    addressee: Addressee,
}

/// What every message begins to be judged by; the rest is read only if it is meant for us.
#[derive(Deserialize)]
struct Header<'m> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'m, str>,
    generation: u64,
    pid: u32,
}

/// Why a datagram was dropped. Each is counted; none is an error of the channel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// Longer than [`MAX_DATAGRAM`].
    #[error("a message longer than 64 KiB")]
    TooLong,
    /// Not a JSON object with `type`, `generation` and `pid`, or a known type with wrong fields.
    #[error("a malformed message")]
    Malformed,
    /// A type this version does not know.
    #[error("a message of unknown type {0:?}")]
    UnknownType(String),
    /// About another generation.
    #[error("a message of generation {0}")]
    StaleGeneration(u64),
    /// About another process.
    #[error("a message of process {0}")]
    WrongPid(u32),
}

/// One datagram's bytes.
pub fn encode<M: Serialize>(message: &M, addressee: Addressee) -> Vec<u8> {
    // Every message is a flat struct of strings and integers: serialising it has no way to fail.
    serde_json::to_vec(&Envelope { message, addressee }).unwrap_or_default()
}

/// Reads one datagram that must be about `expected`.
///
/// # Errors
/// Why it was dropped.
pub fn decode<M: DeserializeOwned>(bytes: &[u8], expected: Addressee) -> Result<M, Dropped> {
    if bytes.len() > MAX_DATAGRAM {
        return Err(Dropped::TooLong);
    }
    // An array could pass for a struct.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err(Dropped::Malformed);
    }
    let header: Header<'_> = serde_json::from_slice(bytes).map_err(|_| Dropped::Malformed)?;
    if header.generation != expected.generation {
        return Err(Dropped::StaleGeneration(header.generation));
    }
    if header.pid != expected.pid {
        return Err(Dropped::WrongPid(header.pid));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        if error.to_string().starts_with("unknown variant") {
            Dropped::UnknownType(header.kind.chars().take(40).collect())
        } else {
            Dropped::Malformed
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::types::StreamKind;

    const US: Addressee = Addressee {
        generation: 7,
        pid: 4711,
    };

    #[test]
    fn a_message_looks_as_the_contract_says() {
        let bytes = encode(&ToWorker::Socket { id: 42 }, US);
        assert_eq!(
            String::from_utf8(bytes).unwrap(),
            r#"{"type":"socket","id":42,"generation":7,"pid":4711}"#
        );
    }

    #[test]
    fn every_message_survives_the_wire() {
        let said = [
            ToSupervisor::Ready {
                version: "1.2.3".into(),
                protocol: 1,
            },
            ToSupervisor::Activated,
            ToSupervisor::Drained,
            ToSupervisor::Load {
                connections: 1,
                exchanges: 2,
                requests: 3,
                local_5xx: 4,
            },
            ToSupervisor::Pong { id: 5 },
            ToSupervisor::Fatal {
                reason: "no".into(),
                blame: Blame::Configuration,
            },
            ToSupervisor::SocketAccepted { id: 6 },
            ToSupervisor::SocketRefused {
                id: 7,
                reason: "demoted".into(),
            },
            ToSupervisor::SocketOwned { id: 8 },
            ToSupervisor::SocketReturned { id: 9 },
            ToSupervisor::Streams {
                id: 10,
                total: 1,
                streams: vec![HeldStream {
                    client: "127.0.0.1:5".into(),
                    route: "/v1/messages".into(),
                    kind: StreamKind::WebSocket,
                    age_ms: 7,
                    bytes_in: 8,
                    bytes_out: 9,
                }],
            },
            ToSupervisor::Admission {
                id: 11,
                connections: 2,
                exchanges: 1,
            },
        ];
        for message in said {
            assert_eq!(decode(&encode(&message, US), US), Ok(message));
        }
        for message in [
            ToWorker::Activate,
            ToWorker::Drain {
                close: true,
                returns: Some(64),
            },
            ToWorker::Standby { returns: Some(64) },
            ToWorker::ReturnCredit { count: 8 },
            ToWorker::Unready,
            ToWorker::Streams { id: 5 },
            ToWorker::Admission {
                id: 6,
                paused: true,
                lease_ms: 90_000,
            },
            ToWorker::Shutdown,
            ToWorker::Ping { id: 1 },
            ToWorker::Socket { id: 2 },
            ToWorker::SocketCommit { id: 3 },
            ToWorker::SocketCancel { id: 4 },
        ] {
            assert_eq!(decode(&encode(&message, US), US), Ok(message));
        }
    }

    #[test]
    fn what_cannot_be_understood_is_dropped_by_name() {
        let cases: [(&[u8], Dropped); 11] = [
            (b"", Dropped::Malformed),
            (b"\xff\x00garbage", Dropped::Malformed),
            (b"[1,2]", Dropped::Malformed),
            (br#"["activated",7,4711]"#, Dropped::Malformed),
            (
                br#"{"type":"activated","generation":7,"pid":4711} more"#,
                Dropped::Malformed,
            ),
            (
                br#"{"type":"activated","generation":6,"generation":7,"pid":4711}"#,
                Dropped::Malformed,
            ),
            (br#"{"type":"pong"}"#, Dropped::Malformed),
            (
                br#"{"type":"pong","generation":7,"pid":4711}"#,
                Dropped::Malformed,
            ),
            (
                br#"{"type":"sing","generation":7,"pid":4711}"#,
                Dropped::UnknownType("sing".into()),
            ),
            (
                br#"{"type":"activated","generation":6,"pid":4711}"#,
                Dropped::StaleGeneration(6),
            ),
            (
                br#"{"type":"activated","generation":7,"pid":1}"#,
                Dropped::WrongPid(1),
            ),
        ];
        for (bytes, why) in cases {
            assert_eq!(decode::<ToSupervisor>(bytes, US), Err(why));
        }
        let long = vec![b' '; MAX_DATAGRAM + 1];
        assert_eq!(decode::<ToSupervisor>(&long, US), Err(Dropped::TooLong));
    }

    #[test]
    fn a_fatal_whose_blame_is_of_a_newer_version_is_still_a_fatal() {
        let bytes = br#"{"type":"fatal","generation":7,"pid":4711,"reason":"no","blame":"moon"}"#;
        assert_eq!(
            decode(bytes, US),
            Ok(ToSupervisor::Fatal {
                reason: "no".into(),
                blame: Blame::Unknown
            })
        );
    }

    #[test]
    fn fields_of_a_newer_version_are_ignored() {
        let bytes = br#"{"type":"ready","generation":7,"pid":4711,"version":"9.0.0","protocol":3,"mood":{"good":true}}"#;
        assert_eq!(
            decode(bytes, US),
            Ok(ToSupervisor::Ready {
                version: "9.0.0".into(),
                protocol: 3
            })
        );
    }
}
