//! The thread that writes. The main loop never waits for a disk: it hands papers over and hears when they are filed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use control::types::{RolloutRequest, Status, Verdict};
use staging::home::Home;
use staging::locks::SupervisorLock;
use staging::ownership::SupervisorRecord;
use staging::version::PackageVersion;
use tokio::sync::mpsc::UnboundedSender;

use super::record;
use super::rollout::{Conclusion, Target};

/// Something to write down.
pub enum Paper {
    /// The end of a rollout.
    Conclusion(Box<Conclusion>, Box<RolloutRequest>),
    /// A generation serves outside any rollout.
    Proven(Target),
    /// The status, for `status` without a supervisor and for the workers' `/status`.
    Snapshot(Box<Status>),
    /// Who supervises: written beside the lock by who holds it.
    Announcement(Arc<SupervisorLock>, Box<SupervisorRecord>),
}

/// What was written.
pub enum Filed {
    /// The verdict as it is now on disk.
    Verdict(Verdict),
    /// A version was noted as serving; this one is pending.
    Proven {
        /// The version that waits for its rollout.
        pending: Option<PackageVersion>,
    },
}

/// The writing thread.
pub struct Clerk {
    desk: Option<mpsc::Sender<Paper>>,
    /// How many papers were handed over and are not filed yet.
    waiting: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Clerk {
    /// Starts writing into `home`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(home: Home, filed: UnboundedSender<Filed>) -> std::io::Result<Self> {
        let (desk, papers) = mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&waiting);
        let thread = std::thread::Builder::new()
            .name("clerk".into())
            .spawn(move || work(&home, &papers, &filed, &counted))?;
        Ok(Self {
            desk: Some(desk),
            waiting,
            thread: Some(thread),
        })
    }

    /// Hands over a paper. They are filed in order; of several snapshots only the last.
    pub fn file(&self, paper: Paper) {
        // The thread ends only when the desk does, in `finish`.
        if let Some(desk) = &self.desk {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let _ = desk.send(paper);
        }
    }

    /// Whether everything is filed: the disk holds all that was decided.
    pub fn is_idle(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0
    }

    /// Waits until everything is filed.
    pub fn finish(&mut self) {
        drop(self.desk.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn work(
    home: &Home,
    papers: &mpsc::Receiver<Paper>,
    filed: &UnboundedSender<Filed>,
    waiting: &AtomicUsize,
) {
    while let Ok(first) = papers.recv() {
        let mut snapshot = None;
        let mut taken = 0;
        for paper in std::iter::once(first).chain(papers.try_iter()) {
            taken += 1;
            let done = match paper {
                Paper::Conclusion(conclusion, request) => {
                    Filed::Verdict(record::conclude(home, &conclusion, &request))
                }
                Paper::Proven(target) => match record::proven(home, &target.version) {
                    Ok(pending) => Filed::Proven { pending },
                    Err(failure) => {
                        tracing::warn!(code = failure.code, "{}", failure.message);
                        Filed::Proven { pending: None }
                    }
                },
                Paper::Announcement(lock, record) => {
                    if let Err(error) = lock.announce(home, &record) {
                        tracing::warn!("{error}");
                    }
                    continue;
                }
                Paper::Snapshot(status) => {
                    snapshot = Some(status);
                    continue;
                }
            };
            // The main loop is gone only when nobody waits for this any more.
            let _ = filed.send(done);
        }
        if let Some(status) = snapshot {
            write_snapshot(home, &status);
        }
        waiting.fetch_sub(taken, Ordering::SeqCst);
    }
}

fn write_snapshot(home: &Home, status: &Status) {
    let written = serde_json::to_vec_pretty(status)
        .map_err(std::io::Error::other)
        .and_then(|bytes| staging::files::write_atomic(&home.snapshot_file(), &bytes));
    if let Err(error) = written {
        tracing::warn!(%error, file = %home.snapshot_file().display(), "cannot write the snapshot");
    }
}
