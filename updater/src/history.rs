//! `history`: what the journal says about earlier jobs. Reads only.

use serde::Serialize;
use staging::home::Home;
use staging::journal::{self, JobRecord, State};
use staging::report::{Exit, Failure, Format, line, note};

/// A job, and whether it still runs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Job {
    #[serde(flatten)]
    record: JobRecord,
    /// Whether its process runs now.
    running: bool,
}

/// What `history` answers in JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    schema: u32,
    jobs: Vec<Job>,
}

/// Prints the newest `limit` jobs, the newest first.
///
/// # Errors
/// A journal that cannot be read.
pub fn history(home: &Home, limit: usize, format: Format) -> Result<Exit, Failure> {
    let jobs = newest(journal::all(home)?, limit, &|record| {
        record.identity.is_alive()
    });
    for unreadable in journal::unreadable(home)? {
        note(&format!("warning: {unreadable}"));
    }
    match format {
        Format::Json => {
            let answer = Answer { schema: 1, jobs };
            line(&serde_json::to_string(&answer).unwrap_or_default());
        }
        Format::Text if jobs.is_empty() => line("no job has run in this home"),
        Format::Text => jobs.iter().for_each(|job| line(&shown(job))),
    }
    Ok(Exit::Done)
}

/// The newest first. A job without an end whose process is gone was interrupted, though no later job has noted it yet.
fn newest(
    mut records: Vec<JobRecord>,
    limit: usize,
    alive: &dyn Fn(&JobRecord) -> bool,
) -> Vec<Job> {
    records.reverse();
    records.truncate(limit);
    records
        .into_iter()
        .map(|mut record| {
            let running = !record.state.is_final() && alive(&record);
            if !running && !record.state.is_final() {
                record.state = State::Interrupted;
                record.cause = Some(journal::PROCESS_ENDED.to_owned());
            }
            Job { record, running }
        })
        .collect()
}

fn shown(job: &Job) -> String {
    let record = &job.record;
    let state = match record.state {
        State::Waiting | State::Started if job.running => "runs",
        State::Waiting => "waiting",
        State::Started => "started",
        State::Ended => "ended",
        State::Interrupted => "interrupted",
        State::Cancelled => "cancelled",
    };
    let version = record
        .version
        .as_ref()
        .map_or_else(|| "-".to_owned(), ToString::to_string);
    let cause = record
        .cause
        .as_ref()
        .map(|cause| format!(": {cause}"))
        .unwrap_or_default();
    format!(
        "{}  {}  {version}  {state} at {}{cause}",
        record.started_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        record.job,
        record.step
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use staging::ownership::ProcessIdentity;

    fn record(number: i64, state: State) -> JobRecord {
        let at = jiff::Timestamp::from_second(number).unwrap();
        JobRecord {
            schema: 1,
            job: format!("job-{number}"),
            state,
            step: "stage".to_owned(),
            version: Some("1.2.3".parse().unwrap()),
            cause: None,
            by: "check".to_owned(),
            started_at: at,
            updated_at: at,
            identity: ProcessIdentity {
                pid: 1,
                start_time: 1,
                boot_id: "b".to_owned(),
                nonce: "n".to_owned(),
            },
        }
    }

    #[test]
    fn the_newest_come_first_and_what_has_no_end_and_no_process_was_interrupted() {
        let records = vec![
            record(1, State::Ended),
            record(2, State::Started),
            record(3, State::Waiting),
            record(4, State::Cancelled),
        ];
        let jobs = newest(records.clone(), 10, &|record| record.job == "job-3");
        let told: Vec<_> = jobs
            .iter()
            .map(|job| (job.record.job.as_str(), job.record.state, job.running))
            .collect();
        assert_eq!(
            told,
            [
                ("job-4", State::Cancelled, false),
                ("job-3", State::Waiting, true),
                ("job-2", State::Interrupted, false),
                ("job-1", State::Ended, false),
            ]
        );
        // A final record's process is not asked for: its number may be another's by now.
        assert!(newest(records, 1, &|_| true)[0].record.state == State::Cancelled);
    }

    #[test]
    fn a_line_says_when_which_what_and_why() {
        let jobs = newest(vec![record(0, State::Started)], 1, &|_| false);
        assert_eq!(
            shown(&jobs[0]),
            "1970-01-01T00:00:00Z  job-0  1.2.3  interrupted at stage: its process ended before the job did"
        );
    }
}
