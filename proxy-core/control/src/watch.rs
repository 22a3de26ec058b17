//! Following the status as it changes, through cuts: the supervisor may replace itself, or be gone for a while.

use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::time::Duration;

use crate::client::Client;
use crate::error::ControlError;
use crate::types::Status;

/// The longest event, in bytes.
const EVENT_LIMIT: u64 = 4 * 1024 * 1024;

/// What a watcher learns.
#[derive(Debug)]
pub enum News {
    /// The status as it is now.
    Status(Box<Status>),
    /// The supervisor cannot be heard any more. It is tried again.
    Away(ControlError),
}

impl Client {
    /// `GET /status/events`: the status now, at each change, and with `every` also that often. Connects
    /// anew whenever it has to; ends when `on_news` breaks.
    ///
    /// # Errors
    /// [`ControlError`] that trying again cannot mend: the peer refuses, or is no supervisor.
    pub fn watch(
        &self,
        every: Option<Duration>,
        on_news: &mut dyn FnMut(News) -> ControlFlow<()>,
    ) -> Result<(), ControlError> {
        let path = match every {
            Some(every) => format!("/status/events?everyMs={}", every.as_millis()),
            None => "/status/events".to_owned(),
        };
        let silence = every.map_or(self.deadlines.silence, |every| {
            (every * 3 + self.deadlines.answer).min(self.deadlines.silence)
        });
        loop {
            let away = match self.events(&path, silence, on_news) {
                Ok(Ended::Left) => return Ok(()),
                Ok(Ended::Cut(error)) => error,
                Err(error @ (ControlError::Refused { .. } | ControlError::Protocol { .. })) => {
                    return Err(error);
                }
                Err(error) => error,
            };
            if on_news(News::Away(away)).is_break() {
                return Ok(());
            }
            std::thread::sleep(self.deadlines.poll);
        }
    }

    /// One connection's events.
    fn events(
        &self,
        path: &str,
        silence: Duration,
        on_news: &mut dyn FnMut(News) -> ControlFlow<()>,
    ) -> Result<Ended, ControlError> {
        let request = format!("GET {path}");
        let answer = self.exchange("GET", path, b"", silence)?;
        let mut lines = BufReader::new(self.success(&request, answer)?);
        let mut line = Vec::new();
        loop {
            line.clear();
            let got = (&mut lines).take(EVENT_LIMIT).read_until(b'\n', &mut line);
            let source = match got {
                Ok(_) if line.last() == Some(&b'\n') => None,
                Ok(_) => Some(std::io::ErrorKind::UnexpectedEof.into()),
                Err(error) => Some(error),
            };
            if let Some(source) = source {
                return Ok(Ended::Cut(ControlError::Exchange { request, source }));
            }
            let Some(data) = line.strip_prefix(b"data:") else {
                continue;
            };
            // A newer supervisor may tell of other things, too.
            if let Ok(status) = serde_json::from_slice(data)
                && on_news(News::Status(Box::new(status))).is_break()
            {
                return Ok(Ended::Left);
            }
        }
    }
}

/// How one connection's events ended.
enum Ended {
    /// Whoever watches has seen enough.
    Left,
    /// The connection broke.
    Cut(ControlError),
}
