//! Promise 2, after `activated`: a new version is selected only once it has served well for a while, and one that turns
//! bad before that gives its traffic back by itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use control::types::{Outcome, Place};
use fixtures::client::{KeepAlive, KeepAliveCounts, once};
use fixtures::upstream::Upstream;
use harness::{
    Finished, HeldStream, Proxy, TestHome, ask, by_job, by_person, process, until, until_some,
};
use nix::sys::signal::Signal;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Longer than any test waits: only a failure, or the test itself, ends it.
const LONG: &str = "10m";

/// A home that serves 1.0.0, whose rollouts have a probation of this length.
async fn serving(upstream: &Upstream, probation: &str) -> (TestHome, Proxy) {
    let home = TestHome::new();
    let more = format!(
        "[upstreams.gone]\nurl = \"http://127.0.0.1:9\"\n\
         [[routes]]\npath = \"/gone\"\nupstream = \"gone\"\n\
         [[routes]]\npath = \"/v1/*\"\nupstream = \"anthropic\"\n\
         [rollout]\nprobation = \"{probation}\"\nping_interval = \"200ms\"\nping_timeout = \"2s\"\n\
         transfer_timeout = \"500ms\"\nrecovery_min = \"50ms\"\n"
    );
    home.configure_upstream(&upstream.url(), &more);
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    (home, proxy)
}

/// `rollproxy restart --to`, until its verdict.
fn restart(home: &TestHome, version: &str) -> JoinHandle<Finished> {
    let tool = home
        .tool("rollproxy")
        .args(["restart", "--to", version, "--format", "json"]);
    tokio::spawn(tool.run())
}

/// Waits until a version serves on probation.
async fn on_probation(proxy: &Proxy, version: &str) -> Place {
    until_some(&format!("{version} is on probation"), || {
        let rolling = proxy.status()?.rolling;
        rolling.probation?;
        rolling
            .active
            .filter(|active| active.version.to_string() == version)
    })
    .await
}

/// Waits until this very process serves, nobody standing by.
async fn serves_again(proxy: &Proxy, before: &Place) {
    until("the former generation serves again", || {
        let rolling = proxy.rolling();
        rolling.standby.is_none()
            && rolling.active.is_some_and(|active| {
                (active.generation, active.pid) == (before.generation, before.pid)
            })
    })
    .await;
}

/// Clients that ask all the time, each on a connection that it keeps.
struct Clients {
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<KeepAliveCounts>>,
}

impl Clients {
    fn start(proxy: &Proxy) -> Self {
        let (stop, _) = watch::channel(false);
        let tasks = (0..4)
            .map(|seed| {
                let mut stopped = stop.subscribe();
                let client = KeepAlive::new(proxy.address, seed).asking_version();
                tokio::spawn(client.run(Duration::from_millis(2), async move {
                    let _ = stopped.wait_for(|stopped| *stopped).await;
                }))
            })
            .collect();
        Self { stop, tasks }
    }

    async fn stop(self) -> KeepAliveCounts {
        self.stop.send(true).unwrap();
        let mut all = KeepAliveCounts::default();
        for task in self.tasks {
            all.add(&task.await.unwrap());
        }
        all
    }
}

