//! `[rollout] on_event`: a command is told what became of rollouts, and nothing that it does or leaves undone is felt
//! by anybody else.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use control::types::Outcome;
use harness::{Proxy, TestHome, ask, by_job, by_person, process, same_version, until, until_some};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// A home that serves 1.0.0 and tells what happens to `script`, which runs in the folder around the home.
async fn telling(script: &str, rollout: &str) -> (TestHome, Proxy) {
    let home = TestHome::new();
    tell(&home, script, rollout);
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    (home, proxy)
}

/// Writes the script, and the configuration that names it.
fn tell(home: &TestHome, script: &str, rollout: &str) {
    let file = home.folder().join("told.sh");
    let text = format!("cd {}\n{script}\n", home.folder().display());
    std::fs::write(&file, text).unwrap();
    home.configure(&format!(
        "[rollout]\non_event = [\"/bin/sh\", \"{}\"]\n{rollout}",
        file.display()
    ));
}

fn told_file(home: &TestHome) -> PathBuf {
    home.folder().join("told")
}

/// What the command was told so far, if it keeps it in `told`.
fn told(home: &TestHome) -> Vec<Value> {
    std::fs::read_to_string(told_file(home))
        .unwrap_or_default()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Waits until so many events were told, and gives the last.
async fn told_last(home: &TestHome, count: usize) -> Value {
    until("the command is told", || told(home).len() >= count).await;
    let told = told(home);
    assert_eq!(told.len(), count, "{told:?}");
    told[count - 1].clone()
}

const KEEP: &str = "cat >> told";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_of_event_is_told_with_what_a_person_needs() {
    let (home, proxy) = telling(KEEP, "").await;
    home.install_faulty("1.1.0", "crash-before-ready");

    proxy.roll(same_version()).await.unwrap();
    let kept = told_last(&home, 1).await;
    let at: jiff::Timestamp = kept["at"].as_str().unwrap().parse().unwrap();
    assert!(at <= jiff::Timestamp::now());
    assert_eq!(
        kept,
        json!({
            "schema": 1, "event": "kept", "at": kept["at"], "rollout": 1, "verdict": "kept",
            "version": "1.0.0", "generation": 2, "by": "person", "missed": 0
        })
    );

    proxy.roll(by_job("1.1.0")).await.unwrap();
    let failed = told_last(&home, 2).await;
    assert_eq!(
        (&failed["event"], &failed["code"], &failed["by"]),
        (&json!("failed"), &json!("WORKER_EXITED"), &json!("job"))
    );
    assert!(failed["reason"].as_str().unwrap().contains("exit code 101"));

    // Known bad by now: the job's next request does not begin.
    proxy.roll(by_job("1.1.0")).await.unwrap_err();
    let refused = told_last(&home, 3).await;
    assert_eq!(
        (&refused["event"], &refused["code"], &refused["version"]),
        (&json!("refused"), &json!("KNOWN_BAD"), &json!("1.1.0"))
    );

    // Nobody else tells whoever sent a signal.
    std::fs::write(home.home.config_file(), "nonsense").unwrap();
    proxy.signal(Signal::SIGHUP);
    let refused = told_last(&home, 4).await;
    assert_eq!(
        (&refused["event"], &refused["by"]),
        (&json!("refused"), &json!("signal"))
    );
    assert!(refused["code"].as_str().unwrap().starts_with("CONFIG_"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_and_a_superseded_rollout_are_told() {
    let (home, proxy) = telling(KEEP, "probation = \"1h\"\n").await;
    home.install_proxy("1.1.0");
    let verdict = proxy.roll_begun(by_person("1.1.0")).await;
    until("the new generation serves", || {
        proxy.rolling().probation.is_some()
    })
    .await;
    process::send(proxy.active_pid(), Signal::SIGKILL);
    assert_eq!(verdict.await.unwrap().unwrap().verdict, Outcome::RolledBack);
    let rolled_back = told_last(&home, 1).await;
    assert_eq!(
        (&rolled_back["event"], &rolled_back["code"]),
        (&json!("rolledBack"), &json!("WORKER_EXITED"))
    );
    until("the former one serves again", || {
        proxy.active_version().as_deref() == Some("1.0.0") && proxy.rolling().standby.is_none()
    })
    .await;

    let first = proxy.roll_begun(same_version()).await;
    until("it is on probation", || proxy.rolling().probation.is_some()).await;
    home.install_proxy("1.2.0");
    let second = proxy.roll_begun(by_person("1.2.0")).await;
    assert_eq!(first.await.unwrap().unwrap().verdict, Outcome::Superseded);
    let superseded = told_last(&home, 2).await;
    assert_eq!(
        (&superseded["event"], &superseded["verdict"]),
        (&json!("refused"), &json!("superseded"))
    );
    drop(second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_feed_that_expires_soon_is_told() {
    let home = TestHome::new();
    tell(&home, KEEP, "");
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    // As the updater keeps it.
    let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(72);
    let timestamp = json!({"signatures": [], "signed": {"_type": "timestamp", "expires": expires}});
    std::fs::create_dir_all(home.home.feed()).unwrap();
    let file = home.home.feed().join("timestamp.json");
    std::fs::write(&file, timestamp.to_string()).unwrap();
    let _proxy = Proxy::start(&home).await;
    let soon = told_last(&home, 1).await;
    assert_eq!(
        (&soon["event"], &soon["feedExpires"]),
        (&json!("feedExpiry"), &json!(expires))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_has_three_descriptors_a_group_of_its_own_and_a_workers_environment() {
    // `exec`: a shell that redirects only one command keeps a copy meanwhile.
    let script = "exec > fd; ls -l /proc/$$/fd; cat /proc/$$/environ > environ; \
                  cut -d' ' -f5 /proc/$$/stat > group; echo $$ > pid; mv pid done";
    let (home, proxy) = telling(script, "").await;
    // Connections, workers, the control socket, files: all that a supervisor has open.
    let _watcher = std::os::unix::net::UnixStream::connect(home.home.control_socket()).unwrap();
    let _client = std::net::TcpStream::connect(proxy.address).unwrap();
    proxy.roll(same_version()).await.unwrap();
    let file = |name: &str| std::fs::read_to_string(home.folder().join(name));
    let pid = until_some("the command has looked", || file("done").ok()).await;
    let open = file("fd").unwrap();
    let numbers: Vec<&str> = open
        .lines()
        .filter_map(|line| line.split_once(" -> "))
        // The shell has its own script open.
        .filter(|(_, target)| !target.ends_with("/told.sh"))
        .map(|(name, _)| name.rsplit(' ').next().unwrap())
        .collect();
    assert_eq!(numbers, ["0", "1", "2"], "{open}");
    assert_eq!(file("group").unwrap().trim(), pid.trim());
    let environment = file("environ").unwrap();
    let mut names: Vec<&str> = environment
        .split('\0')
        .filter_map(|pair| Some(pair.split_once('=')?.0))
        .filter(|name| *name != "PWD" && *name != "OLDPWD")
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["ROLLPROXY_HOME", "ROLLPROXY_LOG"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_command_delays_or_changes_a_rollout() {
    for (what, script) in [
        ("fails", "exit 7"),
        ("floods", "yes; exit 1"),
        ("hangs", "sleep 1000"),
        ("does not read", "exec <&-; exit 0"),
        ("signals itself", "kill -9 $$"),
    ] {
        let (home, proxy) = telling(script, "").await;
        for generation in 2..5 {
            let begun = Instant::now();
            let verdict = proxy.roll(same_version()).await.unwrap();
            assert_eq!(
                (verdict.verdict, &verdict.code, verdict.generation),
                (Outcome::Kept, &None, Some(generation)),
                "{what}"
            );
            // The limit is 30 s: whoever waited for the command would need that long.
            assert!(begun.elapsed() < Duration::from_secs(15), "{what}");
        }
        assert!(ask(proxy.address).await.is_well());
        assert_eq!(proxy.last_failure(), "", "{what}");
        drop(home);
    }
    let home = TestHome::new();
    home.configure("[rollout]\non_event = [\"/no/such/command\"]\n");
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    for _ in 0..2 {
        let verdict = proxy.roll(same_version()).await.unwrap();
        assert_eq!((verdict.verdict, verdict.code), (Outcome::Kept, None));
    }
    until("the log says so", || {
        proxy.log().contains("look at [rollout] on_event")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_hangs_is_killed_with_its_group_after_its_limit_and_the_rest_is_told() {
    let script = "if test -e first; then cat >> told; exit; fi; touch first; sleep 1000 & echo $! > child; wait";
    let (home, proxy) = telling(script, "").await;
    for _ in 0..3 {
        proxy.roll(same_version()).await.unwrap();
    }
    let begun = Instant::now();
    let child = home.folder().join("child");
    let child: i32 = until_some("its child runs", || {
        std::fs::read_to_string(&child).ok()?.trim().parse().ok()
    })
    .await;
    until("its child is killed", || !process::is_alive(child)).await;
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(15), "{took:?}: killed too early");
    let second = told_last(&home, 2).await;
    assert_eq!(second["rollout"], 3);
    assert_eq!(told(&home)[0]["missed"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_waits_for_no_command_and_leaves_none_behind() {
    let (home, mut proxy) = telling("echo $$ > pid; sleep 1000 & wait", "").await;
    proxy.roll(same_version()).await.unwrap();
    let file = home.folder().join("pid");
    let pid: i32 = until_some("the command runs", || {
        std::fs::read_to_string(&file).ok()?.trim().parse().ok()
    })
    .await;
    let begun = Instant::now();
    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.ended().await, Some(0));
    assert!(begun.elapsed() < Duration::from_secs(15));
    until("the command is gone", || !process::is_alive(pid)).await;
    until("nothing runs for the home", || home.processes().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_command_is_told_from_the_rollout_on_that_named_it_and_none_when_none_is_named() {
    let (home, proxy) = telling(KEEP, "").await;
    proxy.roll(same_version()).await.unwrap();
    told_last(&home, 1).await;
    tell(&home, "cat >> other", "");
    let text = std::fs::read_to_string(home.home.config_file()).unwrap();
    std::fs::write(home.home.config_file(), text + "drain_cap = 7\n").unwrap();
    proxy.roll(same_version()).await.unwrap();
    let other = home.folder().join("other");
    until("the other is told", || other.exists()).await;
    home.configure("");
    proxy.roll(same_version()).await.unwrap();
    proxy.roll(same_version()).await.unwrap();
    until("the verdict is filed", || {
        proxy.log().matches("verdict").count() >= 4
    })
    .await;
    let lines = std::fs::read_to_string(&other).unwrap();
    assert_eq!((lines.lines().count(), told(&home).len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_being_told_and_what_waits_outlive_the_supervisors_own_replacement() {
    let script = "echo $$ >> pids; while ! test -e go; do sleep 0.05; done; cat >> told";
    let (home, proxy) = telling(script, "").await;
    proxy.roll(same_version()).await.unwrap();
    proxy.roll(same_version()).await.unwrap();
    let pids = home.folder().join("pids");
    let first: i32 = until_some("the command runs", || {
        std::fs::read_to_string(&pids).ok()?.trim().parse().ok()
    })
    .await;
    home.tool("rollproxy")
        .args(["restart", "--supervisor"])
        .run()
        .await
        .expect(0);
    assert!(process::is_alive(first), "it goes on");
    assert_eq!(told(&home).len(), 0);
    std::fs::write(home.folder().join("go"), "").unwrap();
    let second = told_last(&home, 2).await;
    assert_eq!(
        (&told(&home)[0]["rollout"], &second["rollout"]),
        (&json!(1), &json!(2))
    );
    // Nobody's child is left unreaped.
    until("only the worker is left", || {
        let status = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let path = entry.ok()?.path();
            let stat = std::fs::read_to_string(path.join("stat")).ok()?;
            let (_, rest) = stat.rsplit_once(") ")?;
            (rest.split(' ').nth(1)? == proxy.pid().to_string()).then_some(())
        });
        status.count() == 1
    })
    .await;
}
