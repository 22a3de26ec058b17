//! A blocking client for the control socket. One connection a request, every wait has a deadline,
//! and a cut stream is not a verdict: the rollout is asked for again by its number.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::Serialize;
use serde::de::DeserializeOwned;
use staging::home::Home;

use crate::error::ControlError;
use crate::http::{Answer, HttpError};
use crate::supervisor::{Handover, HandoverRequest, Preflight};
use crate::types::{DrainAnswer, DrainRequest, ErrorBody, RolloutRecord, Status, Streams};

/// The largest JSON answer that is read, in bytes.
const ANSWER_LIMIT: u64 = 4 * 1024 * 1024;

/// How often a question is asked anew whose answer was cut.
const TRIES: u32 = 3;

/// How long the client waits, and for what.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// For a connection, and for each read and write of a short request.
    pub answer: Duration,
    /// For the next sign of life on a stream of steps or events (the supervisor gives one every 15 s);
    /// then the rollout is asked for by its number, and events anew.
    pub silence: Duration,
    /// For the verdict of a rollout, from the request on. While its probation lasts: from that one's end on.
    pub verdict: Duration,
    /// Between two questions for a verdict.
    pub poll: Duration,
    /// How long the supervisor may be away while a verdict is waited for.
    pub away: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(10),
            silence: Duration::from_secs(60),
            verdict: Duration::from_secs(900),
            poll: Duration::from_millis(200),
            away: Duration::from_secs(10),
        }
    }
}

/// Asks the supervisor of one home. Connects anew for every request.
#[derive(Debug, Clone)]
pub struct Client {
    home: Home,
    pub(crate) deadlines: Deadlines,
}

impl Client {
    /// A client for the supervisor of this home, whether or not it runs.
    pub fn new(home: &Home) -> Self {
        Self {
            home: home.clone(),
            deadlines: Deadlines::default(),
        }
    }

    /// A client for a supervisor that answers.
    ///
    /// # Errors
    /// [`ControlError::NotRunning`] when nobody listens.
    pub fn connect(home: &Home) -> Result<Self, ControlError> {
        let client = Self::new(home);
        client.open(client.deadlines.answer)?;
        Ok(client)
    }

    /// Other deadlines than the defaults.
    #[must_use]
    pub fn with_deadlines(mut self, deadlines: Deadlines) -> Self {
        self.deadlines = deadlines;
        self
    }

    /// `GET /status`.
    ///
    /// # Errors
    /// [`ControlError`]; `NotRunning` when there is no supervisor.
    pub fn status(&self) -> Result<Status, ControlError> {
        self.get("/status")
    }

    /// `GET /rollouts/<id>`.
    ///
    /// # Errors
    /// [`ControlError`]; `Refused` when the supervisor does not know that rollout.
    pub fn rollout(&self, id: u64) -> Result<RolloutRecord, ControlError> {
        self.get(&format!("/rollouts/{id}"))
    }

    /// `POST /supervisor`: the supervisor shall go on as another program. The answer says that it begins; how it ends
    /// stands in the status.
    ///
    /// # Errors
    /// [`ControlError`]; `Refused` when it was not begun.
    pub fn hand_over(&self, request: &HandoverRequest) -> Result<Handover, ControlError> {
        self.post("/supervisor", request)
    }

