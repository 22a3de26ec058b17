//! What is said, and when: values in, text out.

use std::time::Duration;

use crate::clock::Moment;

use super::super::rollout::{Generation, Machine, Worker};

/// A sign of life.
pub(super) const WATCHDOG: &str = "WATCHDOG=1";

/// What of a supervisor its service manager is told about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct View {
    pub(super) active: Option<Generation>,
    pub(super) candidate: Option<Generation>,
    pub(super) standby: Option<Generation>,
    pub(super) draining: usize,
    pub(super) draining_streams: u64,
    /// A rollout is under way, or its verdict is being written.
    pub(super) rolling: bool,
    pub(super) stopping: bool,
}

/// What is to be said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum News {
    Ready(String),
    Reloading,
    Stopping(String),
    Status(String),
}

impl News {
    /// As it is sent; `Reloading` needs the time, see [`reloading`].
    pub(super) fn message(self) -> String {
        match self {
            Self::Ready(status) => format!("READY=1\nSTATUS={status}"),
            Self::Reloading => "RELOADING=1".to_owned(),
            Self::Stopping(status) => format!("STOPPING=1\nSTATUS={status}"),
            Self::Status(status) => format!("STATUS={status}"),
        }
    }
}

/// What was said last.
#[derive(Debug, Default)]
pub(super) struct Told {
    ready: bool,
    reloading: bool,
    stopping: bool,
    reload_asked: bool,
    view: Option<View>,
    text: String,
}

impl Told {
    pub(super) fn reload_asked(&mut self) {
        self.reload_asked = true;
    }

    /// What is to be said now. It is ready when a generation serves for the first time; later it is the same
    /// service, whatever becomes of its generations. `status` is only asked when it is needed.
    pub(super) fn news(&mut self, view: View, status: impl Fn(&View) -> String) -> Vec<News> {
        let asked = std::mem::take(&mut self.reload_asked);
        if self.view == Some(view) && !asked {
            return Vec::new();
        }
        self.view = Some(view);
        let text = status(&view);
        let mut news = Vec::new();
        if view.stopping {
            if !std::mem::replace(&mut self.stopping, true) {
                news.push(News::Stopping(text.clone()));
            }
        } else if !self.ready {
            // A reload that is asked for before that is what it is ready with.
            self.ready = view.active.is_some();
            if self.ready {
                news.push(News::Ready(text.clone()));
            }
        } else {
            if asked || (view.rolling && !self.reloading) {
                self.reloading = true;
                news.push(News::Reloading);
            }
            if self.reloading && !view.rolling {
                self.reloading = false;
                news.push(News::Ready(text.clone()));
            }
        }
        let is_told = news.iter().any(|news| *news != News::Reloading);
        if !is_told && self.text != text {
            news.push(News::Status(text.clone()));
        }
        self.text = text;
        news
    }
}

/// The begin of a reload, with the time that tells which one it is.
pub(super) fn reloading(now: Moment) -> String {
    let micros = now.since(Moment::default()).as_micros();
    format!("RELOADING=1\nMONOTONIC_USEC={micros}")
}

/// Keep this descriptor. A name of its own, since forgetting is by name.
pub(super) fn store(name: &str) -> String {
    format!("FDSTORE=1\nFDNAME={name}")
}

/// Keep it no longer.
pub(super) fn forget(name: &str) -> String {
    format!("FDSTOREREMOVE=1\nFDNAME={name}")
}

