//! The supervisor goes on as another program, in place: same process, same children, same listeners.
//!
//! ```text
//!   asked ─▶ waiting ─▶ checking ─▶ (answers are flushed) ─▶ freeze, execve ─▶ moved
//!              │            │                                      │
//!              │            ├─ it knows no such state ─▶ pausing ──┘ started anew, with nothing in flight
//!              ▼            ▼
//!           deferred      failed: this program supervises on
//! ```
//!
//! `conditions` says when, `state` what is handed over, `check` tries it out, `exec` does it, `resume` is the other
//! side, `pause` is the way for a program that knows no such state.

mod book;
mod check;
mod conditions;
mod exec;
mod freeze;
pub(super) mod memory;
mod pause;
mod resume;
mod state;

use std::path::PathBuf;
use std::task::{Context, Poll};
use std::time::Duration;

use control::supervisor::{Handover as Record, HandoverPhase, HandoverRequest, Preflight};
use control::types::By;
use staging::report::{Exit, Failure};
use staging::selection;
use staging::version::PackageVersion;
use tokio::sync::oneshot;

use crate::clock::Moment;

use super::process::Process;
use super::state::Supervisor;

pub use book::Book;
pub use check::check;
pub use exec::give_back;
pub(super) use exec::own_executable;
pub use pause::AdmissionState;
pub(super) use resume::strays;
pub use resume::{Handed, resume};

use check::Check;
use conditions::{Checked, Facts};
use pause::Pause;

/// How long whoever asked something may take to read the answer before it is cut.
const ANSWERS: Duration = Duration::from_millis(250);

/// How often it is looked whether the last word is written.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// What is under way, and what was.
#[derive(Default)]
pub struct Handover {
    /// How it went, for people.
    pub book: Book,
    task: Option<Task>,
    /// Whoever asked whether it would go.
    preflights: Vec<Asking>,
    /// Children that nobody waits for any more but who have to be reaped.
    strays: Vec<Process>,
}

/// A handover under way.
struct Task {
    to: PackageVersion,
    program: PathBuf,
    /// It waits for its time; one that a person asked for does not.
    patient: bool,
    stage: Stage,
}

enum Stage {
    Waiting,
    Checking(Check),
    Answering { until: Moment },
    Pausing(Pause),
}

/// A question whether it would go.
struct Asking {
    to: PackageVersion,
    facts: Facts,
    check: Option<Check>,
    reply: Option<oneshot::Sender<Preflight>>,
}

impl Handover {
    /// Begins in a process that had children before it: nobody else reaps them.
    pub fn with_strays(strays: Vec<Process>) -> Self {
        Self::resumed(Book::default(), strays)
    }

    /// Goes on with the books of the image before, whose other children are to be reaped.
    fn resumed(book: Book, strays: Vec<Process>) -> Self {
        Self {
            book,
            strays,
            ..Self::default()
        }
    }

    /// The one under way, or the last one.
    pub fn record(&self) -> Option<&Record> {
        self.book.last()
    }

    /// Whether something ended that is waited for.
    pub fn poll(&mut self, context: &mut Context<'_>) -> bool {
        let mut woken = false;
        if let Some(Task { stage, .. }) = &mut self.task
            && let Stage::Checking(check) = stage
        {
            woken |= check.poll(context);
        }
        for asking in &mut self.preflights {
            woken |= asking
                .check
                .as_mut()
                .is_some_and(|check| check.poll(context));
        }
        self.strays
            .retain(|stray| matches!(stray.poll_exit(context), Poll::Pending));
        woken
    }

    /// When something is due.
    pub fn next_deadline(&self, now: Moment) -> Option<Moment> {
        let task = self.task.as_ref().and_then(|task| match &task.stage {
            Stage::Waiting => None,
            Stage::Checking(check) => check.next_deadline(),
            Stage::Answering { .. } => Some(now + LOOK_AGAIN),
            Stage::Pausing(pause) => Some(pause.next_deadline(now)),
        });
        let asked = self
            .preflights
            .iter()
            .filter_map(|asking| asking.check.as_ref()?.next_deadline());
        asked.chain(task).min()
    }
}

impl Supervisor {
    /// Somebody asks for a handover; its number.
    ///
    /// # Errors
    /// When it is not begun: nothing has changed.
    pub(super) fn ask_handover(&mut self, request: &HandoverRequest) -> Result<Record, Failure> {
        if request
            .nonce
            .as_ref()
            .is_some_and(|nonce| *nonce != self.identity.nonce)
        {
            return Err(Failure::new(
                "OWNERSHIP_CHANGED",
                "another supervisor was meant: this one started later; nothing was changed, look at the status and ask again",
                Exit::Deferred,
                true,
            ));
        }
        let to = self.handover_target(request.version.as_deref())?;
        if self.handover.task.is_some() {
            return Err(deferred("the supervisor already moves to another program"));
        }
        if let Some(why) = self.facts().unsettled() {
            return Err(deferred(why));
        }
        self.begin_handover(to, request.by, false)
    }

