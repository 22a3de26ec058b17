//! What a service manager is told, by the protocol of `sd_notify(3)`: datagrams to `$NOTIFY_SOCKET`.
//!
//! `words` decides what is to be said, `inherit` reads what the service manager gives, `socket` sends. Nothing here can
//! stop the supervisor or make it wait: what cannot be said is said a little later, or not at all.

mod inherit;
mod socket;
mod words;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use crate::clock::Moment;

use super::listener::{Listener, Listeners};
use super::state::Supervisor;

pub use inherit::{Given, LISTENER, sort, take};
use socket::{Said, Socket};
use words::{News, Told, View};

/// How soon a message that the service manager did not take is said again.
const RETRY: Duration = Duration::from_millis(100);

/// How many messages wait at most: one that does not read at all is not worth more.
const MOST_WAITING: usize = 64;

/// The service manager, if there is one.
pub struct ServiceManager {
    socket: Option<Socket>,
    told: Told,
    /// What it did not take yet, in order; a descriptor goes with one that is to be stored.
    waiting: VecDeque<(String, Option<OwnedFd>)>,
    retry_at: Option<Moment>,
    watchdog: Option<Watchdog>,
}

struct Watchdog {
    interval: Duration,
    due: Moment,
}

impl ServiceManager {
    /// The one that the environment names.
    pub fn find(env: &dyn Fn(&str) -> Option<OsString>, now: Moment) -> Self {
        let socket = env("NOTIFY_SOCKET").and_then(|name| match Socket::to(&name) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(%error, ?name, "NOTIFY_SOCKET cannot be used; going on without");
                None
            }
        });
        let text = |name| env(name).and_then(|value| value.into_string().ok());
        let interval = words::watchdog_interval(
            text("WATCHDOG_USEC").as_deref(),
            text("WATCHDOG_PID").as_deref(),
            std::process::id(),
        );
        let watchdog = interval
            .filter(|_| socket.is_some())
            .map(|interval| Watchdog { interval, due: now });
        Self {
            socket,
            told: Told::default(),
            waiting: VecDeque::new(),
            retry_at: None,
            watchdog,
        }
    }

    /// Gives it the listeners that we have bound and it does not hold yet: it keeps them while we are not there.
    pub fn store(&mut self, listeners: &mut Listeners) {
        if self.socket.is_none() {
            return;
        }
        for (name, descriptor) in listeners.name_unstored() {
            match descriptor {
                Ok(descriptor) => self.say(words::store(&name), Some(descriptor)),
                Err(error) => tracing::warn!(%error, "a listener is not stored"),
            }
        }
    }

    /// A listener is being closed: it is to forget it.
    pub fn forget(&mut self, listener: &Listener) {
        if let Some(name) = &listener.named().stored {
            self.say(words::forget(name), None);
        }
    }

    /// SIGHUP: it waits until it hears that we are ready again, whatever comes of it.
    pub fn reload_asked(&mut self) {
        self.told.reload_asked();
    }

    /// When something is due.
    pub fn next_deadline(&self) -> Option<Moment> {
        let watchdog = self.watchdog.as_ref().map(|watchdog| watchdog.due);
        watchdog.into_iter().chain(self.retry_at).min()
    }

    fn tick(&mut self, now: Moment) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.flush(now);
        }
        if let Some(watchdog) = &mut self.watchdog
            && watchdog.due <= now
        {
            watchdog.due = now + watchdog.interval;
            // A sign of life is worth nothing later.
            if let Some(socket) = &self.socket {
                let _ = socket.send(words::WATCHDOG, None);
            }
        }
    }

    fn say(&mut self, message: String, descriptor: Option<OwnedFd>) {
        if self.socket.is_none() {
            return;
        }
        if self.waiting.len() == MOST_WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back((message, descriptor));
        self.flush(Moment::now());
    }

    fn flush(&mut self, now: Moment) {
        let Some(socket) = &self.socket else { return };
        while let Some((message, descriptor)) = self.waiting.front() {
            match socket.send(message, descriptor.as_ref().map(AsFd::as_fd)) {
                Said::Taken => {}
                Said::NotNow => {
                    self.retry_at = Some(now + RETRY);
                    return;
                }
                Said::Never(error) => {
                    tracing::warn!(%error, message, "the service manager cannot be told");
                }
            }
            self.waiting.pop_front();
        }
    }
}

impl Supervisor {
    /// Says what has changed since it was last told.
    pub(super) fn tell_service_manager(&mut self, now: Moment) {
        if self.service_manager.socket.is_none() {
            return;
        }
        self.service_manager.tick(now);
        let view = self.view();
        let machine = &self.machine;
        let status = |view: &View| words::status(view, machine);
        for news in self.service_manager.told.news(view, status) {
            let message = match news {
                News::Reloading => words::reloading(now),
                news => news.message(),
            };
            self.service_manager.say(message, None);
        }
    }

    fn view(&self) -> View {
        let machine = &self.machine;
        let streams = |generation| {
            self.links
                .get(&generation)
                .map_or(0, |link| link.load.exchanges)
        };
        let draining = || machine.draining().map(|worker| worker.generation);
        View {
            active: machine.active().map(|worker| worker.generation),
            candidate: machine.candidate().map(|worker| worker.generation),
            standby: machine.standby().map(|worker| worker.generation),
            draining: draining().count(),
            draining_streams: draining().map(streams).sum(),
            rolling: self
                .rollouts
                .latest()
                .is_some_and(|latest| latest.verdict.is_none()),
            stopping: self.is_stopping(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn one_that_does_not_read_is_not_waited_for_and_hears_the_last_words_in_order_when_it_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let env = |name: &str| (name == "NOTIFY_SOCKET").then(|| path.clone().into_os_string());
        let start = Moment::now();
        let mut manager = ServiceManager::find(&env, start);
        for number in 0..10_000 {
            manager.say(format!("STATUS={number}"), None);
        }
        assert_eq!(manager.waiting.len(), MOST_WAITING);
        let mut heard = Vec::new();
        let mut bytes = [0; 64];
        while manager.next_deadline().is_some() || heard.last() != Some(&9_999) {
            while let Ok(length) = socket.recv(&mut bytes) {
                let text = std::str::from_utf8(&bytes[..length]).unwrap();
                let number: u32 = text.strip_prefix("STATUS=").unwrap().parse().unwrap();
                heard.push(number);
            }
            manager.tick(Moment::now() + RETRY);
        }
        assert!(heard.is_sorted(), "{heard:?}");
        assert_eq!(heard[0], 0);
        assert_eq!(
            heard[heard.len() - MOST_WAITING..],
            (9_936..10_000).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_socket_that_is_not_there_is_no_trouble() {
        for name in ["", "relative", "@", "/nowhere/at/all", "vsock:2:1"] {
            let env = |asked: &str| (asked == "NOTIFY_SOCKET").then(|| name.into());
            let mut manager = ServiceManager::find(&env, Moment::now());
            manager.say("READY=1".to_owned(), None);
            assert_eq!(manager.waiting.len(), 0, "{name}");
        }
    }
}
