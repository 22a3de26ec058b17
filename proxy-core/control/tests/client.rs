//! The client against a peer that answers well, badly, late, or not at all.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests are tests

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use control::{By, Client, ControlError, Deadlines, News, Outcome, RolloutRequest};
use staging::home::Home;
use staging::report::{Exit, Report};

const STEP_1: &str = r#"{"rollout":7,"step":"candidate","generation":2,"version":"1.0.1","at":"2026-01-02T03:04:05Z","detail":null}"#;
const STEP_2: &str = r#"{"rollout":7,"step":"ready","generation":2,"version":"1.0.1","at":"2026-01-02T03:04:05Z","detail":null}"#;
const VERDICT: &str = r#"{"rollout":7,"verdict":"kept","version":"1.0.1","generation":2,"code":null,"reason":null,"serial":4}"#;
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

/// What the peer does with one connection.
enum Act {
    /// Answers with these bytes and closes.
    Say(String),
    /// Answers with these bytes and then holds the connection open, silent, until the test ends.
    SayAndHold(String),
}

/// A peer on the control socket of a home in a temporary folder.
struct Peer {
    _folder: tempfile::TempDir,
    home: Home,
    server: JoinHandle<Vec<String>>,
    _end: mpsc::Sender<()>,
}

impl Peer {
    fn start(acts: Vec<Act>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::at(folder.path().join("home"));
        home.create().unwrap();
        let listener = UnixListener::bind(home.control_socket()).unwrap();
        let (end, ended) = mpsc::channel();
        let server = std::thread::spawn(move || {
            let mut heads = Vec::new();
            let mut held = Vec::new();
            for act in acts {
                let (mut stream, _) = listener.accept().unwrap();
                heads.push(request(&mut stream));
                match act {
                    Act::Say(text) => stream.write_all(text.as_bytes()).unwrap(),
                    Act::SayAndHold(text) => {
                        stream.write_all(text.as_bytes()).unwrap();
                        held.push(stream);
                    }
                }
            }
            if !held.is_empty() {
                let _ = ended.recv();
            }
            heads
        });
        Self {
            _folder: folder,
            home,
            server,
            _end: end,
        }
    }

    fn client(&self) -> Client {
        Client::new(&self.home).with_deadlines(quick())
    }

    /// The requests that the peer saw.
    fn requests(self) -> Vec<String> {
        drop(self._end);
        self.server.join().unwrap()
    }
}

fn quick() -> Deadlines {
    Deadlines {
        answer: Duration::from_millis(300),
        silence: Duration::from_millis(300),
        verdict: Duration::from_secs(5),
        poll: Duration::from_millis(5),
        away: Duration::from_millis(100),
    }
}

/// Reads a whole request: the head and as much body as it promises.
fn request(stream: &mut UnixStream) -> String {
    let mut seen = Vec::new();
    let mut buffer = [0; 512];
    loop {
        let text = String::from_utf8_lossy(&seen);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length: usize = head
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: "))
                .map_or(0, |value| value.parse().unwrap());
            if body.len() >= length {
                return text.into_owned();
            }
        }
        match stream.read(&mut buffer).unwrap() {
            0 => return String::from_utf8_lossy(&seen).into_owned(),
            got => seen.extend_from_slice(&buffer[..got]),
        }
    }
}

fn chunks(lines: &[&str], ended: bool) -> String {
    let mut wire = CHUNKED.to_owned();
    for line in lines {
        wire.push_str(&format!("{:x}\r\n{line}\n\r\n", line.len() + 1));
    }
    if ended {
        wire.push_str("0\r\n\r\n");
    }
    wire
}

