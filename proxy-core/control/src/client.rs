//! A blocking client for the control socket. One connection a request, every wait has a deadline,
//! and a cut stream is not a verdict: the rollout is asked for again by its number.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::de::DeserializeOwned;
use staging::home::Home;
use staging::report::{Exit, Failure, Report};

use crate::http::{Answer, HttpError};
use crate::types::{ErrorBody, Line, RolloutRecord, RolloutRequest, Status, Step, Verdict};

/// The largest JSON answer that is read, in bytes.
const ANSWER_LIMIT: u64 = 4 * 1024 * 1024;
/// The longest line of a rollout's stream, in bytes.
const LINE_LIMIT: u64 = 256 * 1024;

/// Why the supervisor could not be asked, or what it answered.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody listens on the control socket.
    #[error("no supervisor runs for {} (nobody answers on its control socket); start one with `rollproxy serve`", home.display())]
    NotRunning {
        /// The home.
        home: PathBuf,
    },
    /// The socket cannot be reached.
    #[error("connecting to {}: {source}; check who owns the home", socket.display())]
    Connect {
        /// The control socket.
        socket: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The request could not be sent, or the answer not be read.
    #[error("{request}: {source}; see `rollproxy status`, then try again")]
    Exchange {
        /// Method and path.
        request: String,
        /// What the system said.
        source: io::Error,
    },
    /// The supervisor did not answer in time.
    #[error("{request}: the supervisor has not answered for {}; see `rollproxy status`, then try again", seconds(*after))]
    Silent {
        /// Method and path.
        request: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// The answer makes no sense.
    #[error("{request}: {what}; are both sides Rollproxy?")]
    Protocol {
        /// Method and path.
        request: String,
        /// What is wrong with it.
        what: String,
    },
    /// The supervisor refused, and said why.
    #[error("{}", failure.message)]
    Refused {
        /// Its own words.
        failure: Failure,
    },
    /// The stream of a rollout was cut before it named the rollout.
    #[error(
        "the supervisor's answer was cut before it named a rollout; see `rollproxy status` for what became of it"
    )]
    CutStream,
    /// A rollout began, and its verdict could not be learnt.
    #[error("rollout {rollout} began, but its verdict could not be learnt within {}: {why}; see `rollproxy status`", seconds(*after))]
    VerdictUnknown {
        /// The rollout's number.
        rollout: u64,
        /// How long it was waited for.
        after: Duration,
        /// What stood in the way last.
        why: String,
    },
}

impl Report for ControlError {
    fn code(&self) -> &'static str {
        match self {
            Self::NotRunning { .. } => "NOT_RUNNING",
            Self::Connect { .. } => "CONTROL_UNREACHABLE",
            Self::Exchange { .. } => "CONTROL_FAILED",
            Self::Silent { .. } => "CONTROL_SILENT",
            Self::Protocol { .. } => "CONTROL_PROTOCOL",
            Self::Refused { .. } => "CONTROL_REFUSED",
            Self::CutStream | Self::VerdictUnknown { .. } => "VERDICT_UNKNOWN",
        }
    }

    fn exit(&self) -> Exit {
        match self {
            Self::Refused { failure } => failure.exit,
            // Something may have changed: "nothing changed" would be a guess.
            Self::CutStream | Self::VerdictUnknown { .. } => Exit::Unverified,
            _ => Exit::Failed,
        }
    }

    fn retry(&self) -> bool {
        match self {
            Self::Refused { failure } => failure.retry,
            Self::Protocol { .. } | Self::Connect { .. } => false,
            _ => true,
        }
    }
}

impl ControlError {
    /// As the last line of a command; a refusal keeps the code that the supervisor gave it.
    pub fn into_failure(self) -> Failure {
        match self {
            Self::Refused { failure } => failure,
            other => Failure::from(&other as &dyn Report),
        }
    }
}

