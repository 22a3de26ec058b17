//! From `rollproxy restart` to the first connection that the new generation serves.

use std::time::Instant;

use fixtures::client::get_json;
use fixtures::upstream::Upstream;
use serde_json::json;

use super::findings::{Findings, goal, line, median, table};
use super::held::Held;
use super::options::Options;
use super::scene::{Scene, millis};

/// Restarts with the same number of streams in a row.
const IN_A_ROW: usize = 5;

pub async fn run(options: &Options, findings: &mut Findings) {
    let upstream = Upstream::start().await.unwrap();
    let scene = Scene::start(&upstream.url(), "probation = \"0\"\n").await;
    let counts: &[usize] = options.pick(&[0, 1_000, 5_000], &[0, 100]);
    let mut times = vec![Vec::new(); counts.len()];
    for round in 0..options.rounds {
        for (streams, times) in counts.iter().zip(&mut times) {
            for _ in 0..options.pick(IN_A_ROW, 1) {
                let held = Held::open(scene.proxy.address, *streams).await;
                match restart(&scene).await {
                    Ok(time) => times.push(time),
                    Err(why) => findings.wrong(format!("restart at {streams} streams: {why}")),
                }
                let disturbed = held.disturbed();
                if disturbed > 0 {
                    findings.wrong(format!("{disturbed} of {streams} streams were disturbed"));
                }
                drop(held);
                scene.drained().await;
            }
            eprintln!(
                "restart, {streams} streams, round {}: {times:.1?}",
                round + 1
            );
        }
    }
    table(
        "`restart` to the first answer of the new generation, ms",
        &["open streams", "median", "shortest", "longest", "restarts"],
    );
    for (streams, times) in counts.iter().zip(&times) {
        let ends = [f64::min, f64::max].map(|pick| times.iter().copied().reduce(pick));
        let [shortest, longest] = ends.map(|end| format!("{:.1}", end.unwrap_or(f64::NAN)));
        let cells = [
            format!("{:.1}", median(times)),
            shortest,
            longest,
            times.len().to_string(),
        ];
        line(&streams.to_string(), &cells);
    }
    println!();
    for (streams, times) in counts.iter().zip(&times) {
        goal(&format!("{streams} streams, ms"), median(times), 30.0);
    }
    findings.keep("restart", json!({ "streams": counts, "ms": times }));
}

/// The command as a person gives it, and clients that connect one after the other meanwhile.
async fn restart(scene: &Scene) -> Result<f64, String> {
    let address = scene.proxy.address;
    let generation = async || {
        let (_, status) = get_json(address, "/status")
            .await
            .map_err(|error| error.to_string())?;
        Ok::<_, String>(status["worker"]["generation"].clone())
    };
    let before = generation().await?;
    let begun = Instant::now();
    let command = tokio::spawn(scene.home.tool("rollproxy").arg("restart").run());
    let time = loop {
        if generation().await? != before {
            break millis(begun.elapsed());
        }
        if begun.elapsed().as_secs() > 20 {
            return Err("no new generation within 20 s".into());
        }
    };
    let finished = command.await.map_err(|error| error.to_string())?;
    match finished.code {
        Some(0) => Ok(time),
        code => Err(format!("exit code {code:?}: {}", finished.stderr)),
    }
}
