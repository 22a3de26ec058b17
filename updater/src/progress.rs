//! Showing how far a download is: a bar on a terminal, nothing in a pipe.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use staging::report::Format;

/// A bar, or nothing.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar over `total` bytes, if a person is watching.
    pub fn start(total: u64, format: Format) -> Self {
        let watched = format == Format::Text && std::io::stderr().is_terminal();
        let target = if watched {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        if let Ok(style) = ProgressStyle::with_template(
            "{msg} {bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
        ) {
            bar.set_style(style);
        }
        bar.set_message("downloading");
        Self(bar)
    }

    /// So many bytes are there.
    pub fn at(&self, bytes: u64) {
        self.0.set_position(bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
