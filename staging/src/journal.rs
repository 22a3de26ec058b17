//! `state/jobs/<job>.json`: how far each job came, and why it ended.

use std::fs;
use std::io;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::document::{self, Document, DocumentError};
use crate::files;
use crate::home::Home;
use crate::ownership::ProcessIdentity;
use crate::report::{Exit, Report};
use crate::version::PackageVersion;

/// The cause of a job that was interrupted.
pub const PROCESS_ENDED: &str = "its process ended before the job did";

/// What became of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// It waits for something, as for a verdict.
    Waiting,
    /// It works.
    Started,
    /// It came to its end, good or bad: the cause says.
    Ended,
    /// Its process died in the middle.
    Interrupted,
    /// It was called off.
    Cancelled,
}

impl State {
    /// Whether nothing more happens to the job.
    pub fn is_final(self) -> bool {
        matches!(self, State::Ended | State::Interrupted | State::Cancelled)
    }
}

/// One job as it stands on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRecord {
    /// Always written as 1.
    pub schema: u32,
    /// The job's id, which is also its file's name.
    pub job: String,
    /// What became of it.
    pub state: State,
    /// The step it reached, such as `download`.
    pub step: String,
    /// The version it is about, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<PackageVersion>,
    /// Why it is in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Who asked for it, such as `check`.
    pub by: String,
    /// When it began.
    pub started_at: Timestamp,
    /// When this was written.
    pub updated_at: Timestamp,
    /// The process that runs it.
    pub identity: ProcessIdentity,
}

impl Document for JobRecord {
    const SCHEMA: u32 = 1;
    const NAME: &'static str = "job record";
}

/// Why the journal was not kept or read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Not a name that a file can have.
    #[error("`{job}` is no job id: use 1 to 64 letters, digits and dashes")]
    BadId {
        /// What was given.
        job: String,
    },
    /// Such a job is already recorded.
    #[error("job {job} is already recorded at {path}: a job id is used once")]
    Exists {
        /// The job.
        job: String,
        /// Its record.
        path: PathBuf,
    },
    /// The folder of jobs cannot be read.
    #[error("listing {path}: {source}")]
    List {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A record cannot be read or written.
    #[error(transparent)]
    Document(#[from] DocumentError),
}

impl Report for JournalError {
    fn code(&self) -> &'static str {
        match self {
            JournalError::BadId { .. } => "JOB_ID_INVALID",
            JournalError::Exists { .. } => "JOB_EXISTS",
            JournalError::List { .. } => "JOURNAL_LIST",
            JournalError::Document(error) => error.code(),
        }
    }
    fn exit(&self) -> Exit {
        Exit::Failed
    }
    fn retry(&self) -> bool {
        matches!(self, JournalError::Document(error) if error.retry())
    }
}

/// Whether a text can be the id of a job: it names a file and a folder.
pub fn is_job_id(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && !text.starts_with('-')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// The journal of one job. What was recorded is on disk when the call returns.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    record: JobRecord,
}

impl Journal {
    /// Begins the journal of a job; nothing is on disk before the first [`Journal::record`].
    ///
    /// # Errors
    /// [`JournalError::BadId`], [`JournalError::Exists`]
    pub fn open(
        home: &Home,
        job: &str,
        by: &str,
        identity: &ProcessIdentity,
    ) -> Result<Journal, JournalError> {
        if !is_job_id(job) {
            return Err(JournalError::BadId {
                job: job.to_owned(),
            });
        }
        let path = home.jobs().join(format!("{job}.json"));
        if path.exists() {
            return Err(JournalError::Exists {
                job: job.to_owned(),
                path,
            });
        }
        let now = clock::now();
        Ok(Journal {
            path,
            record: JobRecord {
                schema: JobRecord::SCHEMA,
                job: job.to_owned(),
                state: State::Waiting,
                step: String::new(),
                version: None,
                cause: None,
                by: by.to_owned(),
                started_at: now,
                updated_at: now,
                identity: identity.clone(),
            },
        })
    }

    /// Takes up the record of an earlier job, to say what became of it.
    ///
    /// # Errors
    /// [`JournalError::BadId`]
    pub fn resume(home: &Home, record: JobRecord) -> Result<Journal, JournalError> {
        if !is_job_id(&record.job) {
            return Err(JournalError::BadId { job: record.job });
        }
        Ok(Journal {
            path: home.jobs().join(format!("{}.json", record.job)),
            record,
        })
    }

