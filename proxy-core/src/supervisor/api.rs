//! The control socket: HTTP/1.1 and JSON for our own user and root. It asks the main loop, it decides nothing.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use control::supervisor::{Admission, AdmissionRequest, Handover, HandoverRequest, Preflight};
use control::types::{DrainRequest, ErrorBody, RolloutRecord, RolloutRequest, Status, Streams};
use futures_util::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use staging::home::{Home, HomeError};
use staging::report::{Exit, Failure};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};

use super::held::{DrainReply, Question};
use super::rollouts::Lines;

/// The longest request body, in bytes.
const MAX_BODY: usize = 64 * 1024;

/// How long a client may take to send its request's head, and again for its body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a stream on which nothing happens shows that somebody is there.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

/// Events that are asked for at intervals come no more often than this; changes neither.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// What the socket asks of the main loop.
pub enum Command {
    /// `POST /supervisor`.
    Handover(HandoverRequest, oneshot::Sender<Result<Handover, Failure>>),
    /// `GET /preflight`, perhaps of another version than the selected one.
    Preflight(
        Option<String>,
        oneshot::Sender<Result<oneshot::Receiver<Preflight>, Failure>>,
    ),
    /// `POST /admission`.
    Admission(
        AdmissionRequest,
        oneshot::Sender<Result<Admission, Failure>>,
    ),
    /// `GET /status`.
    Status(oneshot::Sender<Status>),
    /// `POST /rollouts`.
    Roll(RolloutRequest, oneshot::Sender<Result<Lines, Failure>>),
    /// `GET /rollouts/<id>`, perhaps only if the supervisor has this nonce.
    Rollout(
        u64,
        Option<String>,
        oneshot::Sender<Result<RolloutRecord, Failure>>,
    ),
    /// `GET /streams`, of one generation or all.
    Streams(Option<u64>, oneshot::Sender<Result<Vec<Question>, Failure>>),
    /// `POST /drains`.
    Drain(DrainRequest, oneshot::Sender<Result<DrainReply, Failure>>),
}

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The home's path cannot be used.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The system refused.
    #[error("cannot make the control socket {path}: {source}")]
    Bind {
        /// The socket.
        path: std::path::PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// The ways from a connection to the main loop.
#[derive(Clone)]
pub struct Door {
    /// Where commands go.
    pub commands: mpsc::UnboundedSender<Command>,
    /// Changes whenever the status did.
    pub changes: watch::Receiver<u64>,
    /// Counts the requests that are being answered.
    pub _answering: Answering,
}

/// How many connections of the control socket are open.
#[derive(Debug, Clone, Default)]
pub struct Answering(Arc<()>);

impl Answering {
    /// Besides the supervisor's own, the door's and its listener's, each connection holds one.
    pub fn count(&self) -> usize {
        Arc::strong_count(&self.0).saturating_sub(2)
    }
}

/// Binds the socket, 0600. The caller holds the supervisor lock, so a socket file that is
/// already there belongs to nobody.
///
/// # Errors
/// When the system refuses.
pub fn bind(home: &Home) -> Result<OwnedFd, ApiError> {
    let path = home.control_socket();
    let failed = |source| ApiError::Bind {
        path: path.clone(),
        source,
    };
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let address = home.socket_address()?;
    let listener = std::os::unix::net::UnixListener::bind(address.path()).map_err(failed)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener.into())
}

