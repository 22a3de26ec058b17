//! `rollproxy drain <generation> --now`: a person ends what drains, asked twice, and nothing else.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fixtures::client::End;
use fixtures::upstream::Upstream;
use harness::{
    Finished, HeldStream, Proxy, Terminal, TestHome, Tool, ask, by_person, same_version, until,
};
use serde_json::json;

/// Generation 2 serves, and generation 1 drains for as long as the stream is held. Whatever is rolled to next
/// has a long probation.
async fn draining(upstream: &Upstream) -> (TestHome, Proxy, HeldStream) {
    let home = TestHome::new();
    home.configure_upstream(&upstream.url(), "");
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    let held = HeldStream::open(proxy.address, upstream).await;
    home.configure_upstream(&upstream.url(), "[rollout]\nprobation = \"10m\"\n");
    proxy.roll(same_version()).await.unwrap();
    (home, proxy, held)
}

fn drain(home: &TestHome, arguments: &[&str]) -> Tool {
    home.tool("rollproxy").arg("drain").args(arguments)
}

async fn ran(home: &TestHome, arguments: &[&str]) -> Finished {
    drain(home, arguments).run().await
}

fn drains(proxy: &Proxy, generation: u64) -> bool {
    let draining = proxy.rolling().draining;
    draining.iter().any(|place| place.generation == generation)
}

/// The stream was ended before its time, and shows it.
async fn assert_cut(held: HeldStream) {
    let outcome = held.ended().await;
    assert!(matches!(outcome.end, End::Cut | End::Reset), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_terminal_it_has_to_be_said_twice() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy, held) = draining(&upstream).await;
    let first = ran(&home, &["1", "--now"]).await.expect(75);
    assert!(
        first
            .stdout
            .starts_with("generation 1 (draining, 1.0.0): 1 stream\n"),
        "{first:?}"
    );
    assert!(
        first.stderr.contains("error[CONFIRMATION_NEEDED]"),
        "{first:?}"
    );
    assert!(drains(&proxy, 1), "nothing was done");
    let second = ran(&home, &["1", "--now"]).await.expect(0);
    assert!(
        second.stdout.ends_with("generation 1 is gone\n"),
        "{second:?}"
    );
    assert!(!drains(&proxy, 1));
    assert_cut(held).await;
    let third = ran(&home, &["1", "--now"]).await.expect(1);
    assert!(
        third.stderr.contains("error[NO_SUCH_GENERATION]"),
        "{third:?}"
    );
    assert!(ask(proxy.address).await.is_well());
    assert_eq!(proxy.active().generation, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_yes_it_is_done_at_once_and_told_in_json() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy, held) = draining(&upstream).await;
    let told = ran(&home, &["1", "--now", "--yes", "--format", "json"])
        .await
        .expect(0);
    let first: serde_json::Value =
        serde_json::from_str(told.stdout.lines().next().unwrap()).unwrap();
    assert_eq!(
        (
            &first["held"]["generation"],
            &first["held"]["total"],
            &first["ending"]
        ),
        (&json!(1), &json!(1), &json!(false))
    );
    assert_eq!(told.json(), json!({"outcome": "ended", "generation": 1}));
    assert!(!drains(&proxy, 1));
    assert_cut(held).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_a_terminal_a_person_is_asked_and_may_think_better_of_it() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy, held) = draining(&upstream).await;
    for answer in ["n", ""] {
        let mut terminal = Terminal::run(&drain(&home, &["1", "--now"]));
        terminal.shows("cut what it still serves? [y/N] ").await;
        terminal.types(answer);
        assert_eq!(terminal.ended().await, Some(1));
        terminal.shows("error[NOT_CONFIRMED]").await;
    }
    assert!(drains(&proxy, 1));
    let mut terminal = Terminal::run(&drain(&home, &["1", "--now"]));
    terminal.shows("[y/N] ").await;
    terminal.types("y");
    assert_eq!(terminal.ended().await, Some(0));
    terminal.shows("generation 1 is gone").await;
    assert_cut(held).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ended_by_itself_while_a_person_was_asked_is_done() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy, held) = draining(&upstream).await;
    let mut terminal = Terminal::run(&drain(&home, &["1", "--now"]));
    terminal.shows("[y/N] ").await;
    held.finish(&upstream).await;
    until("its last stream ended", || !drains(&proxy, 1)).await;
    terminal.types("yes");
    assert_eq!(terminal.ended().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_but_a_draining_generation_can_be_ended() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy, held) = draining(&upstream).await;
    let ready = home.folder().join("ready");
    home.install_faulty("1.1.0", &format!("ready-when={}", ready.display()));
    let verdict = proxy.roll_begun(by_person("1.1.0")).await;
    until("the candidate runs", || {
        proxy.rolling().candidate.is_some_and(|place| place.pid > 0)
    })
    .await;
    let refused = |generation: &'static str, what: &'static str, instead: &'static str| {
        let home = &home;
        async move {
            let arguments = [generation, "--now", "--yes", "--format", "json"];
            let error = ran(home, &arguments).await.expect(1).json()["error"].clone();
            let message = error["message"].as_str().unwrap();
            assert_eq!(error["code"], "NOT_DRAINING", "{message}");
            assert!(
                message.contains(what) && message.contains(instead),
                "{message}"
            );
        }
    };
    refused("2", "is active", "rollproxy restart").await;
    refused("3", "is candidate", "wait for the rollout's verdict").await;
    std::fs::write(&ready, "").unwrap();
    until("it is on probation", || proxy.rolling().probation.is_some()).await;
    refused("3", "is active", "rollproxy restart").await;
    refused("2", "is standby", "the end of the probation").await;
    let unknown = ran(&home, &["9", "--now", "--yes"]).await.expect(1);
    assert!(
        unknown.stderr.contains("error[NO_SUCH_GENERATION]"),
        "{unknown:?}"
    );
    // Drains end by themselves; ending one is never an accident of the command line.
    for arguments in [&["1"][..], &["--now"], &["one", "--now"]] {
        ran(&home, arguments).await.expect(64);
    }
    let places: Vec<u64> = proxy
        .rolling()
        .places()
        .map(|(_, place)| place.generation)
        .collect();
    assert_eq!(places, [3, 2, 1], "all are as they were");
    held.finish(&upstream).await;
    drop(verdict);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_confirms_what_it_was_given_for_and_once() {
    use control::types::DrainRequest;
    let upstream = Upstream::start().await.unwrap();
    let (_home, proxy, held) = draining(&upstream).await;
    let client = proxy.client();
    let ask = |confirm: Option<&str>| {
        client.drain(&DrainRequest {
            generation: 1,
            confirm: confirm.map(str::to_owned),
        })
    };
    let code = |confirm: &str| ask(Some(confirm)).unwrap_err().into_failure().code;
    assert_eq!(code("guess"), "CONFIRMATION_EXPIRED");
    let first = ask(None).unwrap();
    assert!(!first.ending && !first.asked_before);
    let again = ask(None).unwrap();
    assert!(again.asked_before && again.confirm == first.confirm);
    assert_eq!(code("guess"), "CONFIRMATION_EXPIRED");
    let token = first.confirm.unwrap();
    assert!(ask(Some(&token)).unwrap().ending);
    assert_cut(held).await;
    until("it is gone", || !drains(&proxy, 1)).await;
    assert_eq!(code(&token), "NO_SUCH_GENERATION");
}
