//! `rollproxy demo`: the main job, shown. Streams live through releases by the real updater, a
//! broken release is refused, and a person goes back, all in a temporary home.
//!
//! Everything is real: the signed feed, the packages, the processes, the sockets. Only the provider
//! is embedded, and its streams are such that a client knows every byte it must get.

mod crowd;
mod programs;
mod scene;
mod show;

use std::process::ExitCode;
use std::time::Duration;

use staging::report::{Exit, Failure, Format, finish};

use crowd::Crowd;
use programs::Programs;
use scene::Scene;
use show::Show;

/// The releases in order; the last one is broken.
const RELEASES: [&str; 3] = ["1.0.0", "1.1.0", "1.2.0"];
/// The broken one.
const BROKEN: &str = "1.3.0";

/// How long one act lasts before the next release.
const ACT: Duration = Duration::from_secs(4);

/// Why the demo could not go on; what was lost is told by the summary.
type Result<T> = std::result::Result<T, Failure>;

/// What one command of the demo came to.
struct Line {
    what: String,
    outcome: String,
    as_it_should: bool,
}

/// Plays the demo. Exit code 1 if anything was lost, or a release came out otherwise than it should.
pub fn demo(plain: bool) -> ExitCode {
    finish(play(plain), Format::Text)
}

fn play(plain: bool) -> Result<Exit> {
    let show = Show::new(plain);
    show.say("Building the other programs (launcher, updater, publisher) …");
    let programs = Programs::build()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failed(format!("cannot start the runtime: {error}")))?;
    let (lines, totals) = runtime.block_on(async {
        tokio::select! {
            played = acts(&programs, &show) => played,
            // Whatever was started and written ends with the scene.
            _ = tokio::signal::ctrl_c() => Err(failed("interrupted".to_owned())),
        }
    })?;
    show.summary(&lines, &totals);
    Ok(
        if totals.nothing_lost() && lines.iter().all(|line| line.as_it_should) {
            Exit::Done
        } else {
            Exit::Failed
        },
    )
}

/// The main path: publish, install, start, connect; release, release, release badly; go back.
async fn acts(programs: &Programs, show: &Show) -> Result<(Vec<Line>, crowd::Totals)> {
    let upstream = fixtures::upstream::Upstream::start()
        .await
        .map_err(|error| failed(format!("cannot start the embedded upstream: {error}")))?;
    let scene = Scene::set(programs, &upstream.url()).await?;
    show.say(&format!(
        "Home, feed and keys: {}",
        scene.folder().display()
    ));
    let mut lines = Vec::new();

    show.say("Publishing four signed releases, the last one broken …");
    for version in RELEASES {
        scene.publish(version, &programs.package).await?;
    }
    scene.publish(BROKEN, &programs.broken_package).await?;

    show.say(&format!(
        "First install of {} by `rollproxy-updater check` …",
        RELEASES[0]
    ));
    lines.push(scene.check(RELEASES[0]).await?);
    let proxy = scene.start().await?;
    show.say(&format!(
        "Serving on {} (rollproxy serve, through the launcher)",
        proxy.address()
    ));

    let crowd = Crowd::gather(proxy.address(), ACT * 8);
    let watching = show.watch(&proxy, &crowd);
    for version in &RELEASES[1..] {
        crowd.join_in(ACT).await;
        lines.push(
            watching
                .during(
                    &format!("rollproxy-updater check   → {version}"),
                    scene.check(version),
                )
                .await?,
        );
    }
    crowd.join_in(ACT).await;
    lines.push(
        watching
            .during(
                &format!("rollproxy-updater check   → {BROKEN}, broken"),
                scene.check_refused(BROKEN),
            )
            .await?,
    );
    crowd.join_in(ACT).await;
    let back = RELEASES[1];
    lines.push(
        watching
            .during(
                &format!("rollproxy select {back}   (back, pinned)"),
                scene.select(back),
            )
            .await?,
    );
    crowd.join_in(ACT).await;

    let totals = watching
        .during("waiting for the last streams", crowd.finish(&upstream))
        .await;
    drop(watching);
    proxy.stop().await?;
    Ok((lines, totals))
}

/// A failure of the demo itself.
fn failed(message: String) -> Failure {
    Failure::new("DEMO_FAILED", message, Exit::Failed, true)
}