/// Serves until the runtime ends.
pub async fn serve(listener: UnixListener, door: Door) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if is_ours(&stream) {
                    tokio::task::spawn_local(serve_connection(stream, door.clone()));
                } else {
                    tracing::warn!("refused a control connection of another user");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept on the control socket");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// The peer is our own user or root.
fn is_ours(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    stream
        .peer_cred()
        .is_ok_and(|peer| peer.uid() == own || peer.uid() == 0)
}

async fn serve_connection(stream: UnixStream, door: Door) {
    let service = service_fn(move |request| {
        let door = door.clone();
        async move { Ok::<_, Infallible>(answer(request, &door).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a control connection broke");
    }
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

async fn answer(request: Request<Incoming>, door: &Door) -> Answer {
    let path = request.uri().path().to_owned();
    let outcome = match (request.method(), path.as_str()) {
        (&Method::GET, "/status") => status(door)
            .await
            .map(|status| json(StatusCode::OK, &status)),
        (&Method::GET, "/status/events") => events(&request, door.clone()),
        (&Method::GET, "/streams") => streams(&request, door).await,
        (&Method::POST, "/drains") => drain(request, door).await,
        (&Method::POST, "/supervisor") => handover(request, door).await,
        (&Method::GET, "/preflight") => preflight(query(&request, "version"), door).await,
        (&Method::POST, "/admission") => admission(request, door).await,
        (&Method::POST, "/rollouts") => roll(request, door).await,
        (&Method::GET, path) if path.starts_with("/rollouts/") => {
            rollout(path, query(&request, "nonce"), door).await
        }
        (method, path) => Err(not_found(method, path)),
    };
    outcome.unwrap_or_else(|failure| {
        let status = match failure.code.as_str() {
            "NOT_FOUND" => StatusCode::NOT_FOUND,
            _ => StatusCode::from_u16(ErrorBody::http_status(failure.exit))
                .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        };
        json(status, &ErrorBody { error: failure })
    })
}

async fn status(door: &Door) -> Result<Status, Failure> {
    ask(door, Command::Status).await
}

async fn roll(request: Request<Incoming>, door: &Door) -> Result<Answer, Failure> {
    let wanted: RolloutRequest = body(request, "rollout request").await?;
    let lines = ask(door, |reply| Command::Roll(wanted, reply)).await??;
    let stream = futures_util::stream::unfold(lines, |mut lines| async move {
        let line = match tokio::time::timeout(SIGN_OF_LIFE, lines.recv()).await {
            Ok(line) => json_line(&line?),
            // An empty line says nothing: a probation may last an hour.
            Err(_) => Bytes::from_static(b"\n"),
        };
        Some((Ok::<_, Infallible>(Frame::data(line)), lines))
    });
    Ok(streamed(
        "application/x-ndjson",
        BodyExt::boxed(StreamBody::new(stream)),
    ))
}

async fn streams(request: &Request<Incoming>, door: &Door) -> Result<Answer, Failure> {
    let generation = number(request, "generation")?;
    let questions = ask(door, |reply| Command::Streams(generation, reply)).await??;
    // All at once: each was asked already, and has its time from now.
    let generations =
        futures_util::future::join_all(questions.into_iter().map(Question::answered)).await;
    Ok(json(StatusCode::OK, &Streams { generations }))
}

async fn drain(request: Request<Incoming>, door: &Door) -> Result<Answer, Failure> {
    let wanted: DrainRequest = body(request, "drain request").await?;
    let reply = ask(door, |reply| Command::Drain(wanted, reply)).await??;
    Ok(json(StatusCode::OK, &reply.answered().await))
}

/// A request's body, whole and in time.
async fn body<T: DeserializeOwned>(request: Request<Incoming>, what: &str) -> Result<T, Failure> {
    let body = Limited::new(request.into_body(), MAX_BODY).collect();
    let body = tokio::time::timeout(REQUEST_TIMEOUT, body)
        .await
        .map_err(|_| {
            bad_request(format!(
                "the request's body did not come within {REQUEST_TIMEOUT:?}"
            ))
        })?
        .map_err(|error| bad_request(format!("the request's body cannot be read: {error}")))?;
    serde_json::from_slice(&body.to_bytes())
        .map_err(|error| bad_request(format!("the request is no {what}: {error}")))
}

/// One value of the query; nothing in it is escaped.
fn query(request: &Request<Incoming>, name: &str) -> Option<String> {
    let query = request.uri().query()?;
    query.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        (key == name).then(|| value.to_owned())
    })
}

/// One value of the query that is a number.
fn number(request: &Request<Incoming>, name: &str) -> Result<Option<u64>, Failure> {
    let Some(text) = query(request, name) else {
        return Ok(None);
    };
    let number = text.parse();
    number
        .map(Some)
        .map_err(|_| bad_request(format!("{name} is {text:?}, which is no number")))
}

async fn handover(request: Request<Incoming>, door: &Door) -> Result<Answer, Failure> {
    let wanted: HandoverRequest = body(request, "request for a handover").await?;
    let begun = ask(door, |reply| Command::Handover(wanted, reply)).await??;
    Ok(json(StatusCode::OK, &begun))
}

async fn preflight(version: Option<String>, door: &Door) -> Result<Answer, Failure> {
    let asked = ask(door, |reply| Command::Preflight(version, reply)).await??;
    let preflight = asked.await.map_err(|_| stopping())?;
    Ok(json(StatusCode::OK, &preflight))
}

async fn admission(request: Request<Incoming>, door: &Door) -> Result<Answer, Failure> {
    let wanted: AdmissionRequest = body(request, "admission request").await?;
    let now = ask(door, |reply| Command::Admission(wanted, reply)).await??;
    Ok(json(StatusCode::OK, &now))
}

async fn rollout(path: &str, nonce: Option<String>, door: &Door) -> Result<Answer, Failure> {
    let number = path.trim_start_matches("/rollouts/");
    let id: u64 = number
        .parse()
        .map_err(|_| bad_request(format!("{number:?} is no rollout's number")))?;
    let record = ask(door, |reply| Command::Rollout(id, nonce, reply)).await??;
    Ok(json(StatusCode::OK, &record))
}

/// The status now, and again whenever it changes (at most every 100 ms), as server-sent events; with
/// `everyMs` also that often. A comment shows that somebody is there when nothing happens.
fn events(request: &Request<Incoming>, door: Door) -> Result<Answer, Failure> {
    let every = number(request, "everyMs")?.map(Duration::from_millis);
    let pause = every.map_or(SIGN_OF_LIFE, |every| every.max(SHORTEST_INTERVAL));
    let first = true;
    let stream = futures_util::stream::unfold((door, first), move |(mut door, first)| async move {
        if !first {
            match tokio::time::timeout(pause, door.changes.changed()).await {
                Ok(changed) => {
                    changed.ok()?;
                    tokio::time::sleep(SHORTEST_INTERVAL).await;
                }
                Err(_) if every.is_some() => {}
                Err(_) => return Some((Bytes::from_static(b":\n\n"), (door, false))),
            }
        }
        door.changes.borrow_and_update();
        let status = status(&door).await.ok()?;
        let mut event = b"event: status\ndata: ".to_vec();
        event.extend_from_slice(&json_line(&status));
        event.push(b'\n');
        Some((Bytes::from(event), (door, false)))
    })
    .map(|event| Ok::<_, Infallible>(Frame::data(event)));
    Ok(streamed(
        "text/event-stream",
        BodyExt::boxed(StreamBody::new(stream)),
    ))
}

/// Asks the main loop; its end is the end of the supervisor.
async fn ask<T>(
    door: &Door,
    command: impl FnOnce(oneshot::Sender<T>) -> Command,
) -> Result<T, Failure> {
    let (reply, answer) = oneshot::channel();
    door.commands.send(command(reply)).map_err(|_| stopping())?;
    answer.await.map_err(|_| stopping())
}

fn stopping() -> Failure {
    Failure::new(
        "SUPERVISOR_STOPPING",
        "the supervisor is stopping; ask again when it runs",
        Exit::Deferred,
        true,
    )
}

fn bad_request(message: String) -> Failure {
    Failure::new("BAD_REQUEST", message, Exit::Usage, false)
}

fn not_found(method: &Method, path: &str) -> Failure {
    Failure::new(
        "NOT_FOUND",
        format!(
            "{method} {path} is not part of the control API; there are GET /status, GET /status/events, GET /streams, POST /rollouts, GET /rollouts/<id>, POST /drains, GET /preflight, POST /supervisor and POST /admission"
        ),
        Exit::Usage,
        false,
    )
}

fn json_line<T: Serialize>(value: &T) -> Bytes {
    // Our own types: strings, numbers, lists. Serialising them has no way to fail.
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    Bytes::from(line)
}

fn json<T: Serialize>(status: StatusCode, value: &T) -> Answer {
    let mut answer = streamed(
        "application/json",
        BodyExt::boxed(Full::new(json_line(value))),
    );
    *answer.status_mut() = status;
    answer
}

fn streamed(content_type: &'static str, body: BoxBody<Bytes, Infallible>) -> Answer {
    let mut answer = Response::new(body);
    answer.headers_mut().insert(
        http::header::CONTENT_TYPE,
        http::HeaderValue::from_static(content_type),
    );
    answer
}
