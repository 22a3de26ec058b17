//! Promise 3: a look is enough. What `rollproxy status` shows, once and live, in a pipe and at a terminal.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use fixtures::upstream::Upstream;
use harness::{
    HeldStream, Proxy, Starting, Terminal, TestHome, Tool, binaries, by_person, process,
    same_version, until, until_some,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

/// A home that serves 1.0.0 in front of `upstream`.
async fn serving(upstream: &Upstream, rollout: &str) -> (TestHome, Proxy) {
    let home = TestHome::new();
    home.configure_upstream(&upstream.url(), rollout);
    home.install_proxy("1.0.0");
    home.install_proxy("1.1.0");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    (home, proxy)
}

fn status(home: &TestHome, arguments: &[&str]) -> Tool {
    home.tool("rollproxy").arg("status").args(arguments)
}

/// A watch in a pipe.
struct Watch {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watch {
    fn start(home: &TestHome, arguments: &[&str]) -> Self {
        let tool = status(home, &["--watch"]).args(arguments.iter().copied());
        let mut child = tool.command().spawn().unwrap();
        let output = child.stdout.take().unwrap();
        let lines = BufReader::new(output).lines();
        Self { child, lines }
    }

    /// The next line.
    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(harness::PATIENCE, self.lines.next_line());
        line.await
            .expect("a line in time")
            .unwrap()
            .expect("the watch goes on")
    }

    /// The lines up to an empty one that ends a block.
    async fn until_line(&mut self, part: &str) -> String {
        loop {
            let line = self.line().await;
            if line.contains(part) {
                return line;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        process::send(i32::try_from(self.child.id().unwrap()).unwrap(), signal);
    }

    async fn ended(&mut self) -> Option<i32> {
        let status = until_some("the watch ends", || self.child.try_wait().unwrap()).await;
        status.code()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probation_is_shown_with_who_stands_by_and_a_drain_with_what_is_left_of_it() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "").await;
    let held = HeldStream::open(proxy.address, &upstream).await;
    // Kept at once, as it is still configured; the next one has a probation.
    home.configure_upstream(&upstream.url(), "[rollout]\nprobation = \"10m\"\n");
    proxy.roll(same_version()).await.unwrap();
    let verdict = proxy.roll_begun(by_person("1.1.0")).await;
    until(
        "it is on probation, and the one that drains has counted",
        || {
            let rolling = proxy.rolling();
            rolling.probation.is_some() && rolling.draining.iter().any(|place| place.streams == 1)
        },
    )
    .await;
    let shown = status(&home, &[]).run().await.expect(0).stdout;
    for part in [
        "rollproxy 1.1.0 serves on 127.0.0.1:",
        "supervisor 1.0.0, pid ",
        "  3 active ",
        "  2 standby ",
        "  probation  rollout 2 is kept in 9m if nothing goes wrong; ",
        "  rollout    #2 to 1.1.0 by a person: under way for ",
        "  packages   selected 1.0.0, pending none",
    ] {
        assert!(shown.contains(part), "{part:?} in\n{shown}");
    }
    let drains = shown
        .lines()
        .find(|line| line.starts_with("  1 draining "))
        .unwrap_or_else(|| panic!("{shown}"));
    assert!(drains.ends_with("s, 3h 59m left"), "{drains}");
    assert!(!shown.contains('\x1b'), "{shown:?}");
    assert!(
        shown.lines().all(|line| line.chars().count() <= 80),
        "{shown}"
    );

    let json = status(&home, &["--format", "json"]).run().await.expect(0);
    let rolling = &json.json()["rolling"];
    assert_eq!(rolling["probation"]["rollout"], 2);
    assert_eq!(rolling["standby"]["generation"], 2);
    let draining = &rolling["draining"][0];
    assert_eq!(
        (&draining["generation"], &draining["streams"]),
        (&json!(1), &json!(1))
    );
    for time in [&rolling["probation"]["until"], &draining["deadline"]] {
        let time: jiff::Timestamp = time.as_str().unwrap().parse().unwrap();
        assert!(time > jiff::Timestamp::now());
    }
    held.finish(&upstream).await;
    drop(verdict);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_pipe_a_watch_prints_a_block_a_change_and_ends_with_sigint() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "").await;
    let mut text = Watch::start(&home, &[]);
    let mut json = Watch::start(&home, &["--format", "json"]);
    // A line of its own with the time, then the picture.
    text.line().await.parse::<jiff::Timestamp>().unwrap();
    let first = text.line().await;
    assert!(first.starts_with("rollproxy 1.0.0 serves on"), "{first}");
    let generation = |line: &str| {
        let status: Value = serde_json::from_str(line).unwrap();
        status["rolling"]["generation"].clone()
    };
    assert_eq!(generation(&json.line().await), 1);

    proxy.roll(by_person("1.1.0")).await.unwrap();
    text.until_line("rollout    #1 to 1.1.0 by a person: kept")
        .await;
    let kept = json.until_line(r#""verdict":"kept""#).await;
    assert_eq!(generation(&kept), 2);
    for watch in [&mut text, &mut json] {
        watch.signal(Signal::SIGINT);
        assert_eq!(watch.ended().await, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_outlives_the_supervisor_and_follows_the_next_one() {
    let upstream = Upstream::start().await.unwrap();
    let (home, mut proxy) = serving(&upstream, "").await;
    let mut text = Watch::start(&home, &[]);
    let mut json = Watch::start(&home, &["--format", "json"]);
    text.until_line("rollproxy 1.0.0 serves").await;
    json.line().await;
    proxy.signal(Signal::SIGKILL);
    proxy.ended().await;
    text.until_line("error[NOT_RUNNING]").await;
    json.until_line(r#""code":"NOT_RUNNING""#).await;
    let next = Starting::selected(&home).answering().await;
    text.until_line(&format!("supervisor 1.0.0, pid {},", next.pid()))
        .await;
    json.until_line(&format!(r#""supervisorPid":{},"#, next.pid()))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_ends_when_nobody_reads_it_any_more() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "").await;
    let mut watch = Watch::start(&home, &[]);
    watch.until_line("rollproxy 1.0.0 serves").await;
    let Watch { mut child, lines } = watch;
    drop(lines);
    proxy.roll(same_version()).await.unwrap();
    let status = until_some("the watch ends", || child.try_wait().unwrap()).await;
    assert_eq!(status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_a_terminal_a_watch_redraws_in_place_and_shows_streams_that_come() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "").await;
    let mut plain = Terminal::run(&status(&home, &["--watch"]).env("NO_COLOR", "1"));
    let mut coloured = Terminal::run(&status(&home, &["--watch"]));
    plain.shows("\x1b[Hrollproxy 1.0.0 serves on").await;
    coloured
        .shows("\x1b[H\x1b[1mrollproxy 1.0.0\x1b[0m serves on")
        .await;
    assert!(!plain.screen().contains("\x1b[1m"));
    // No rollout, no failure: only the second that passes tells of a stream.
    let held = HeldStream::open(proxy.address, &upstream).await;
    until("the stream is shown", || {
        let screen = plain.screen();
        let last = screen.rsplit("\x1b[H").next().unwrap_or_default();
        last.lines()
            .find(|line| line.starts_with("  1 active "))
            .is_some_and(|line| line.split_whitespace().nth(3) == Some("1"))
    })
    .await;
    held.finish(&upstream).await;
    for terminal in [&mut plain, &mut coloured] {
        terminal.signal(Signal::SIGINT);
        assert_eq!(terminal.ended().await, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_holds_a_generation_is_shown_with_age_route_and_client() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "").await;
    let held = HeldStream::open(proxy.address, &upstream).await;
    proxy.roll(by_person("1.1.0")).await.unwrap();
    let shown = status(&home, &["--streams"]).run().await.expect(0).stdout;
    for part in [
        "generation 2 (active, 1.1.0): 0 streams\n",
        "generation 1 (draining, 1.0.0): 1 stream\n",
        "  127.0.0.1:",
        "  /v1/messages\n",
    ] {
        assert!(shown.contains(part), "{part:?} in\n{shown}");
    }
    let arguments = ["--streams", "--generation", "1", "--format", "json"];
    let json = status(&home, &arguments).run().await.expect(0).json();
    let [generation] = json["generations"].as_array().unwrap().as_slice() else {
        panic!("{json}");
    };
    assert_eq!(
        (
            &generation["generation"],
            &generation["place"],
            &generation["total"]
        ),
        (&json!(1), &json!("draining"), &json!(1))
    );
    let stream = &generation["streams"][0];
    assert_eq!(
        (&stream["kind"], &stream["route"]),
        (&json!("exchange"), &json!("/v1/messages"))
    );
    assert!(stream["bytesOut"].as_u64().unwrap() > 0, "{stream}");
    held.finish(&upstream).await;
    until("the generation is gone", || {
        proxy.rolling().draining.is_empty()
    })
    .await;
    let gone = status(&home, &arguments).run().await.expect(1).json();
    assert_eq!(gone["error"]["code"], "NO_SUCH_GENERATION");
    status(&home, &["--generation", "1"]).run().await.expect(64);
    status(&home, &["--watch", "--streams"])
        .run()
        .await
        .expect(64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_knows_no_such_question_is_told_apart_from_one_that_holds_nothing() {
    let home = TestHome::new();
    home.install_faulty("1.0.0", "old");
    home.select("1.0.0");
    // A worker of another make supervised by the program under test.
    let proxy = Starting::unpackaged(&home).answering().await;
    proxy.roll(by_person("1.0.0")).await.unwrap();
    let told = status(&home, &["--streams"]).run().await.expect(0).stdout;
    assert!(
        told.contains("  unknown    its worker did not answer within 2s"),
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a second user"]
async fn another_user_is_refused_even_where_the_file_would_let_him_in() {
    const NOBODY: u32 = 65_534;
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "").await;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("rollproxy");
    std::fs::copy(binaries().path("rollproxy"), &program).unwrap();
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(folder.path(), 0o755);
    open(&program, 0o755);
    let as_nobody = || async {
        let tool = Tool::new(&program)
            .arg("status")
            .env("ROLLPROXY_HOME", home.home.root());
        let output = tool
            .command()
            .stdin(Stdio::null())
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
            .await
            .unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    // As it is made: the file system keeps others away, and the message does not say that nobody serves.
    let (code, shown, said) = as_nobody().await;
    assert_eq!((code, shown.as_str()), (Some(1), ""), "{said}");
    assert!(said.contains("error[CONTROL_UNREACHABLE]"), "{said}");
    // Somebody opened every door: the peer's user is looked at all the same.
    open(home.folder(), 0o755);
    open(home.home.root(), 0o755);
    open(home.home.control_socket().parent().unwrap(), 0o755);
    open(&home.home.control_socket(), 0o777);
    let (code, shown, said) = as_nobody().await;
    assert_eq!((code, shown.as_str()), (Some(1), ""), "{said}");
    assert!(said.contains("error[CONTROL_FAILED]"), "{said}");
    until("the log says so", || {
        proxy
            .log()
            .contains("refused a control connection of another user")
    })
    .await;
    assert!(proxy.status().is_some());
}
