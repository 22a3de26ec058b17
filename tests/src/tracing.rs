//! System calls of processes, counted by strace.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::machine::find;

/// Calls by name.
pub type Calls = BTreeMap<String, u64>;

/// A strace that is attached.
pub struct Tracing {
    child: Child,
    file: PathBuf,
}

impl Tracing {
    /// Attaches to all threads of these processes; the reason if that does not work.
    pub fn attach(pids: &[i32], folder: &Path) -> Result<Self, String> {
        let program = find("strace").ok_or("strace is not installed")?;
        let file = folder.join("calls");
        let mut command = Command::new(program);
        command.args(["-c", "-f", "-o"]).arg(&file);
        for pid in pids {
            command.arg("-p").arg(pid.to_string());
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        for _ in pids {
            match lines.next() {
                Some(Ok(line)) if line.contains(" attached") => {}
                other => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("strace does not attach: {other:?}"));
                }
            }
        }
        // What it says later is of no interest, but must find a reader.
        std::thread::spawn(move || lines.count());
        Ok(Self { child, file })
    }

    /// Detaches; the calls since.
    pub fn finish(mut self) -> Calls {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        kill(pid, Signal::SIGINT).unwrap();
        self.child.wait().unwrap();
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        // % time, seconds, usecs/call, calls, errors (or nothing), name
        text.lines()
            .filter_map(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let calls = fields.get(3)?.parse().ok()?;
                let name = *fields.last()?;
                (name != "total").then(|| (name.to_owned(), calls))
            })
            .collect()
    }
}
