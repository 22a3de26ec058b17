//! What a person sees: a live picture on a terminal, plain lines elsewhere, and the summary.

use std::io::IsTerminal;
use std::sync::atomic::Ordering;
use std::time::Duration;

use control::types::{PlaceName, Status};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use staging::report::line;

use super::Line;
use super::crowd::{Crowd, Seen, Totals};
use super::scene::Serving;

/// How often the picture is drawn anew on a terminal.
const FRAME: Duration = Duration::from_millis(150);

/// The screen.
pub struct Show {
    bar: Option<ProgressBar>,
}

/// The live picture; ends when dropped.
pub struct Watching<'a> {
    show: &'a Show,
    painter: tokio::task::JoinHandle<()>,
}

impl Show {
    /// Live on a terminal, unless `plain`.
    pub fn new(plain: bool) -> Self {
        let live = !plain && std::io::stdout().is_terminal();
        let bar = live.then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
            if let Ok(style) = ProgressStyle::with_template("{msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar }
    }

    /// One line that stays.
    pub fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => line(text),
        }
    }

    /// Shows who serves and who drains, from now until the end of what is returned.
    pub fn watch<'a>(&'a self, proxy: &Serving, crowd: &Crowd) -> Watching<'a> {
        let (client, seen, bar) = (proxy.client(), crowd.seen.clone(), self.bar.clone());
        let painter = tokio::spawn(async move {
            let mut last = String::new();
            loop {
                let asked = client.clone();
                let status = tokio::task::spawn_blocking(move || asked.status().ok())
                    .await
                    .ok()
                    .flatten();
                if let Some(status) = status {
                    match &bar {
                        Some(bar) => bar.set_message(picture(&status, &seen)),
                        None => {
                            // Elsewhere a line whenever the places change.
                            let places = in_one_line(&status);
                            if places != last {
                                line(&format!("    {places}   {}", alive(&seen)));
                                last = places;
                            }
                        }
                    }
                }
                tokio::time::sleep(FRAME).await;
            }
        });
        Watching {
            show: self,
            painter,
        }
    }

    /// The end, in figures that a person believes.
    pub fn summary(&self, lines: &[Line], totals: &Totals) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        line(&summary(lines, totals));
    }
}

impl Watching<'_> {
    /// Says what is done now and does it.
    pub async fn during<T>(&self, what: &str, doing: impl Future<Output = T>) -> T {
        self.show.say(&format!("▶ {what}"));
        doing.await
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.painter.abort();
    }
}

fn alive(seen: &Seen) -> String {
    let [opened, finished, lost, events] = [&seen.opened, &seen.finished, &seen.lost, &seen.events]
        .map(|counter| counter.load(Ordering::Relaxed));
    format!(
        "{} streams alive, {finished} finished, {lost} lost, {events} events",
        opened - finished - lost
    )
}

fn in_one_line(status: &Status) -> String {
    let rolling = &status.rolling;
    let mut places = vec![format!("supervisor {}", status.supervisor_version)];
    for (name, place) in rolling.places() {
        places.push(format!(
            "{} {} (gen {})",
            name.word(),
            place.version,
            place.generation
        ));
    }
    places.join(", ")
}

fn picture(status: &Status, seen: &Seen) -> String {
    let rolling = &status.rolling;
    let mut rows = vec![String::new()];
    rows.push(format!(
        "  supervisor {} (pid {})",
        status.supervisor_version, status.supervisor_pid
    ));
    for (name, place) in rolling.places() {
        let dot = match name {
            PlaceName::Active => "●",
            PlaceName::Candidate => "◌",
            PlaceName::Standby => "◉",
            PlaceName::Draining => "◐",
            PlaceName::Unknown => "?",
        };
        let shown = usize::try_from(place.streams).unwrap_or(0).min(60);
        rows.push(format!(
            "  {dot} {:<10} {:<8} gen {:<3} {:>4} streams {}",
            name.word(),
            place.version.to_string(),
            place.generation,
            place.streams,
            "▪".repeat(shown)
        ));
    }
    rows.push(format!("  {}", alive(seen)));
    rows.join("\n")
}

fn summary(lines: &[Line], totals: &Totals) -> String {
    let clients = &totals.keep_alive;
    let mut rows = vec![String::new(), "What happened".to_owned()];
    for line in lines {
        let mark = if line.as_it_should { "✓" } else { "✗" };
        rows.push(format!("  {mark} {:<44} {}", line.what, line.outcome));
    }
    rows.push(format!(
        "  streams     {} opened, {} finished; {} events in order, {:.1} MB verified by SHA-256",
        totals.streams,
        totals.perfect,
        totals.events,
        megabytes(totals.bytes)
    ));
    rows.push(format!(
        "  keep-alive  {} requests answered right: {} on reused connections, {} on fresh ones; {} idle connections found closed",
        clients.ok(),
        clients.reused_ok,
        clients.fresh_ok,
        clients.closed_idle_seen_before_send
    ));
    let versions: Vec<String> = clients
        .by_version
        .iter()
        .map(|(version, count)| format!("{version}: {count}"))
        .collect();
    rows.push(format!("  by version  {}", versions.join(", ")));
    rows.push(format!(
        "  lost        {} refused, {} cut, {} reset, {} not 2xx, {} wrong, {} abandoned upstream",
        totals.refused + clients.refused,
        totals.cut + clients.reused_lost + clients.fresh_lost,
        totals.reset,
        clients.non_2xx,
        totals.wrong + clients.wrong,
        totals.abandoned
    ));
    rows.push(String::new());
    rows.push(
        if totals.nothing_lost() && lines.iter().all(|line| line.as_it_should) {
            "Nothing was lost. Nobody noticed a release.".to_owned()
        } else {
            "Something was lost, or a release came out otherwise than it should: see above."
                .to_owned()
        },
    );
    rows.join("\n")
}

fn megabytes(bytes: u64) -> f64 {
    // Shown with one digit: the precision that is lost does not matter.
    #[allow(clippy::cast_precision_loss)]
    let bytes = bytes as f64;
    bytes / 1_000_000.0
}