    /// Names the version that the job is about, from the next record on.
    pub fn set_version(&mut self, version: &PackageVersion) {
        self.record.version = Some(version.clone());
    }

    /// Writes how far the job came.
    ///
    /// # Errors
    /// [`JournalError::Document`]
    pub fn record(
        &mut self,
        state: State,
        step: &str,
        cause: Option<&str>,
    ) -> Result<(), JournalError> {
        self.record.state = state;
        self.record.step = step.to_owned();
        self.record.cause = cause.map(str::to_owned);
        self.record.updated_at = clock::now();
        document::write(&self.path, &self.record)?;
        Ok(())
    }

    /// The job as last recorded.
    pub fn current(&self) -> &JobRecord {
        &self.record
    }
}

/// All recorded jobs, the oldest first.
///
/// # Errors
/// [`JournalError::List`], [`JournalError::Document`]
pub fn all(home: &Home) -> Result<Vec<JobRecord>, JournalError> {
    let path = home.jobs();
    let failed = |source| JournalError::List {
        path: path.clone(),
        source,
    };
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut records = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let Some(job) = name.to_str().and_then(|name| name.strip_suffix(".json")) else {
            continue;
        };
        // One that cannot be read tells nothing, and must not hide the others: [`unreadable`] names it.
        if is_job_id(job)
            && let Ok(Some(record)) = document::read::<JobRecord>(&path.join(&name))
        {
            records.push(record);
        }
    }
    records.sort_by(|a, b| (a.started_at, &a.job).cmp(&(b.started_at, &b.job)));
    Ok(records)
}

/// What is wrong with each record that cannot be read: a newer program's, or a damaged one.
///
/// # Errors
/// The folder cannot be read.
pub fn unreadable(home: &Home) -> Result<Vec<DocumentError>, JournalError> {
    let path = home.jobs();
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(JournalError::List { path, source }),
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    let records = names.filter(|name| {
        let job = name.to_str().and_then(|name| name.strip_suffix(".json"));
        job.is_some_and(is_job_id)
    });
    Ok(records
        .filter_map(|name| document::read::<JobRecord>(&path.join(name)).err())
        .collect())
}

/// The job that was recorded last, and no other file is read for it. `None` where no job was.
///
/// # Errors
/// As [`all`].
pub fn latest(home: &Home) -> Result<Option<JobRecord>, JournalError> {
    let path = home.jobs();
    let failed = |source| JournalError::List {
        path: path.clone(),
        source,
    };
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut newest = None;
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let job = name.to_str().and_then(|name| name.strip_suffix(".json"));
        if job.is_some_and(is_job_id)
            && let Ok(written) = entry.metadata().and_then(|metadata| metadata.modified())
        {
            newest = newest.max(Some((written, entry.path())));
        }
    }
    match newest {
        Some((_, path)) => Ok(document::read(&path)?),
        None => Ok(None),
    }
}

impl JobRecord {
    /// The job as it stands for who reads it now: without an end and without its process, it was interrupted, though no later
    /// job has noted that yet.
    pub fn as_it_is(mut self) -> JobRecord {
        if !self.state.is_final() && !self.identity.is_alive() {
            self.state = State::Interrupted;
            self.cause = Some(PROCESS_ENDED.to_owned());
        }
        self
    }
}

/// The jobs without an end, the oldest first. Who holds the updater lock knows that none of them still runs.
///
/// # Errors
/// As [`all`].
pub fn unfinished(home: &Home) -> Result<Vec<JobRecord>, JournalError> {
    let mut records = all(home)?;
    records.retain(|record| !record.state.is_final());
    Ok(records)
}

