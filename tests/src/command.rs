//! Running a program to its end, with a deadline and an environment of its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

/// A program about to be run.
pub struct Tool {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    timeout: Duration,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to its standard output.
    pub stdout: String,
    /// What it wrote to its standard error.
    pub stderr: String,
}

impl Tool {
    /// `program` with an empty environment.
    pub fn new(program: impl AsRef<Path>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            timeout: Duration::from_secs(120),
        }
    }

    /// One more argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// More arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// One variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// The command, for tests that hold the process themselves.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .env_clear()
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs to the end.
    ///
    /// # Panics
    /// When it cannot be started or does not end in time.
    pub async fn run(self) -> Finished {
        let what = format!("{} {:?}", self.program.display(), self.arguments);
        let output = tokio::time::timeout(self.timeout, self.command().output())
            .await
            .unwrap_or_else(|_| panic!("{what} did not end within {:?}", self.timeout))
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        Finished {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Finished {
    /// Asserts the exit code; shows all output if it is another.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "stdout:\n{}\nstderr:\n{}",
            self.stdout,
            self.stderr
        );
        self
    }

    /// The last line of the standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        let text = self.stdout.trim();
        serde_json::from_str(text)
            .or_else(|_| serde_json::from_str(text.lines().next_back().unwrap_or_default()))
            .unwrap_or_else(|error| {
                panic!("{error} in:\n{}\nstderr:\n{}", self.stdout, self.stderr)
            })
    }

    /// Both outputs, for searching.
    pub fn text(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}
