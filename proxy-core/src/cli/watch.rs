//! `rollproxy status --watch`: the same picture, as it changes. On a terminal it is redrawn in place;
//! anywhere else each change is a block of its own, in JSON a line.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::time::Duration;

use control::types::Status;
use control::{Client, ControlError, News};
use nix::sys::signal::{SigSet, Signal};
use staging::report::{Exit, Failure, Format, text_line};

use super::picture::{self, Look};

/// How often a terminal is redrawn when nothing changes: ages go on, streams come and go.
const REDRAW: Duration = Duration::from_secs(1);

/// Shows the status until SIGINT, or until nobody reads any more. Both are how a watch ends: exit code 0.
pub fn watch(format: Format) -> Result<Exit, Failure> {
    let home = super::home()?;
    end_at_interrupt()?;
    let terminal = format == Format::Text && std::io::stdout().is_terminal();
    let mut view = View {
        terminal,
        format,
        look: Look::of_output(),
        last: super::status::last_written(&home),
        away: 0,
    };
    Client::new(&home)
        .watch(terminal.then_some(REDRAW), &mut |news| {
            let shown = view.show(news, jiff::Timestamp::now());
            let mut out = std::io::stdout().lock();
            match out.write_all(shown.as_bytes()).and_then(|()| out.flush()) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })
        .map_err(ControlError::into_failure)?;
    Ok(Exit::Done)
}

/// SIGINT ends the process at once, successfully: nothing is under way that could be harmed.
fn end_at_interrupt() -> Result<(), Failure> {
    let failed = |error: String| {
        Failure::new(
            "SYSTEM",
            format!("cannot wait for SIGINT: {error}"),
            Exit::Failed,
            true,
        )
    };
    let mut set = SigSet::empty();
    set.add(Signal::SIGINT);
    set.thread_block()
        .map_err(|error| failed(error.to_string()))?;
    std::thread::Builder::new()
        .name("interrupt".into())
        .spawn(move || {
            if set.wait().is_ok() {
                std::process::exit(0);
            }
        })
        .map_err(|error| failed(error.to_string()))?;
    Ok(())
}

/// What is on the screen.
struct View {
    terminal: bool,
    format: Format,
    look: Look,
    last: Option<Status>,
    /// How often in a row the supervisor could not be heard.
    away: u32,
}

impl View {
    /// What has to be written now.
    fn show(&mut self, news: News, now: jiff::Timestamp) -> String {
        let away = match news {
            News::Status(status) => {
                self.away = 0;
                let shown = self.status(&status, now);
                self.last = Some(*status);
                return shown;
            }
            News::Away(error) => error.into_failure(),
        };
        self.away += 1;
        // One cut is a supervisor that replaces itself: it is there again at the next try.
        if self.terminal {
            if self.away < 2 {
                return String::new();
            }
            let last = self
                .last
                .as_ref()
                .map(|last| format!("\n\n{}", picture::status(last, now, self.look)))
                .unwrap_or_default();
            return self.redrawn(&format!("{}{last}", text_line(&away)), now);
        }
        match (self.away, self.format) {
            (2, Format::Text) => format!("{now:.0}\n{}\n\n", text_line(&away)),
            (2, Format::Json) => format!("{}\n", staging::report::json_line(&away)),
            _ => String::new(),
        }
    }

    fn status(&self, status: &Status, now: jiff::Timestamp) -> String {
        if self.format == Format::Json {
            // Our own types: serialising them has no way to fail.
            return format!("{}\n", serde_json::to_string(status).unwrap_or_default());
        }
        let drawn = picture::status(status, now, self.look);
        match self.terminal {
            true => self.redrawn(&drawn, now),
            false => format!("{now:.0}\n{drawn}\n\n"),
        }
    }

    /// Over what stood there: from the top, each line to its end, then nothing below.
    fn redrawn(&self, drawn: &str, now: jiff::Timestamp) -> String {
        let mut screen = "\x1b[H".to_owned();
        for line in drawn.lines().chain(["", &format!("{now:.0}, Ctrl-C ends")]) {
            screen.push_str(line);
            screen.push_str("\x1b[K\r\n");
        }
        screen.push_str("\x1b[J");
        screen
    }
}

#[cfg(test)]
mod tests;