/// No request lost, and no connection ended that was open.
#[track_caller]
fn assert_unnoticed(counts: &KeepAliveCounts, versions: &[&str]) {
    assert_eq!(counts.lost(), 0, "{counts:?}");
    assert_eq!(counts.closed_idle_seen_before_send, 0, "{counts:?}");
    assert_eq!(counts.fresh_ok, 4, "a connection a client: {counts:?}");
    for version in versions {
        let served = counts.by_version.get(*version).copied().unwrap_or(0);
        assert!(served > 0, "{version} served none of them: {counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_version_is_selected_only_when_its_probation_is_over() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "2s").await;
    home.install_proxy("1.1.0");
    home.set_pending("1.1.0");
    let (first, selection) = (proxy.active(), home.selection());
    let clients = Clients::start(&proxy);
    let old = HeldStream::open(proxy.address, &upstream).await;

    let told = restart(&home, "1.1.0");
    let second = on_probation(&proxy, "1.1.0").await;
    let young = HeldStream::open(proxy.address, &upstream).await;
    let now = proxy.now();
    let standby = now.rolling.standby.unwrap();
    assert_eq!(
        (standby.generation, standby.pid),
        (first.generation, first.pid)
    );
    let probation = now.rolling.probation.unwrap();
    assert!(probation.until > second.since);
    assert_eq!(probation.local_5xx, 0);
    assert_eq!(home.selection(), selection);
    assert_eq!(home.pending().as_deref(), Some("1.1.0"));
    assert!(!told.is_finished());
    until("the standby keeps its stream and nothing else", || {
        let standby = proxy.rolling().standby;
        standby.is_none_or(|standby| (standby.streams, standby.connections) == (1, 1))
    })
    .await;

    let verdict = told.await.unwrap().expect(0).json();
    assert_eq!(verdict["verdict"], "kept");
    assert_eq!(home.selected().as_deref(), Some("1.1.0"));
    assert_eq!(home.pending(), None);
    let rolling = proxy.rolling();
    assert_eq!(rolling.probation, None);
    assert_eq!(rolling.standby, None);
    assert_eq!(rolling.active.unwrap().pid, second.pid);
    assert_eq!(rolling.draining[0].generation, first.generation);
    assert!(rolling.draining[0].deadline.is_some());
    let steps: Vec<String> = rolling
        .last_rollout
        .unwrap()
        .steps
        .into_iter()
        .map(|step| step.step)
        .collect();
    assert_eq!(
        steps,
        ["candidate", "ready", "activated", "probation", "draining"]
    );
    old.finish(&upstream).await;
    young.finish(&upstream).await;
    assert_unnoticed(&clients.stop().await, &["1.0.0", "1.1.0"]);
    until("the old one has ended", || {
        proxy.rolling().draining.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_its_own_above_the_share_give_the_traffic_back_and_no_client_notices() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, LONG).await;
    home.install_proxy("1.1.0");
    home.set_pending("1.1.0");
    let (first, selection) = (proxy.active(), home.selection());
    let clients = Clients::start(&proxy);
    let old = HeldStream::open(proxy.address, &upstream).await;
    let told = restart(&home, "1.1.0");
    let second = on_probation(&proxy, "1.1.0").await;
    let young = HeldStream::open(proxy.address, &upstream).await;

    // Its own answers, for there is no upstream. The clients go on being answered well.
    let address = proxy.address;
    let mut asked = 0;
    while !told.is_finished() {
        asked += 1;
        assert!(
            asked < 50_000,
            "it goes on although half of its answers are errors"
        );
        let answers =
            (0..8).map(|_| once(address, "GET", "/gone", &[("connection", "close")], b""));
        for answer in futures(answers).await {
            assert_eq!(answer.unwrap().0.status(), Some(502));
        }
    }
    let verdict = told.await.unwrap().expect(3).json();
    assert_eq!(verdict["verdict"], "rolledBack");
    assert_eq!(verdict["code"], "LOCAL_ERRORS");
    let reason = verdict["reason"].as_str().unwrap();
    assert!(reason.contains("errors of its own"), "{reason}");
    serves_again(&proxy, &first).await;

    let rolling = proxy.rolling();
    assert_eq!(rolling.draining[0].generation, second.generation);
    assert!(rolling.last_failure.unwrap().contains("LOCAL_ERRORS"));
    assert!(rolling.last_failure_at.is_some());
    assert_eq!(home.selection(), selection);
    assert!(home.is_known_bad("1.1.0"));
    assert_eq!(
        home.pending(),
        None,
        "a bad version is not tried again by itself"
    );
    let refused = proxy.roll(by_job("1.1.0")).await.unwrap_err();
    assert!(refused.to_string().contains("known bad"), "{refused}");

    old.finish(&upstream).await;
    young.finish(&upstream).await;
    until("the bad one has ended", || {
        proxy.rolling().draining.is_empty()
    })
    .await;
    assert_unnoticed(&clients.stop().await, &["1.0.0", "1.1.0"]);
}

/// Runs them side by side.
async fn futures<F>(all: impl Iterator<Item = F>) -> Vec<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let tasks: Vec<_> = all.map(tokio::spawn).collect();
    let mut outputs = Vec::new();
    for task in tasks {
        outputs.push(task.await.unwrap());
    }
    outputs
}

/// What ends a new generation, the code of the verdict, and whether its own streams survive that.
const ENDS: [(&str, &str, bool); 5] = [
    ("exit-when", "WORKER_EXITED", false),
    ("fatal-when", "WORKER_FATAL", false),
    ("deaf-when", "WORKER_CHANNEL_CLOSED", true),
    ("stopped", "WORKER_UNRESPONSIVE", false),
    ("mute-transfers", "WORKER_UNRESPONSIVE", true),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_version_that_ends_in_any_way_gives_its_traffic_back_and_is_marked() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, LONG).await;
    let (first, selection) = (proxy.active(), home.selection());
    let old = HeldStream::open(proxy.address, &upstream).await;
    for (number, (end, code, streams_survive)) in ENDS.into_iter().enumerate() {
        let version = format!("2.{number}.0");
        let trigger = home.folder().join(format!("end-{number}"));
        let fault = match end {
            "stopped" => "real".to_owned(),
            "mute-transfers" => end.to_owned(),
            _ => format!("real {end}={}", trigger.display()),
        };
        home.install_faulty(&version, &fault);
        let told = restart(&home, &version);
        let bad = on_probation(&proxy, &version).await;
        let young = match end {
            "mute-transfers" => None,
            _ => Some(HeldStream::open(proxy.address, &upstream).await),
        };
        match end {
            // The first client that it leaves waiting is served by the old one.
            "mute-transfers" => {}
            "stopped" => process::send(i32::try_from(bad.pid).unwrap(), Signal::SIGSTOP),
            _ => std::fs::write(&trigger, "").unwrap(),
        }
        if end.ends_with("-when") {
            // Whom it owned when it died, it takes with it; whoever comes from then on is served.
            until("it is no longer active", || {
                let active = proxy.rolling().active;
                active.is_none_or(|active| active.generation != bad.generation)
            })
            .await;
        }
        for _ in 0..10 {
            let asked = ask(proxy.address).await;
            assert!(asked.is_well(), "{end}: {asked:?}");
        }
        let verdict = told.await.unwrap().expect(3).json();
        assert_eq!(verdict["verdict"], "rolledBack", "{end}: {verdict}");
        assert_eq!(verdict["code"], code, "{end}: {verdict}");
        serves_again(&proxy, &first).await;
        assert!(proxy.last_failure().contains(code), "{end}");
        assert!(home.is_known_bad(&version), "{end}");
        assert_eq!(home.selection(), selection, "{end}");
        match (young, streams_survive) {
            (Some(young), true) => {
                // Longer than a ping may take: it hears none, and is not to be blamed for that.
                let since = Instant::now();
                until("pings would have been missed", || {
                    since.elapsed() > Duration::from_secs(3)
                })
                .await;
                young.finish(&upstream).await;
            }
            (Some(young), false) => {
                let outcome = young.ended().await;
                assert!(!outcome.is_perfect(), "{end}: {outcome:?}");
            }
            (None, _) => {}
        }
        let asked = ask(proxy.address).await;
        assert!(asked.is_well(), "{end}: {asked:?}");
        until("nothing is left of it", || home.processes().len() == 2).await;
    }
    old.finish(&upstream).await;
    assert_eq!(proxy.rolling().rejected_sockets, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn select_exits_3_when_its_version_is_rolled_back_and_leaves_selection_and_pin() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, LONG).await;
    let trigger = home.folder().join("end");
    home.install_faulty("1.1.0", &format!("real exit-when={}", trigger.display()));
    let selection = home.selection();
    let select = home
        .tool("rollproxy-launcher")
        .args(["select", "1.1.0", "--format", "json"]);
    let told = tokio::spawn(select.run());
    on_probation(&proxy, "1.1.0").await;
    std::fs::write(&trigger, "").unwrap();
    let verdict = told.await.unwrap().expect(3).text();
    assert!(verdict.contains("WORKER_EXITED"), "{verdict}");
    assert_eq!(home.selection(), selection);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_is_killed_does_not_end_the_probation() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "3s").await;
    home.install_proxy("1.1.0");
    let first = proxy.active();
    let told = restart(&home, "1.1.0");
    let second = on_probation(&proxy, "1.1.0").await;
    process::send(i32::try_from(first.pid).unwrap(), Signal::SIGKILL);
    until("the standby is lost", || proxy.rolling().standby.is_none()).await;
    assert!(!told.is_finished());
    let failure = proxy.last_failure();
    for part in ["WORKER_EXITED", "signal 9", "1.0.0"] {
        assert!(failure.contains(part), "{failure}");
    }
    assert!(ask(proxy.address).await.is_well());
    assert_eq!(told.await.unwrap().expect(0).json()["verdict"], "kept");
    assert_eq!(proxy.active().pid, second.pid);
    assert_eq!(home.selected().as_deref(), Some("1.1.0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_both_are_killed_the_last_kept_version_is_started_again() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, LONG).await;
    home.install_proxy("1.1.0");
    let first = proxy.active();
    let told = restart(&home, "1.1.0");
    let second = on_probation(&proxy, "1.1.0").await;
    for place in [&first, &second] {
        process::send(i32::try_from(place.pid).unwrap(), Signal::SIGKILL);
    }
    assert!(ask(proxy.address).await.is_well());
    let verdict = told.await.unwrap().expect(3).json();
    assert_eq!(verdict["code"], "WORKER_EXITED");
    let now = proxy.active();
    assert_eq!(now.version.to_string(), "1.0.0");
    assert!(now.generation > second.generation);
    assert_eq!(home.selected().as_deref(), Some("1.0.0"));
    assert!(home.is_known_bad("1.1.0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_ends_a_probation_and_the_standby_stays_until_one_is_kept() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, LONG).await;
    for version in ["1.1.0", "1.2.0"] {
        home.install_proxy(version);
    }
    home.install_faulty("1.3.0", "crash-before-ready");
    let first = proxy.active();
    let clients = Clients::start(&proxy);
    let told = restart(&home, "1.1.0");
    let second = on_probation(&proxy, "1.1.0").await;
    let held = HeldStream::open(proxy.address, &upstream).await;

    // The same joins, a job waits.
    let joined = proxy.roll_begun(by_job("1.1.0")).await;
    let refused = proxy.roll(by_job("1.2.0")).await.unwrap_err();
    assert!(refused.to_string().contains("still under way"), "{refused}");

    let later = restart(&home, "1.2.0");
    let superseded = told.await.unwrap().expect(75).json();
    assert_eq!(superseded["verdict"], "superseded");
    assert_eq!(joined.await.unwrap().unwrap().verdict, Outcome::Superseded);
    let third = on_probation(&proxy, "1.2.0").await;
    let rolling = proxy.rolling();
    assert_eq!(rolling.standby.unwrap().pid, first.pid);
    assert_eq!(rolling.draining[0].pid, second.pid);

    // And the next one fails: the traffic goes back to the one that was kept last.
    let last = restart(&home, "1.3.0").await.unwrap().expect(1).json();
    assert_eq!(last["verdict"], "failed");
    assert_eq!(
        later.await.unwrap().expect(75).json()["verdict"],
        "superseded"
    );
    serves_again(&proxy, &first).await;
    held.finish(&upstream).await;
    until("the unproven ones have ended", || {
        proxy.rolling().draining.is_empty()
    })
    .await;
    assert!(!process::is_alive(i32::try_from(third.pid).unwrap()));
    assert_eq!(home.selected().as_deref(), Some("1.0.0"));
    assert!(!home.is_known_bad("1.1.0") && !home.is_known_bad("1.2.0"));
    assert_unnoticed(&clients.stop().await, &["1.0.0"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_in_a_probation_defers_it_and_the_next_start_tries_again() {
    let upstream = Upstream::start().await.unwrap();
    let (home, mut proxy) = serving(&upstream, LONG).await;
    home.install_proxy("1.1.0");
    home.set_pending("1.1.0");
    let selection = home.selection();
    let old = HeldStream::open(proxy.address, &upstream).await;
    let told = proxy.roll_begun(by_person("1.1.0")).await;
    on_probation(&proxy, "1.1.0").await;
    let young = HeldStream::open(proxy.address, &upstream).await;
    proxy.signal(Signal::SIGTERM);
    assert_eq!(told.await.unwrap().unwrap().verdict, Outcome::Deferred);
    until("the port is closed", || {
        std::net::TcpStream::connect(proxy.address).is_err()
    })
    .await;
    old.finish(&upstream).await;
    young.finish(&upstream).await;
    assert_eq!(proxy.ended().await, Some(0));
    assert_eq!(home.selection(), selection);
    assert_eq!(home.pending().as_deref(), Some("1.1.0"));
    assert!(!home.is_known_bad("1.1.0"));

    let again = Proxy::start(&home).await;
    on_probation(&again, "1.1.0").await;
    assert_eq!(
        again.rolling().standby.unwrap().version.to_string(),
        "1.0.0"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_verdict_hears_it_however_quickly_the_supervisor_ends() {
    let upstream = Upstream::start().await.unwrap();
    for _ in 0..4 {
        let (home, mut proxy) = serving(&upstream, LONG).await;
        home.install_proxy("1.1.0");
        let told = proxy.roll_begun(by_person("1.1.0")).await;
        on_probation(&proxy, "1.1.0").await;
        proxy.signal(Signal::SIGTERM);
        let verdict = told.await.unwrap().unwrap();
        assert_eq!(verdict.verdict, Outcome::Deferred);
        assert_eq!(proxy.ended().await, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supervisor_that_is_killed_in_a_probation_starts_what_was_kept() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, LONG).await;
    home.install_proxy("1.1.0");
    let told = restart(&home, "1.1.0");
    on_probation(&proxy, "1.1.0").await;
    proxy.signal(Signal::SIGKILL);
    drop(proxy);
    told.await.unwrap();
    let again = Proxy::start(&home).await;
    assert_eq!(again.active_version().as_deref(), Some("1.0.0"));
    assert!(ask(again.address).await.is_well());
}