/// How long the client waits, and for what.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// For a connection, and for each read and write of a short request.
    pub answer: Duration,
    /// For the next line of a rollout; then the rollout is asked for by its number.
    pub silence: Duration,
    /// For the verdict of a rollout, from the request on.
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
    deadlines: Deadlines,
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

    /// `GET` of a path whose answer is JSON.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ControlError> {
        let request = format!("GET {path}");
        let answer = self.exchange("GET", path, b"", self.deadlines.answer)?;
        let body = self.body(&request, answer)?;
        serde_json::from_slice(&body).map_err(|source| ControlError::Protocol {
            request,
            what: format!("the answer cannot be read: {source}"),
        })
    }

    /// `POST /rollouts`: asks for a rollout, reports its steps, and waits for its verdict.
    /// If the stream is cut or falls silent, the rollout is asked for again by its number.
    ///
    /// # Errors
    /// [`ControlError`]: `Refused` when it was not begun, `VerdictUnknown` or `CutStream` when
    /// nobody can say how it ended.
    pub fn roll(
        &self,
        request: &RolloutRequest,
        on_step: &mut dyn FnMut(&Step),
    ) -> Result<Verdict, ControlError> {
        let begun = Instant::now();
        let name = "POST /rollouts";
        let body = serde_json::to_vec(request).map_err(|source| ControlError::Protocol {
            request: name.to_owned(),
            what: format!("the request cannot be written: {source}"),
        })?;
        let silence = self.deadlines.silence.min(self.deadlines.verdict);
        let answer = match self.exchange("POST", "/rollouts", &body, silence) {
            Ok(answer) => answer,
            // The request was sent: whether it was heard is unknown.
            Err(ControlError::Silent { .. } | ControlError::Exchange { .. }) => {
                return Err(ControlError::CutStream);
            }
            Err(other) => return Err(other),
        };
        let answer = self.success(name, answer)?;
        let mut follow = Follow::default();
        match follow.stream(answer, begun + self.deadlines.verdict, on_step) {
            Ended::Verdict(verdict) => Ok(verdict),
            Ended::Refused(failure) => Err(ControlError::Refused { failure }),
            Ended::Cut => self.await_verdict(follow, begun, on_step),
        }
    }

    /// Asks for a rollout by its number until it has a verdict.
    fn await_verdict(
        &self,
        mut follow: Follow,
        begun: Instant,
        on_step: &mut dyn FnMut(&Step),
    ) -> Result<Verdict, ControlError> {
        let id = follow.rollout.ok_or(ControlError::CutStream)?;
        let mut heard = Instant::now();
        loop {
            let why = match self.rollout(id) {
                Ok(record) => {
                    heard = Instant::now();
                    follow.catch_up(&record, on_step);
                    if let Some(verdict) = record.verdict {
                        return Ok(verdict);
                    }
                    "it is still under way".to_owned()
                }
                Err(error @ (ControlError::Refused { .. } | ControlError::Protocol { .. })) => {
                    // Another supervisor, that knows nothing of it.
                    return Err(self.unknown(id, begun, &error.to_string()));
                }
                Err(error) => error.to_string(),
            };
            if heard.elapsed() >= self.deadlines.away || begun.elapsed() >= self.deadlines.verdict {
                return Err(self.unknown(id, begun, &why));
            }
            std::thread::sleep(self.deadlines.poll);
        }
    }

    fn unknown(&self, rollout: u64, begun: Instant, why: &str) -> ControlError {
        ControlError::VerdictUnknown {
            rollout,
            after: begun.elapsed(),
            why: why.to_owned(),
        }
    }

    /// Sends one request and reads the head of its answer.
    fn exchange(
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
    fn success<R: BufRead>(
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

    fn body<R: BufRead>(&self, request: &str, answer: Answer<R>) -> Result<Vec<u8>, ControlError> {
        let answer = self.success(request, answer)?;
        self.limited(request, answer)
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
            if gone || !socket.exists() {
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

/// What was already told of a rollout.
#[derive(Debug, Default)]
struct Follow {
    rollout: Option<u64>,
    told: usize,
}

/// How a stream of steps ended.
enum Ended {
    Verdict(Verdict),
    Refused(Failure),
    Cut,
}

impl Follow {
    fn stream(
        &mut self,
        answer: impl Read,
        deadline: Instant,
        on_step: &mut dyn FnMut(&Step),
    ) -> Ended {
        let mut lines = BufReader::new(answer);
        let mut line = Vec::new();
        while Instant::now() < deadline {
            line.clear();
            let got = (&mut lines).take(LINE_LIMIT).read_until(b'\n', &mut line);
            // Half a line says nothing.
            if got.is_err() || line.last() != Some(&b'\n') {
                return Ended::Cut;
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            match serde_json::from_slice(&line) {
                Ok(Line::Verdict(verdict)) => return Ended::Verdict(verdict),
                Ok(Line::Error(body)) => return Ended::Refused(body.error),
                Ok(Line::Step(step)) => {
                    self.rollout = Some(step.rollout);
                    self.told += 1;
                    on_step(&step);
                }
                // A newer supervisor may say things that we do not know.
                Err(_) => {}
            }
        }
        Ended::Cut
    }

    fn catch_up(&mut self, record: &RolloutRecord, on_step: &mut dyn FnMut(&Step)) {
        for step in record.steps.iter().skip(self.told) {
            on_step(step);
        }
        self.told = self.told.max(record.steps.len());
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

fn timed_out(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

fn seconds(duration: Duration) -> String {
    if duration < Duration::from_secs(10) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{} s", duration.as_secs())
    }
}
