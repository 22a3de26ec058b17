//! What lies between a host and its feed, as a process of its own meets it: names that do not resolve, and proxies from the
//! environment.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use common::{Ran, UPDATER, World};

/// A name that never resolves.
const FEED: &str = "http://feeds.invalid/rollproxy/";

/// A proxy for plain HTTP that has every feed itself. It runs until the tests end.
struct Proxy {
    address: String,
    /// The heads of all requests.
    heads: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// One that serves `folder`, or says 407 to everybody.
    fn start(folder: Option<PathBuf>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heads);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(&stream);
                let mut head = String::new();
                while reader.read_line(&mut head).is_ok_and(|count| count > 2) {}
                let path = head.split(' ').nth(1).unwrap_or_default();
                let file = path
                    .strip_prefix(FEED)
                    .and_then(|path| Some(folder.as_ref()?.join(path)));
                let (status, body) = match file.map(fs::read) {
                    Some(Ok(body)) => (200, body),
                    Some(Err(_)) => (404, Vec::new()),
                    None => (407, Vec::new()),
                };
                log.lock().unwrap().push(head);
                let length = body.len();
                let mut stream = &stream;
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
                );
                let _ = stream.write_all(&body);
            }
        });
        Self { address, heads }
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

/// `check --dry-run` of a home whose feed is `feed`, in an environment of nothing but this.
fn check(world: &World, feed: &str, environment: &[(&str, &str)]) -> Ran {
    fs::write(
        world.home.config_file(),
        format!("[update]\nfeed = {feed:?}\n"),
    )
    .unwrap();
    let output = Command::new(UPDATER)
        .args(["check", "--dry-run", "--format", "json"])
        .env_clear()
        .env("ROLLPROXY_HOME", world.home.root())
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    Ran::from(output)
}

fn code(ran: &Ran) -> String {
    ran.json()["error"]["code"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn a_name_that_does_not_resolve_is_a_feed_out_of_reach() {
    let world = World::new("1.0.0");
    let ran = check(&world, "http://ann:s3cret@feeds.invalid/", &[]);
    assert_eq!(
        (ran.code, code(&ran).as_str()),
        (Some(1), "FEED_UNREACHABLE"),
        "{ran:?}"
    );
    assert_eq!(ran.json()["error"]["retry"], true, "{ran:?}");
    assert!(
        ran.out.contains("feeds.invalid") && !ran.out.contains("s3cret"),
        "{ran:?}"
    );
    assert!(!ran.err.contains("s3cret"), "{ran:?}");
}

#[test]
fn a_proxy_is_taken_from_the_environment_in_either_case() {
    let world = World::new("1.0.0");
    let proxy = Proxy::start(Some(world.place.feed.clone()));
    let address = format!("http://ann:s3cret@{}", proxy.address);
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy"] {
        let before = proxy.heads().len();
        let ran = check(&world, FEED, &[(name, &address)]);
        ran.expect(100, "available");
        let heads = proxy.heads().split_off(before);
        assert!(!heads.is_empty(), "{name}");
        for head in heads {
            // Asked by the whole URL, with the proxy's own credentials.
            assert!(head.starts_with(&format!("GET {FEED}")), "{name}: {head}");
            assert!(
                head.to_ascii_lowercase()
                    .contains("proxy-authorization: basic "),
                "{name}: {head}"
            );
        }
        assert!(!format!("{ran:?}").contains("s3cret"), "{ran:?}");
    }
}

#[test]
fn no_proxy_is_asked_for_names_that_are_excepted_nor_for_this_machine() {
    let world = World::new("1.0.0");
    let proxy = Proxy::start(Some(world.place.feed.clone()));
    let address = format!("http://{}", proxy.address);
    for name in ["no_proxy", "NO_PROXY"] {
        let ran = check(
            &world,
            FEED,
            &[
                ("http_proxy", &address),
                (name, "example.net,feeds.invalid"),
            ],
        );
        assert_eq!(code(&ran), "FEED_UNREACHABLE", "{name}: {ran:?}");
    }
    // The server that answers the first time is asked itself: by the path, not by the whole URL.
    let direct = Proxy::start(None);
    let feed = format!("http://{}/", direct.address);
    check(&world, &feed, &[("http_proxy", &address)]);
    assert!(
        direct
            .heads()
            .iter()
            .all(|head| head.starts_with("GET /metadata/"))
    );
    assert!(!direct.heads().is_empty());
    assert_eq!(proxy.heads(), Vec::<String>::new());
}

#[test]
fn a_proxy_that_refuses_or_is_not_there_is_said_without_its_password() {
    let world = World::new("1.0.0");
    let refusing = Proxy::start(None);
    let address = format!("http://ann:s3cret@{}", refusing.address);
    let ran = check(&world, FEED, &[("http_proxy", &address)]);
    assert_eq!(code(&ran), "FEED_REFUSED", "{ran:?}");
    assert!(
        ran.out.contains("407") && !format!("{ran:?}").contains("s3cret"),
        "{ran:?}"
    );

    // Bound, so that nobody else gets the port, but not listening.
    let silent = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    rustix::net::bind(&silent, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let bound = rustix::net::getsockname(&silent).unwrap();
    let bound = std::net::SocketAddr::try_from(bound).unwrap();
    let ran = check(
        &world,
        FEED,
        &[("http_proxy", &format!("http://ann:s3cret@{bound}"))],
    );
    assert_eq!(code(&ran), "FEED_UNREACHABLE", "{ran:?}");
    assert!(!format!("{ran:?}").contains("s3cret"), "{ran:?}");
    for path in [world.home.state(), world.home.feed()] {
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
                assert!(!text.contains("s3cret"), "{path:?}");
            }
        }
    }
}