/// Removes the records of all but the newest `keep` finished jobs. Says how many went.
///
/// # Errors
/// As [`all`], and [`JournalError::List`] for one that cannot be removed.
pub fn prune(home: &Home, keep: usize, now: Timestamp) -> Result<usize, JournalError> {
    let mut finished: Vec<JobRecord> = all(home)?
        .into_iter()
        .filter(|record| record.state.is_final())
        .collect();
    // What a clock that was ahead has written is not the newest for it.
    finished.sort_by_key(|record| record.started_at <= now);
    let surplus = finished.len().saturating_sub(keep);
    for record in &finished[..surplus] {
        let path = home.jobs().join(format!("{}.json", record.job));
        files::remove_durably(&path).map_err(|source| JournalError::List { path, source })?;
    }
    Ok(surplus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::home;

    #[test]
    fn a_job_is_unfinished_until_it_ends_whatever_the_end() {
        let (_folder, home) = home();
        let me = ProcessIdentity::current().unwrap();
        for (job, end) in [
            ("a", State::Ended),
            ("b", State::Interrupted),
            ("c", State::Cancelled),
        ] {
            let mut journal = Journal::open(&home, job, "check", &me).unwrap();
            assert!(unfinished(&home).unwrap().is_empty());
            journal.record(State::Started, "feed", None).unwrap();
            journal.set_version(&PackageVersion::new(1, 2, 3));
            journal.record(State::Waiting, "verdict", None).unwrap();
            let open = unfinished(&home).unwrap();
            assert_eq!(open.len(), 1);
            assert_eq!(
                (open[0].job.as_str(), open[0].step.as_str()),
                (job, "verdict")
            );
            assert_eq!(open[0].version, Some(PackageVersion::new(1, 2, 3)));
            let mut later = Journal::resume(&home, open[0].clone()).unwrap();
            later.record(end, "verdict", Some("as told")).unwrap();
            assert!(unfinished(&home).unwrap().is_empty());
        }
        assert_eq!(all(&home).unwrap().len(), 3);
    }

    #[test]
    fn ids_that_are_paths_or_used_are_refused() {
        let (_folder, home) = home();
        let me = ProcessIdentity::current().unwrap();
        for bad in ["", "..", "a/b", "-x", "a.b", &"x".repeat(65)] {
            assert!(
                matches!(
                    Journal::open(&home, bad, "check", &me),
                    Err(JournalError::BadId { .. })
                ),
                "{bad:?}"
            );
        }
        Journal::open(&home, "one", "check", &me)
            .unwrap()
            .record(State::Ended, "feed", None)
            .unwrap();
        assert!(matches!(
            Journal::open(&home, "one", "check", &me),
            Err(JournalError::Exists { .. })
        ));
    }

    #[test]
    fn a_broken_record_is_named_and_hides_no_other() {
        let (_folder, home) = home();
        let me = ProcessIdentity::current().unwrap();
        let mut journal = Journal::open(&home, "good", "check", &me).unwrap();
        journal.record(State::Started, "feed", None).unwrap();
        fs::write(home.jobs().join("x.json"), "[]").unwrap();
        fs::write(home.jobs().join("y.json"), r#"{"schema":99}"#).unwrap();
        assert_eq!(unfinished(&home).unwrap().len(), 1);
        assert_eq!(prune(&home, 0, clock::now()).unwrap(), 0);
        let mut named: Vec<String> = unreadable(&home)
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        named.sort();
        assert!(
            matches!(&named[..], [x, y] if x.contains("x.json") && y.contains("y.json")),
            "{named:?}"
        );
        assert!(home.jobs().join("x.json").exists() && home.jobs().join("y.json").exists());
    }

    #[test]
    fn what_a_clock_that_was_ahead_has_written_goes_first() {
        let (_folder, home) = home();
        let me = ProcessIdentity::current().unwrap();
        let now = clock::now();
        for (job, hours) in [("ahead-1", 9000), ("ahead-2", 9001), ("today", 0)] {
            let mut journal = Journal::open(&home, job, "check", &me).unwrap();
            journal.record.started_at = now + jiff::SignedDuration::from_hours(hours);
            journal.record(State::Ended, "feed", None).unwrap();
        }
        assert_eq!(prune(&home, 1, now).unwrap(), 2);
        let left = all(&home).unwrap();
        assert_eq!(
            left.iter().map(|it| it.job.as_str()).collect::<Vec<_>>(),
            ["today"]
        );
    }

    #[test]
    fn pruning_spares_the_newest_and_the_unfinished() {
        let (_folder, home) = home();
        let me = ProcessIdentity::current().unwrap();
        let base = Timestamp::from_second(1_700_000_000).unwrap();
        for (index, state) in [State::Started, State::Ended, State::Ended, State::Cancelled]
            .into_iter()
            .enumerate()
        {
            let mut journal = Journal::open(&home, &format!("job-{index}"), "check", &me).unwrap();
            journal.record.started_at = base + jiff::SignedDuration::from_secs(index as i64);
            journal.record(state, "feed", None).unwrap();
        }
        assert_eq!(prune(&home, 1, clock::now()).unwrap(), 2);
        let left: Vec<String> = all(&home)
            .unwrap()
            .into_iter()
            .map(|record| record.job)
            .collect();
        assert_eq!(left, ["job-0", "job-3"]);
        assert!(all(&Home::at("/nonexistent")).unwrap().is_empty());
    }
}
