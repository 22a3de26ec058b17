//! What a `check` with nothing to do costs, against a bare GET of the very same files, one after the other.
//!
//! `cargo bench -p rollproxy-tests --bench check [-- --rounds N]`. In each round: the files by bare sockets, the start of the
//! updater alone (`--version`), and the whole `check`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use harness::{FileServer, TestFeed, TestHome, binaries};

fn main() {
    let mut rounds = 101;
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        if argument == "--rounds" {
            rounds = given.next().unwrap().parse().unwrap();
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let home = TestHome::new();
    let feed = TestFeed::new();
    let server = runtime.block_on(FileServer::start(feed.path()));
    runtime.block_on(feed.pin(&home, &server.url()));
    feed.release("1.0.0");
    // The first installs, the second is the kind that is measured.
    assert!(timed(&home, &["check"]).1);
    let before = server.seen().len();
    assert!(timed(&home, &["check"]).1);
    let paths = server.seen().split_off(before);

    let (mut bare, mut start, mut check) = (Vec::new(), Vec::new(), Vec::new());
    let mut bytes = 0;
    for _ in 0..rounds {
        let begun = Instant::now();
        bytes = paths.iter().map(|path| get(&server, path)).sum();
        bare.push(begun.elapsed());
        start.push(timed(&home, &["--version"]).0);
        let (took, good) = timed(&home, &["check"]);
        assert!(good);
        check.push(took);
    }
    println!(
        "a check with nothing to do asks for {} files, {bytes} bytes with their heads:",
        paths.len()
    );
    for path in &paths {
        println!("  {path}");
    }
    let ratios = check.iter().zip(&bare);
    let ratio = median(
        ratios
            .map(|(a, b)| a.as_secs_f64() / b.as_secs_f64())
            .collect(),
    );
    println!("bare GETs: {}", ms(median(bare)));
    println!("updater, start alone (--version): {}", ms(median(start)));
    println!("check: {}, {ratio:.1} of the bare GETs", ms(median(check)));
}

/// One run of the updater, and whether it ended well.
fn timed(home: &TestHome, arguments: &[&str]) -> (Duration, bool) {
    let mut command = Command::new(binaries().path("rollproxy-updater"));
    command
        .args(arguments)
        .env("ROLLPROXY_HOME", home.home.root())
        .stdout(Stdio::null());
    let begun = Instant::now();
    let status = command.status().unwrap();
    (begun.elapsed(), status.success())
}

/// The bytes of one answer.
fn get(server: &FileServer, path: &str) -> usize {
    let url = server.url();
    let address = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap()
}

fn median<T: PartialOrd + Copy>(mut values: Vec<T>) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).unwrap());
    values[values.len() / 2]
}

fn ms(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1e3)
}