/// One line for a person.
pub(super) fn status(view: &View, machine: &Machine) -> String {
    let named = |worker: &Worker, does: &str| {
        format!(
            "{} {does} (generation {})",
            worker.target.version, worker.generation
        )
    };
    let (active, standby, candidate) = (machine.active(), machine.standby(), machine.candidate());
    let first = match (view.stopping, active) {
        (true, _) => Some("stops".to_owned()),
        (false, Some(active)) => Some(named(active, "serves")),
        (false, None) => Some("nobody serves".to_owned()),
    };
    let parts = [
        first,
        active
            .filter(|_| view.stopping)
            .map(|active| named(active, "still serves")),
        standby.map(|standby| named(standby, "stands by")),
        candidate.map(|candidate| named(candidate, "is being started")),
        drains(view),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn drains(view: &View) -> Option<String> {
    let (older, streams) = (view.draining, view.draining_streams);
    let drain = match streams {
        1 => "1 stream drains".to_owned(),
        many => format!("{many} streams drain"),
    };
    match (older, streams) {
        (0, _) => None,
        // Whoever stops has no newer one.
        (_, 0) if view.stopping => None,
        (_, _) if view.stopping => Some(drain),
        (1, 0) => Some("1 older ends".to_owned()),
        (_, 0) => Some(format!("{older} older end")),
        (_, _) => Some(format!("{drain} on {older} older")),
    }
}

/// How often a sign of life is due: twice as often as it is looked for; nothing when it is not meant for us.
pub(super) fn watchdog_interval(
    micros: Option<&str>,
    pid: Option<&str>,
    own_pid: u32,
) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.trim().parse() != Ok(own_pid)) {
        return None;
    }
    let micros: u64 = micros?.trim().parse().ok()?;
    (micros > 0).then(|| Duration::from_micros(micros / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: View = View {
        active: Some(1),
        candidate: None,
        standby: None,
        draining: 0,
        draining_streams: 0,
        rolling: false,
        stopping: false,
    };

    /// Another text for every view.
    fn text(view: &View) -> String {
        let generation = view.active.or(view.candidate).unwrap_or(0);
        let (draining, streams) = (view.draining, view.draining_streams);
        format!("{generation}:{draining}:{streams}")
    }

    fn heard(told: &mut Told, view: View) -> Vec<String> {
        let news = told.news(view, text);
        news.into_iter()
            .map(|news| news.message().replace('\n', " "))
            .collect()
    }

    fn running() -> Told {
        let mut told = Told::default();
        assert_eq!(heard(&mut told, IDLE), ["READY=1 STATUS=1:0:0"]);
        told
    }

    #[test]
    fn it_is_ready_when_a_generation_serves() {
        let mut told = Told::default();
        let starting = View {
            active: None,
            candidate: Some(3),
            ..IDLE
        };
        assert_eq!(heard(&mut told, starting), ["STATUS=3:0:0"]);
        assert_eq!(heard(&mut told, starting), [""; 0]);
        assert_eq!(heard(&mut told, IDLE), ["READY=1 STATUS=1:0:0"]);
        // Recoveries later are no news about being ready.
        assert_eq!(heard(&mut told, starting), ["STATUS=3:0:0"]);
        assert_eq!(heard(&mut told, IDLE), ["STATUS=1:0:0"]);
    }

    #[test]
    fn one_that_begins_within_a_rollout_is_ready_first() {
        let mut told = Told::default();
        let rolling = View {
            rolling: true,
            ..IDLE
        };
        assert_eq!(heard(&mut told, rolling), ["READY=1 STATUS=1:0:0"]);
    }

    #[test]
    fn the_same_words_are_not_said_again() {
        let mut told = running();
        let standby = View {
            standby: Some(2),
            ..IDLE
        };
        assert_eq!(heard(&mut told, standby), [""; 0]);
    }

    #[test]
    fn a_rollout_is_a_reload_that_ends_with_ready_whatever_came_of_it() {
        let mut told = running();
        let rolling = View {
            candidate: Some(2),
            rolling: true,
            ..IDLE
        };
        assert_eq!(heard(&mut told, rolling), ["RELOADING=1"]);
        let activated = View {
            active: Some(2),
            candidate: None,
            draining: 1,
            ..rolling
        };
        assert_eq!(heard(&mut told, activated), ["STATUS=2:1:0"]);
        let kept = View {
            rolling: false,
            ..activated
        };
        assert_eq!(heard(&mut told, kept), ["READY=1 STATUS=2:1:0"]);
        assert_eq!(heard(&mut told, kept), [""; 0]);
        // And one that failed.
        assert_eq!(heard(&mut told, rolling), ["RELOADING=1", "STATUS=1:0:0"]);
        assert_eq!(heard(&mut told, IDLE), ["READY=1 STATUS=1:0:0"]);
    }

    #[test]
    fn a_signal_is_answered_even_where_no_rollout_begins_or_one_is_under_way() {
        let mut told = running();
        told.reload_asked();
        let answered = ["RELOADING=1", "READY=1 STATUS=1:0:0"];
        assert_eq!(heard(&mut told, IDLE), answered);
        let rolling = View {
            rolling: true,
            ..IDLE
        };
        assert_eq!(heard(&mut told, rolling), ["RELOADING=1"]);
        told.reload_asked();
        assert_eq!(heard(&mut told, rolling), ["RELOADING=1"]);
        assert_eq!(heard(&mut told, IDLE), ["READY=1 STATUS=1:0:0"]);
    }

    #[test]
    fn who_stops_is_neither_ready_nor_reloading_any_more() {
        let mut told = running();
        let stopping = View {
            active: None,
            draining: 1,
            draining_streams: 2,
            rolling: true,
            stopping: true,
            ..IDLE
        };
        assert_eq!(heard(&mut told, stopping), ["STOPPING=1 STATUS=0:1:2"]);
        told.reload_asked();
        let less = View {
            draining_streams: 1,
            ..stopping
        };
        assert_eq!(heard(&mut told, less), ["STATUS=0:1:1"]);
    }

    #[test]
    fn what_drains_is_told_in_few_words() {
        for (streams, older, words) in [
            (0, 1, "1 older ends"),
            (0, 2, "2 older end"),
            (1, 2, "1 stream drains on 2 older"),
            (3, 1, "3 streams drain on 1 older"),
        ] {
            let view = View {
                draining: older,
                draining_streams: streams,
                ..IDLE
            };
            assert_eq!(drains(&view).as_deref(), Some(words));
        }
        assert_eq!(drains(&IDLE), None);
        for (streams, words) in [(0, None), (1, Some("1 stream drains"))] {
            let view = View {
                draining: 2,
                draining_streams: streams,
                stopping: true,
                ..IDLE
            };
            assert_eq!(drains(&view).as_deref(), words);
        }
    }

    #[test]
    fn a_reload_says_when_it_began() {
        assert_eq!(
            reloading(Moment::from_millis(1_234)),
            "RELOADING=1\nMONOTONIC_USEC=1234000"
        );
    }

    #[test]
    fn the_watchdog_is_told_twice_as_often_as_it_looks_and_only_by_whom_it_watches() {
        let every = |micros, pid| watchdog_interval(micros, pid, 7);
        assert_eq!(every(Some("30000000"), None), Some(Duration::from_secs(15)));
        assert_eq!(every(Some("2"), Some("7")), Some(Duration::from_micros(1)));
        for (micros, pid) in [
            (None, None),
            (None, Some("7")),
            (Some("0"), None),
            (Some("soon"), None),
            (Some("-5"), None),
            (Some("30000000"), Some("8")),
            (Some("30000000"), Some("")),
        ] {
            assert_eq!(every(micros, pid), None, "{micros:?} {pid:?}");
        }
    }
}