fn counted(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn record(verdict: &str) -> String {
    counted(
        "200 OK",
        &format!(
            r#"{{"id":7,"version":"1.0.1","by":"job","startedAt":"2026-01-02T03:04:05Z","endedAt":null,"verdict":{verdict},"steps":[{STEP_1},{STEP_2}],"reason":null}}"#
        ),
    )
}

/// A status whose rollout 7 is on probation for so long, seen from now.
fn status(left: Duration) -> String {
    let until = jiff::Timestamp::now() + jiff::SignedDuration::try_from(left).unwrap();
    counted(
        "200 OK",
        &format!(
            r#"{{"schema":1,"supervisorVersion":"1.0.0","supervisorPid":1,"nonce":"abc","since":"2026-01-02T03:04:05Z","rolling":{{"probation":{{"rollout":7,"until":"{until}"}}}}}}"#
        ),
    )
}

/// A rollout that the supervisor with this nonce is asked for.
fn roll_bound(client: &Client) -> Result<control::Verdict, ControlError> {
    let request = RolloutRequest {
        nonce: Some("abc".to_owned()),
        ..RolloutRequest::new(By::Person)
    };
    client.roll(&request, &mut |_| {})
}

/// The key in a request's body.
fn key(request: &str) -> String {
    let (_, body) = request.split_once("\r\n\r\n").unwrap();
    let body: RolloutRequest = serde_json::from_str(body).unwrap();
    body.key.unwrap()
}

fn roll(client: &Client) -> (Result<control::Verdict, ControlError>, Vec<String>) {
    let mut steps = Vec::new();
    let request = RolloutRequest {
        version: Some("1.0.1".to_owned()),
        ..RolloutRequest::new(By::Job)
    };
    let verdict = client.roll(&request, &mut |step| steps.push(step.step.clone()));
    (verdict, steps)
}

#[test]
fn a_rollout_is_followed_chunked_and_close_delimited() {
    let lines = [STEP_1, STEP_2, VERDICT];
    let closed = format!("HTTP/1.1 200 OK\r\n\r\n{}\n", lines.join("\n"));
    for wire in [chunks(&lines, true), closed] {
        let peer = Peer::start(vec![Act::Say(wire)]);
        let (verdict, steps) = roll(&peer.client());
        let verdict = verdict.unwrap();
        assert_eq!((verdict.verdict, verdict.serial), (Outcome::Kept, Some(4)));
        assert_eq!(steps, ["candidate", "ready"]);
        let requests = peer.requests();
        assert!(
            requests[0].starts_with("POST /rollouts HTTP/1.1\r\n"),
            "{}",
            requests[0]
        );
        assert!(requests[0].contains(r#""version":"1.0.1","by":"job""#));
    }
}

#[test]
fn a_cut_stream_is_not_a_verdict_the_rollout_is_asked_for_by_its_number() {
    // Cut between two lines, and in the middle of the verdict.
    let half = chunks(&[STEP_1], false) + "40\r\n" + &VERDICT[..20];
    for wire in [chunks(&[STEP_1], false), half] {
        let peer = Peer::start(vec![
            Act::Say(wire),
            Act::Say(record("null")),
            Act::Say(record(VERDICT)),
        ]);
        let (verdict, steps) = roll(&peer.client());
        assert_eq!(verdict.unwrap().verdict, Outcome::Kept);
        assert_eq!(steps, ["candidate", "ready"], "each step told once");
        let requests = peer.requests();
        assert!(requests[1].starts_with("GET /rollouts/7 HTTP/1.1\r\n"));
        assert_eq!(requests.len(), 3);
    }
}

#[test]
fn a_stream_that_falls_silent_is_asked_for_by_its_number() {
    let peer = Peer::start(vec![
        Act::SayAndHold(chunks(&[STEP_1], false)),
        Act::Say(record(VERDICT)),
    ]);
    let (verdict, _) = roll(&peer.client());
    assert_eq!(verdict.unwrap().verdict, Outcome::Kept);
    assert_eq!(peer.requests().len(), 2);
}

#[test]
fn a_cut_before_the_rollout_is_named_is_said_to_be_unknown() {
    let peer = Peer::start(vec![Act::Say(chunks(&[], false))]);
    let (verdict, _) = roll(&peer.client());
    let error = verdict.unwrap_err();
    assert!(matches!(error, ControlError::CutStream), "{error}");
    assert_eq!(
        (error.exit(), error.code()),
        (Exit::Unverified, "VERDICT_UNKNOWN")
    );
}

#[test]
fn a_supervisor_that_goes_away_for_good_ends_the_waiting() {
    let peer = Peer::start(vec![Act::Say(chunks(&[STEP_1], false))]);
    let (verdict, _) = roll(&peer.client());
    let error = verdict.unwrap_err();
    assert!(
        matches!(error, ControlError::VerdictUnknown { rollout: 7, .. }),
        "{error}"
    );
    assert_eq!(error.exit(), Exit::Unverified);
}

#[test]
fn a_new_supervisor_that_does_not_know_the_rollout_ends_the_waiting() {
    let refusal =
        r#"{"error":{"code":"NO_ROLLOUT","message":"rollout 7 is unknown","retry":false}}"#;
    let peer = Peer::start(vec![
        Act::Say(chunks(&[STEP_1], false)),
        Act::Say(counted("404 Not Found", refusal)),
    ]);
    let (verdict, _) = roll(&peer.client());
    let error = verdict.unwrap_err().to_string();
    assert!(error.contains("rollout 7 is unknown"), "{error}");
}

#[test]
fn a_refusal_keeps_its_code_and_its_exit() {
    let refusal =
        r#"{"error":{"code":"SERIAL_CHANGED","message":"the selection changed","retry":true}}"#;
    let peer = Peer::start(vec![
        Act::Say(counted("409 Conflict", refusal)),
        Act::Say(chunks(&[STEP_1, refusal], true)),
    ]);
    let (verdict, _) = roll(&peer.client());
    let error = verdict.unwrap_err();
    assert_eq!((error.exit(), error.retry()), (Exit::Deferred, true));
    let failure = error.into_failure();
    assert_eq!(failure.code, "SERIAL_CHANGED");
    // The same as the last line of a stream.
    let (verdict, steps) = roll(&peer.client());
    assert!(matches!(verdict, Err(ControlError::Refused { .. })));
    assert_eq!(steps, ["candidate"]);
}

#[test]
fn a_silent_peer_meets_the_deadline() {
    let peer = Peer::start(vec![
        Act::SayAndHold(String::new()),
        Act::SayAndHold("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc".to_owned()),
    ]);
    let client = peer.client();
    for _ in 0..2 {
        let begun = Instant::now();
        let error = client.status().unwrap_err();
        assert!(matches!(error, ControlError::Silent { .. }), "{error}");
        assert!(begun.elapsed() >= Duration::from_millis(290));
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn nobody_there_is_said_so() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::at(folder.path().join("home"));
    // No home, a home without a socket, and a socket that a dead supervisor left.
    assert!(matches!(
        Client::new(&home).status(),
        Err(ControlError::NotRunning { .. })
    ));
    home.create().unwrap();
    assert!(matches!(
        Client::connect(&home),
        Err(ControlError::NotRunning { .. })
    ));
    drop(UnixListener::bind(home.control_socket()).unwrap());
    assert!(home.control_socket().exists());
    let error = Client::connect(&home).unwrap_err();
    assert!(matches!(error, ControlError::NotRunning { .. }), "{error}");
}

#[test]
fn nonsense_is_named() {
    for wire in [
        "SSH-2.0-x\r\n\r\n".to_owned(),
        counted("200 OK", "<html>"),
        counted("500 Oops", "<html>"),
    ] {
        let peer = Peer::start(vec![Act::Say(wire)]);
        let error = peer.client().status().unwrap_err();
        assert!(matches!(error, ControlError::Protocol { .. }), "{error}");
    }
}

#[test]
fn a_home_with_a_long_path_works() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::at(folder.path().join("x".repeat(120)).join("home"));
    std::fs::create_dir_all(home.root().parent().unwrap()).unwrap();
    home.create().unwrap();
    let listener = {
        let address = home.socket_address().unwrap();
        UnixListener::bind(address.path()).unwrap()
    };
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        request(&mut stream);
        stream
            .write_all(counted("200 OK", r#"{"a":1}"#).as_bytes())
            .unwrap();
    });
    let answer: serde_json::Value = Client::new(&home).get("/anything").unwrap();
    assert_eq!(answer["a"], 1);
    server.join().unwrap();
}

#[test]
fn a_cut_before_the_rollout_is_named_is_asked_again_as_the_same_request() {
    let peer = Peer::start(vec![
        Act::Say(String::new()),
        Act::Say(chunks(&[], false)),
        Act::Say(chunks(&[STEP_1, VERDICT], true)),
    ]);
    let verdict = roll_bound(&peer.client()).unwrap();
    assert_eq!(verdict.verdict, Outcome::Kept);
    let requests = peer.requests();
    let keys: Vec<String> = requests.iter().map(|request| key(request)).collect();
    assert_eq!(keys, vec![keys[0].clone(); 3]);
    // Another request has another.
    let peer = Peer::start(vec![Act::Say(chunks(&[VERDICT], true))]);
    roll_bound(&peer.client()).unwrap();
    assert_ne!(key(&peer.requests()[0]), keys[0]);
}

#[test]
fn another_supervisor_is_not_asked_for_what_the_former_one_may_have_heard() {
    let refusal = r#"{"error":{"code":"OWNERSHIP_CHANGED","message":"another one","retry":true}}"#;
    let peer = Peer::start(vec![
        Act::Say(String::new()),
        Act::Say(counted("409 Conflict", refusal)),
    ]);
    let error = roll_bound(&peer.client()).unwrap_err();
    assert!(matches!(error, ControlError::CutStream), "{error}");
    // Asked at first, it is a refusal like any other.
    let peer = Peer::start(vec![Act::Say(counted("409 Conflict", refusal))]);
    let error = roll_bound(&peer.client()).unwrap_err();
    assert_eq!(error.into_failure().code, "OWNERSHIP_CHANGED");
}

#[test]
fn a_rollout_is_asked_for_of_the_supervisor_that_began_it() {
    let peer = Peer::start(vec![
        Act::Say(chunks(&[STEP_1], false)),
        Act::Say(record(VERDICT)),
    ]);
    roll_bound(&peer.client()).unwrap();
    let requests = peer.requests();
    let asked = "GET /rollouts/7?nonce=abc HTTP/1.1\r\n";
    assert!(requests[1].starts_with(asked), "{}", requests[1]);
}

#[test]
fn a_verdict_that_waits_for_the_end_of_a_probation_is_waited_for() {
    let mut acts = vec![Act::SayAndHold(chunks(&[STEP_1], false))];
    // The first look is after the time-out: it asks how long the probation takes, and goes on.
    acts.extend([
        Act::Say(record("null")),
        Act::Say(status(Duration::from_secs(3_600))),
        Act::Say(record("null")),
        Act::Say(record(VERDICT)),
    ]);
    let peer = Peer::start(acts);
    let client = peer.client().with_deadlines(Deadlines {
        verdict: Duration::from_millis(300),
        ..quick()
    });
    let (verdict, _) = roll(&client);
    assert_eq!(verdict.unwrap().verdict, Outcome::Kept);

    // One that is over is not waited for: the time-out holds.
    let peer = Peer::start(vec![
        Act::SayAndHold(chunks(&[STEP_1], false)),
        Act::Say(record("null")),
        Act::Say(status(Duration::ZERO)),
    ]);
    let client = peer.client().with_deadlines(Deadlines {
        verdict: Duration::from_millis(300),
        ..quick()
    });
    let (verdict, _) = roll(&client);
    let error = verdict.unwrap_err();
    assert!(
        matches!(error, ControlError::VerdictUnknown { rollout: 7, .. }),
        "{error}"
    );
}

#[test]
fn signs_of_life_say_nothing_and_keep_the_stream() {
    let peer = Peer::start(vec![Act::Say(chunks(&["", STEP_1, "", "", VERDICT], true))]);
    let (verdict, steps) = roll(&peer.client());
    assert_eq!(verdict.unwrap().verdict, Outcome::Kept);
    assert_eq!(steps, ["candidate"]);
    assert_eq!(peer.requests().len(), 1);
}

#[test]
fn a_question_whose_answer_was_cut_is_asked_anew() {
    let answer = counted("200 OK", r#"{"a":1}"#);
    let half = answer[..answer.len() - 3].to_owned();
    let peer = Peer::start(vec![
        Act::Say(String::new()),
        Act::Say(half),
        Act::Say(answer),
    ]);
    let answer: serde_json::Value = peer.client().get("/anything").unwrap();
    assert_eq!(answer["a"], 1);
    let peer = Peer::start(vec![
        Act::Say(String::new()),
        Act::Say(String::new()),
        Act::Say(String::new()),
        Act::Say(String::new()),
    ]);
    let error = peer.client().status().unwrap_err();
    assert!(matches!(error, ControlError::Exchange { .. }), "{error}");
    assert_eq!(peer.requests().len(), 4);
}

#[test]
fn a_watcher_is_told_of_each_status_and_of_each_absence_and_connects_anew() {
    let event = |pid: u32| {
        let line = format!(
            r#"data: {{"schema":1,"supervisorVersion":"1.0.0","supervisorPid":{pid},"nonce":"n","since":"2026-01-02T03:04:05Z"}}"#
        );
        chunks(
            &[
                "event: status",
                &line,
                "",
                ": alive",
                "",
                "data: of another kind",
                "",
            ],
            false,
        )
    };
    let peer = Peer::start(vec![
        Act::Say(event(1)),
        Act::SayAndHold(event(2)),
        Act::Say(event(3)),
    ]);
    let mut seen = Vec::new();
    peer.client()
        .watch(None, &mut |news| {
            seen.push(match news {
                News::Status(status) => status.supervisor_pid,
                News::Away(_) => 0,
            });
            match seen.last() {
                Some(3) => std::ops::ControlFlow::Break(()),
                _ => std::ops::ControlFlow::Continue(()),
            }
        })
        .unwrap();
    // The second fell silent.
    assert_eq!(seen, [1, 0, 2, 0, 3]);
    let requests = peer.requests();
    assert!(requests[0].starts_with("GET /status/events HTTP/1.1\r\n"));

    let peer = Peer::start(vec![Act::Say(counted("404 Not Found", "{}"))]);
    let every = Some(Duration::from_secs(1));
    let refused = peer
        .client()
        .watch(every, &mut |_| std::ops::ControlFlow::Continue(()));
    assert!(matches!(refused, Err(ControlError::Protocol { .. })));
    assert!(peer.requests()[0].starts_with("GET /status/events?everyMs=1000 "));
}