    /// After a rollout was kept: the supervisor follows, when nothing stands in the way.
    pub(super) fn follow_selection(&mut self) {
        let Ok(Some(selected)) = selection::read(&self.home) else {
            return;
        };
        if let Some(task) = &self.handover.task
            && task.patient
            && task.to != selected.version
        {
            self.abandon_handover("another version was selected");
        }
        if !self.config.config.rollout.refresh_supervisor || selected.version == self.origin.version
        {
            return;
        }
        if self.handover.task.is_none()
            && let Err(failure) = self.begin_handover(selected.version, By::Selection, true)
        {
            tracing::warn!(code = failure.code, "{}", failure.message);
        }
    }

    /// Whether a handover waits until nothing is in flight: admission is its own then.
    pub(super) fn is_pausing(&self) -> bool {
        let stage = self.handover.task.as_ref().map(|task| &task.stage);
        matches!(stage, Some(Stage::Pausing(_)))
    }

    /// Whether it would go, for who asked; the answer may take as long as a check.
    pub(super) fn ask_preflight(
        &mut self,
        version: Option<&str>,
        reply: oneshot::Sender<Result<oneshot::Receiver<Preflight>, Failure>>,
    ) {
        let asked = self.handover_target(version).map(|to| {
            let facts = Facts {
                program: self.program_of(&to).map(drop),
                ..self.facts()
            };
            let check = match &facts.program {
                Ok(()) => self.start_check(&to).map_err(Checked::Failed),
                Err(why) => Err(Checked::Failed(why.clone())),
            };
            let (sender, receiver) = oneshot::channel();
            let (check, checked) = match check {
                Ok(check) => (Some(check), None),
                Err(checked) => (None, Some(checked)),
            };
            self.handover.preflights.push(Asking {
                to,
                facts: Facts { checked, ..facts },
                check,
                reply: Some(sender),
            });
            receiver
        });
        let _ = reply.send(asked);
    }

    /// Takes every step that is due. Called when all else of a turn has taken effect.
    pub(super) fn advance_handover(&mut self, now: Moment) {
        self.answer_preflights(now);
        let Some(mut task) = self.handover.task.take() else {
            return;
        };
        let facts = self.facts();
        if facts.stopping {
            self.give_up(
                task,
                HandoverPhase::Deferred,
                deferred("the supervisor is stopping"),
            );
            return;
        }
        let unsettled = facts.unsettled();
        match (&mut task.stage, unsettled) {
            (Stage::Waiting, Some(_)) => {}
            (Stage::Waiting, None) => match self.start_check(&task.to) {
                Ok(check) => {
                    task.stage = Stage::Checking(check);
                    self.turn_handover(HandoverPhase::Checking, None);
                }
                Err(why) => return self.give_up(task, HandoverPhase::Failed, failed(&why)),
            },
            (_, Some(why)) if task.patient => {
                self.stop_stage(std::mem::replace(&mut task.stage, Stage::Waiting));
                self.turn_handover(HandoverPhase::Waiting, Some(why.to_owned()));
            }
            (_, Some(why)) => return self.give_up(task, HandoverPhase::Deferred, deferred(why)),
            (Stage::Checking(check), None) => {
                check.tick(now);
                match check.outcome() {
                    None => {}
                    Some(Checked::Ready) => {
                        task.stage = Stage::Answering {
                            until: now + ANSWERS,
                        };
                    }
                    Some(Checked::Failed(why)) => {
                        return self.give_up(task, HandoverPhase::Failed, failed(&why));
                    }
                    Some(Checked::Incompatible(why)) => {
                        self.turn_handover(HandoverPhase::Pausing, Some(why));
                        task.stage = Stage::Pausing(self.begin_pause(now));
                    }
                }
            }
            (Stage::Answering { until }, None) => {
                if self.is_all_filed()
                    && (self.answering.count() == 0 || *until <= now)
                    && self.on_event.freeze()
                {
                    self.abandon_preflights();
                    let why = self.become_image(&task.program);
                    self.on_event.thaw();
                    return self.give_up(task, HandoverPhase::Failed, failed(&why));
                }
            }
            (Stage::Pausing(pause), None) => match self.advance_pause(pause, now) {
                pause::Step::Wait => {}
                pause::Step::Late(why) => {
                    return self.give_up(task, HandoverPhase::Deferred, deferred(&why));
                }
                pause::Step::Idle if !self.is_all_filed() => {}
                pause::Step::Idle => {
                    self.abandon_preflights();
                    let why = self.start_anew(&task.program);
                    return self.give_up(task, HandoverPhase::Failed, failed(&why));
                }
            },
        }
        self.handover.task = Some(task);
    }

