//! Checks by the real updater: run to their end, or held in the middle.

use nix::sys::signal::Signal;
use serde_json::Value;
use staging::journal::{self, JobRecord};
use tokio::io::AsyncReadExt;
use tokio::process::Child;

use crate::{Finished, TestHome, Tool, process, until_some};

impl TestHome {
    /// `rollproxy-updater check --format json`.
    pub fn check(&self) -> Tool {
        self.tool("rollproxy-updater")
            .args(["check", "--format", "json"])
    }

    /// Adds to `config.toml`: to the table that `more` begins with, if it is there, else to the end, which is
    /// `[update]` as `init` writes it.
    pub fn configure_more(&self, more: &str) {
        let file = self.home.config_file();
        let text = std::fs::read_to_string(&file).unwrap();
        let table = more.lines().next().filter(|line| line.starts_with('['));
        let text = match table.map(|table| format!("{table}\n")) {
            Some(table) if text.contains(&table) => text.replacen(&table, more, 1),
            _ => text + more,
        };
        std::fs::write(&file, text).unwrap();
    }

    /// Begins a check and waits until the journal has its job at `step`.
    pub async fn check_until(&self, step: &str) -> Check {
        let check = Check::begin(self.check());
        until_some(&format!("the job is at {step}"), || {
            self.jobs()
                .into_iter()
                .find(|job| check.is(job) && job.step == step && !job.state.is_final())
        })
        .await;
        check
    }

    /// All jobs that the journal knows, the oldest first.
    pub fn jobs(&self) -> Vec<JobRecord> {
        journal::all(&self.home).unwrap()
    }

    /// The partial downloads and how many bytes each has.
    pub fn downloads(&self) -> Vec<(String, u64)> {
        let entries = std::fs::read_dir(self.home.downloads()).unwrap();
        entries
            .map(|entry| {
                let entry = entry.unwrap();
                (
                    entry.file_name().into_string().unwrap(),
                    entry.metadata().unwrap().len(),
                )
            })
            .collect()
    }

    /// What a refused release must not change.
    pub fn standing(&self) -> Standing {
        Standing {
            packages: self.packages(),
            selection: self.selection(),
            pending: self.pending(),
        }
    }

    /// Asserts that nothing lies in staging and that every job has an end.
    #[track_caller]
    pub fn assert_tidy(&self) {
        assert_eq!(self.staging_leftovers(), Vec::<String>::new());
        assert_eq!(journal::unfinished(&self.home).unwrap(), []);
    }
}

/// What is published, selected and pending.
#[derive(Debug, PartialEq, Eq)]
pub struct Standing {
    packages: Vec<String>,
    selection: Option<staging::selection::Selection>,
    pending: Option<String>,
}

/// A check that runs.
pub struct Check {
    child: Child,
    pid: i32,
    heard: String,
}

impl Check {
    /// Starts it.
    pub fn begin(tool: Tool) -> Self {
        let child = tool.command().spawn().unwrap();
        let pid = i32::try_from(child.id().unwrap()).unwrap();
        Self {
            child,
            pid,
            heard: String::new(),
        }
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits until it has said a line that begins so.
    ///
    /// # Panics
    /// When it ends before, or does not say it within [`crate::PATIENCE`].
    pub async fn says(&mut self, line: &str) {
        let told = |heard: &str| heard.lines().any(|other| other.starts_with(line));
        while !told(&self.heard) {
            let out = self.child.stdout.as_mut().unwrap();
            let mut bytes = [0; 4096];
            let count = tokio::time::timeout(crate::PATIENCE, out.read(&mut bytes))
                .await
                .unwrap_or_else(|_| panic!("it never said {line:?}: {}", self.heard))
                .unwrap();
            assert_ne!(count, 0, "it ended without {line:?}: {}", self.heard);
            self.heard
                .push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        }
    }

    /// Whether this is its job.
    pub fn is(&self, job: &JobRecord) -> bool {
        i32::try_from(job.identity.pid) == Ok(self.pid)
    }

    /// Sends it a signal.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        process::send(self.pid, signal);
    }

    /// Kills it as a crash or the kernel does, and waits until it is gone.
    pub async fn killed(self) {
        self.signal(Signal::SIGKILL);
        assert_eq!(self.ended().await.code, None);
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not come within [`crate::PATIENCE`].
    pub async fn ended(self) -> Finished {
        let output = tokio::time::timeout(crate::PATIENCE, self.child.wait_with_output())
            .await
            .expect("the check ends")
            .unwrap();
        Finished {
            code: output.status.code(),
            stdout: self.heard + &String::from_utf8_lossy(&output.stdout),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Finished {
    /// Asserts the exit code and the outcome of a check, which is one JSON object and nothing else.
    #[track_caller]
    pub fn answered(&self, code: i32, outcome: &str) -> Value {
        assert_eq!(
            self.stdout.lines().count(),
            1,
            "not one line:\n{}{}",
            self.stdout,
            self.stderr
        );
        let said = self.json();
        assert_eq!(
            (self.code, said["outcome"].as_str()),
            (Some(code), Some(outcome)),
            "{said:#}\n{}",
            self.stderr
        );
        said
    }

    /// Asserts the exit code and the code of the error, and that its message has all of `parts`.
    #[track_caller]
    pub fn refused(&self, code: i32, error: &str, parts: &[&str]) -> Value {
        assert_eq!(
            self.stdout.lines().count(),
            1,
            "not one line:\n{}{}",
            self.stdout,
            self.stderr
        );
        let said = self.json();
        assert_eq!(
            (self.code, said["error"]["code"].as_str()),
            (Some(code), Some(error)),
            "{said:#}\n{}",
            self.stderr
        );
        let message = said["error"]["message"].as_str().unwrap();
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in: {message}");
        }
        said
    }
}
