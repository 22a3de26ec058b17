//! A program at a terminal, as a person sees it.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use nix::sys::signal::Signal;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use tokio::process::Child;

use crate::{Tool, process, until, until_some};

/// A program whose standard input, output and error are a terminal.
pub struct Terminal {
    child: Child,
    keyboard: std::fs::File,
    screen: Arc<Mutex<String>>,
}

impl Terminal {
    /// Starts `tool` at a terminal of its own.
    pub fn run(tool: &Tool) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let master = openpt(flags | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let end =
            || -> OwnedFd { ioctl_tiocgptpeer(&master, flags | OpenptFlags::CLOEXEC).unwrap() };
        let child = tool
            .command()
            .stdin(Stdio::from(end()))
            .stdout(Stdio::from(end()))
            .stderr(Stdio::from(end()))
            .spawn()
            .unwrap();
        let mut output = std::fs::File::from(master);
        let keyboard = output.try_clone().unwrap();
        let screen: Arc<Mutex<String>> = Arc::default();
        let seen = screen.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // The end of the last program at it ends a terminal with an error.
            while let Ok(got @ 1..) = output.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..got]).into_owned();
                seen.lock().unwrap().push_str(&text);
            }
        });
        Self {
            child,
            keyboard,
            screen,
        }
    }

    /// Everything that was written to it so far, escapes included.
    pub fn screen(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    /// Waits until `text` was written to it.
    pub async fn shows(&self, text: &str) {
        until(&format!("the terminal shows {text:?}"), || {
            self.screen().contains(text)
        })
        .await;
    }

    /// Types a line.
    pub fn types(&mut self, line: &str) {
        writeln!(self.keyboard, "{line}").unwrap();
    }

    /// Sends the program a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = self.child.id().expect("it has not ended");
        process::send(i32::try_from(pid).unwrap(), signal);
    }

    /// Waits for its end; its exit code.
    pub async fn ended(&mut self) -> Option<i32> {
        let status = until_some("the program ends", || self.child.try_wait().unwrap()).await;
        status.code()
    }
}