    fn begin_handover(
        &mut self,
        to: PackageVersion,
        by: By,
        patient: bool,
    ) -> Result<Record, Failure> {
        let program = self.origin.program_of(&self.home, &to)?;
        self.handover
            .book
            .begin(staging::clock::now(), &self.origin.version, &to, by);
        tracing::info!(from = %self.origin.version, %to, ?by, "the supervisor is to move");
        self.handover.task = Some(Task {
            to,
            program,
            patient,
            stage: Stage::Waiting,
        });
        self.handover
            .record()
            .cloned()
            .ok_or_else(|| failed("it is not in the book"))
    }

    /// The version to go on as: the one named, the selected one, or without any this one.
    fn handover_target(&self, version: Option<&str>) -> Result<PackageVersion, Failure> {
        if let Some(text) = version {
            return Ok(text.parse()?);
        }
        let selected = selection::read(&self.home)?.map(|selected| selected.version);
        Ok(selected.unwrap_or_else(|| self.origin.version.clone()))
    }

    /// What is known without looking at the disk.
    fn facts(&self) -> Facts {
        let known = |link: &super::link::Link| link.load.exchanges;
        Facts {
            stopping: self.is_stopping(),
            settled: self.machine.is_settled() && self.effects.is_empty(),
            filing: self.is_filing(),
            program: Ok(()),
            checked: None,
            in_flight: Some(self.links.values().map(known).sum()),
        }
    }

    fn program_of(&self, to: &PackageVersion) -> Result<PathBuf, String> {
        self.origin
            .program_of(&self.home, to)
            .map_err(|failure| failure.message)
    }

    fn start_check(&mut self, to: &PackageVersion) -> Result<Check, String> {
        let program = self.program_of(to)?;
        let state = self.written_state(Moment::now())?;
        Check::start(Moment::now(), &program, self.home.root(), &state)
    }

    fn answer_preflights(&mut self, now: Moment) {
        for asking in &mut self.handover.preflights {
            if let Some(check) = &mut asking.check {
                check.tick(now);
                asking.facts.checked = check.outcome();
            }
            if asking.facts.checked.is_some()
                && let Some(reply) = asking.reply.take()
            {
                // Whoever asked may have gone away.
                let _ = reply.send(asking.facts.preflight(asking.to.clone()));
            }
        }
        self.handover
            .preflights
            .retain(|asking| asking.reply.is_some());
    }

    /// Whether everything that was decided is on disk, and heard of.
    fn is_all_filed(&self) -> bool {
        self.clerk.is_idle() && self.filed.is_empty()
    }

    /// Whoever asked whether it would go learns it by asking again: nobody would end a check that hangs.
    fn abandon_preflights(&mut self) {
        for asking in std::mem::take(&mut self.handover.preflights) {
            self.handover
                .strays
                .extend(asking.check.and_then(Check::abandon));
        }
    }

    fn abandon_handover(&mut self, why: &str) {
        if let Some(task) = self.handover.task.take() {
            self.give_up(task, HandoverPhase::Deferred, deferred(why));
        }
    }

    fn give_up(&mut self, task: Task, phase: HandoverPhase, why: Failure) {
        self.stop_stage(task.stage);
        tracing::warn!(to = %task.to, code = why.code, reason = why.message, "the supervisor does not move");
        self.handover.book.end(staging::clock::now(), phase, &why);
    }

    fn stop_stage(&mut self, stage: Stage) {
        match stage {
            Stage::Waiting | Stage::Answering { .. } => {}
            Stage::Checking(check) => self.handover.strays.extend(check.abandon()),
            Stage::Pausing(_) => self.set_admission(None),
        }
    }

    fn turn_handover(&mut self, phase: HandoverPhase, reason: Option<String>) {
        self.handover
            .book
            .turn(staging::clock::now(), phase, reason);
    }
}

fn deferred(why: &str) -> Failure {
    Failure::new(
        "HANDOVER_DEFERRED",
        format!("{why}; nothing was changed, ask again later"),
        Exit::Deferred,
        true,
    )
}

fn failed(why: &str) -> Failure {
    Failure::new(
        "HANDOVER_FAILED",
        format!("{why}; the supervisor goes on as it was"),
        Exit::Failed,
        false,
    )
}
