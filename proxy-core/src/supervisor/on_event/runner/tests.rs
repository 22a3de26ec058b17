use std::path::{Path, PathBuf};
use std::time::Instant;

use control::types::{By, Outcome, Verdict};

use super::*;

/// A command that can be asked what it was told, in a folder of its own.
struct Bench {
    folder: tempfile::TempDir,
    home: Home,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::at(folder.path().join("home"));
        home.create().unwrap();
        Self { folder, home }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn shell(&self, script: &str) -> Vec<String> {
        let script = format!("cd {} && {script}", self.folder.path().display());
        vec!["/bin/sh".into(), "-c".into(), script]
    }

    fn runner(&self, script: &str, limit: Duration) -> Runner {
        let mut runner = Runner::resume(&self.home, &[], Carried::default());
        runner.limit = limit;
        runner.configure(&self.shell(script));
        runner
    }
}

fn notice(rollout: u64) -> Notice {
    let verdict = Verdict {
        rollout,
        verdict: Outcome::Kept,
        version: "1.0.0".parse().unwrap(),
        generation: None,
        code: None,
        reason: None,
        serial: None,
    };
    Notice::of_verdict(&verdict, Some(By::Job), staging::clock::now())
}

#[track_caller]
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

fn alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(") ").unwrap().1.starts_with('Z'))
}

fn number(path: &Path) -> i32 {
    until("a number is written", || {
        std::fs::read_to_string(path).is_ok_and(|text| text.ends_with('\n'))
    });
    let text = std::fs::read_to_string(path).unwrap();
    text.trim().parse().unwrap()
}

#[test]
fn events_are_told_one_after_the_other_and_in_order() {
    let bench = Bench::new();
    let script = "mkdir busy || touch twice; cat >> told; rmdir busy";
    let runner = bench.runner(script, LIMIT);
    for rollout in 1..=5 {
        runner.tell(notice(rollout));
    }
    until("all are told", || lines(&bench.path("told")) == 5);
    let told = std::fs::read_to_string(bench.path("told")).unwrap();
    for (at, line) in told.lines().enumerate() {
        let told: Notice = serde_json::from_str(line).unwrap();
        assert_eq!(told.rollout, Some(at as u64 + 1));
    }
    assert!(!bench.path("twice").exists(), "two at a time");
}

#[test]
fn whoever_takes_too_long_is_killed_with_its_group_and_the_next_is_told() {
    let bench = Bench::new();
    let script =
        "test -e first && { cat > second; exit; }; touch first; sleep 1000 & echo $! > child; wait";
    let runner = bench.runner(script, Duration::from_millis(300));
    runner.tell(notice(1));
    runner.tell(notice(2));
    let child = number(&bench.path("child"));
    until("its child is killed", || !alive(child));
    until("the second is told", || lines(&bench.path("second")) == 1);
    until("nothing runs", || runner.shared.lock().running.is_none());
}

#[test]
fn what_cannot_be_started_or_does_not_read_harms_nobody() {
    let bench = Bench::new();
    let mut runner = bench.runner("true", LIMIT);
    runner.configure(&["/no/such/command".to_owned()]);
    runner.tell(notice(1));
    until("it was tried", || {
        let state = runner.shared.lock();
        state.backlog == Backlog::default() && !state.starting
    });
    runner.configure(&bench.shell("exec <&-; yes | head -c 9000000; echo x >> ran; exit 7"));
    runner.tell(notice(2));
    runner.tell(notice(3));
    until("both ran", || lines(&bench.path("ran")) == 2);
    // Nobody is told any more.
    runner.configure(&[]);
    runner.tell(notice(4));
    assert_eq!(runner.shared.lock().backlog, Backlog::default());
}

#[test]
fn another_image_goes_on_where_this_one_was() {
    let bench = Bench::new();
    let script = "cat >> told; echo $$ > pid; while test ! -e go; do sleep 0.01; done; rm pid";
    let runner = bench.runner(script, LIMIT);
    runner.tell(notice(1));
    runner.tell(notice(2));
    let pid = number(&bench.path("pid"));
    until("nothing is being started", || runner.freeze());
    let carried = serde_json::to_vec(&runner.carry()).unwrap();
    let carried: Carried = serde_json::from_slice(&carried).unwrap();
    assert_eq!(carried.running.map(|running| running.pid), Some(pid));
    // Our own thread stays, as no thread does over an exec: frozen, it starts nothing. The image that did
    // not come to be changes nothing either.
    std::fs::write(bench.path("go"), "").unwrap();
    until("the first has ended", || {
        runner.shared.lock().running.is_none()
    });
    assert_eq!(lines(&bench.path("told")), 1);
    runner.thaw();
    until("the second is told", || lines(&bench.path("told")) == 2);

    // The other image: the first has ended and is no child of its own any more.
    let resumed = Runner::resume(&bench.home, &bench.shell("cat >> resumed"), carried);
    until("it tells what waited", || {
        lines(&bench.path("resumed")) == 1
    });
    until("nothing runs", || resumed.shared.lock().running.is_none());
}

#[test]
fn at_the_end_what_runs_is_killed_and_nothing_is_started() {
    let bench = Bench::new();
    let runner = bench.runner("echo $$ >> pids; sleep 1000", LIMIT);
    runner.tell(notice(1));
    runner.tell(notice(2));
    let pid = number(&bench.path("pids"));
    until("its number is known", || {
        runner.shared.lock().running.is_some()
    });
    runner.end();
    until("it is killed", || !alive(pid));
    until("it was noticed", || runner.shared.lock().running.is_none());
    assert_eq!(lines(&bench.path("pids")), 1);
}