    /// `GET /preflight`: whether that would go. Changes nothing.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn preflight(&self, version: Option<&str>) -> Result<Preflight, ControlError> {
        let query = version.map(|version| format!("?version={version}"));
        let path = format!("/preflight{}", query.unwrap_or_default());
        self.get_within(&path, self.deadlines.silence)
    }

    /// Waits until the handover `begun` has ended, whichever program tells it. The supervisor is away for a moment
    /// meanwhile; one that stays away, or knows nothing of it, is an error.
    ///
    /// # Errors
    /// [`ControlError`]
    pub fn await_handover(&self, begun: &Handover) -> Result<Status, ControlError> {
        let start = Instant::now();
        let mut heard = start;
        loop {
            let why = match self.status() {
                Ok(status) => {
                    heard = Instant::now();
                    let ended = match &status.handover {
                        Some(last) if last.id == begun.id => last.phase.exit().is_some(),
                        // Another image, which was started anew, or another handover since.
                        _ => true,
                    };
                    if ended {
                        return Ok(status);
                    }
                    None
                }
                Err(error) => Some(error),
            };
            if heard.elapsed() >= self.deadlines.away || start.elapsed() >= self.deadlines.verdict {
                return Err(why.unwrap_or(ControlError::Silent {
                    request: "GET /status".to_owned(),
                    after: start.elapsed(),
                }));
            }
            std::thread::sleep(self.deadlines.poll);
        }
    }

    /// `GET` of a path whose answer is JSON.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ControlError> {
        self.get_within(path, self.deadlines.answer)
    }

    fn get_within<T: DeserializeOwned>(
        &self,
        path: &str,
        within: Duration,
    ) -> Result<T, ControlError> {
        let mut tries = 0;
        loop {
            match self.get_once(path, within) {
                // The supervisor replaced itself while it was asked. Asking once more changes nothing.
                Err(ControlError::Exchange { source, .. }) if is_cut(&source) && tries < TRIES => {
                    tries += 1;
                    std::thread::sleep(self.deadlines.poll);
                }
                other => return other,
            }
        }
    }

    fn get_once<T: DeserializeOwned>(
        &self,
        path: &str,
        within: Duration,
    ) -> Result<T, ControlError> {
        let request = format!("GET {path}");
        let answer = self.exchange("GET", path, b"", within)?;
        self.read(request, answer)
    }

    /// `GET /streams`: what holds a generation, or every one.
    ///
    /// # Errors
    /// [`ControlError`]; `Refused` when there is no such generation.
    pub fn streams(&self, generation: Option<u64>) -> Result<Streams, ControlError> {
        match generation {
            Some(generation) => self.get(&format!("/streams?generation={generation}")),
            None => self.get("/streams"),
        }
    }

    /// `POST /drains`: what ending a draining generation would cut, and with its token: ends it.
    ///
    /// # Errors
    /// [`ControlError`]; `Refused` when it does not drain, or when the token is not known any more.
    pub fn drain(&self, request: &DrainRequest) -> Result<DrainAnswer, ControlError> {
        self.post("/drains", request)
    }

    /// `POST` of a JSON body to a path whose answer is JSON.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn post<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, ControlError> {
        let request = format!("POST {path}");
        let body = written(&request, body)?;
        let answer = self.exchange("POST", path, &body, self.deadlines.answer)?;
        self.read(request, answer)
    }

    /// Sends one request and reads the head of its answer.
    pub(crate) fn exchange(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
        read: Duration,
    ) -> Result<Answer<BufReader<UnixStream>>, ControlError> {
        let request = format!("{method} {path}");
        let mut stream = self.open(read)?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: rollproxy\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut wire = head.into_bytes();
        wire.extend_from_slice(body);
        let failed = |source: io::Error| {
            if timed_out(&source) {
                ControlError::Silent {
                    request: request.clone(),
                    after: read,
                }
            } else {
                ControlError::Exchange {
                    request: request.clone(),
                    source,
                }
            }
        };
        // A peer that refuses before it has read everything still answers: read that first.
        let sent = stream.write_all(&wire);
        match (Answer::read_head(BufReader::new(stream)), sent) {
            (Ok(answer), _) => Ok(answer),
            (Err(_), Err(source)) => Err(failed(source)),
            (Err(HttpError::Read(source)), Ok(())) => Err(failed(source)),
            (Err(HttpError::NoAnswer), Ok(())) => Err(ControlError::Exchange {
                request,
                source: io::ErrorKind::UnexpectedEof.into(),
            }),
            (Err(error @ HttpError::Head(_)), Ok(())) => Err(ControlError::Protocol {
                request,
                what: error.to_string(),
            }),
        }
    }

    /// The answer if it is a success, the supervisor's refusal as an error if not.
    pub(crate) fn success<R: BufRead>(
        &self,
        request: &str,
        answer: Answer<R>,
    ) -> Result<Answer<R>, ControlError> {
        if answer.status == 200 {
            return Ok(answer);
        }
        let status = answer.status;
        let body = self.limited(request, answer)?;
        Err(match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(mut refusal) => {
                refusal.error.exit = ErrorBody::exit(status);
                ControlError::Refused {
                    failure: refusal.error,
                }
            }
            Err(_) => ControlError::Protocol {
                request: request.to_owned(),
                what: format!("answered with status {status} and no reason"),
            },
        })
    }

    fn read<R: BufRead, T: DeserializeOwned>(
        &self,
        request: String,
        answer: Answer<R>,
    ) -> Result<T, ControlError> {
        let answer = self.success(&request, answer)?;
        let body = self.limited(&request, answer)?;
        serde_json::from_slice(&body).map_err(|source| ControlError::Protocol {
            request,
            what: format!("the answer cannot be read: {source}"),
        })
    }

    fn limited(&self, request: &str, answer: impl Read) -> Result<Vec<u8>, ControlError> {
        let mut body = Vec::new();
        match answer.take(ANSWER_LIMIT + 1).read_to_end(&mut body) {
            Ok(_) if body.len() as u64 > ANSWER_LIMIT => Err(ControlError::Protocol {
                request: request.to_owned(),
                what: format!("the answer is longer than {ANSWER_LIMIT} bytes"),
            }),
            Ok(_) => Ok(body),
            Err(source) if timed_out(&source) => Err(ControlError::Silent {
                request: request.to_owned(),
                after: self.deadlines.answer,
            }),
            Err(source) => Err(ControlError::Exchange {
                request: request.to_owned(),
                source,
            }),
        }
    }

    /// A connection with deadlines on it. The deadline for sending also bounds the connecting.
    fn open(&self, read: Duration) -> Result<UnixStream, ControlError> {
        let socket = self.home.control_socket();
        let connected = self
            .home
            .socket_address()
            .map_err(io::Error::other)
            .and_then(|address| connect(address.path(), self.deadlines.answer, read));
        connected.map_err(|source| {
            let gone = matches!(
                source.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            );
            if gone || matches!(socket.try_exists(), Ok(false)) {
                ControlError::NotRunning {
                    home: self.home.root().to_owned(),
                }
            } else if timed_out(&source) {
                ControlError::Silent {
                    request: "connecting".to_owned(),
                    after: self.deadlines.answer,
                }
            } else {
                ControlError::Connect { socket, source }
            }
        })
    }
}

fn connect(path: &Path, write: Duration, read: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // Set before connecting: a full backlog blocks as long as this says, not for ever.
    set_socket_timeout(&socket, Timeout::Send, Some(write))?;
    rustix::net::connect(&socket, &address)?;
    let stream = UnixStream::from(socket);
    stream.set_read_timeout(Some(read))?;
    Ok(stream)
}

/// The peer ended the connection before it had answered.
fn is_cut(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

fn timed_out(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// A request's body; our own types, so that this does not fail.
pub(crate) fn written<B: Serialize>(request: &str, body: &B) -> Result<Vec<u8>, ControlError> {
    serde_json::to_vec(body).map_err(|source| ControlError::Protocol {
        request: request.to_owned(),
        what: format!("the request cannot be written: {source}"),
    })
}
