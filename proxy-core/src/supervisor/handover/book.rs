//! The book of handovers: how far the one under way is, or how the last one ended. Pure.

use control::supervisor::{Handover, HandoverPhase};
use control::types::By;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use staging::report::Failure;
use staging::version::PackageVersion;

use super::super::record::shortened;

/// The handovers of this supervisor.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Book {
    last: Option<Handover>,
}

impl Book {
    /// A handover begins. Its number.
    pub fn begin(
        &mut self,
        now: Timestamp,
        from: &PackageVersion,
        to: &PackageVersion,
        by: By,
    ) -> u64 {
        let id = self.last.as_ref().map_or(1, |last| last.id + 1);
        self.last = Some(Handover {
            id,
            from: from.clone(),
            to: to.clone(),
            by,
            at: now,
            phase: HandoverPhase::Waiting,
            code: None,
            reason: None,
            frozen_micros: None,
        });
        id
    }

    /// It came to another phase.
    pub fn turn(&mut self, now: Timestamp, phase: HandoverPhase, reason: Option<String>) {
        if let Some(last) = &mut self.last {
            last.at = now;
            last.phase = phase;
            last.reason = reason;
        }
    }

    /// It ended without a move.
    pub fn end(&mut self, now: Timestamp, phase: HandoverPhase, why: &Failure) {
        if let Some(last) = &mut self.last {
            last.at = now;
            last.phase = phase;
            last.code = Some(why.code.clone());
            last.reason = Some(shortened(&why.message));
        }
    }

    /// It ended with the move: for so long nobody was heard.
    pub fn moved(&mut self, now: Timestamp, frozen_micros: u64) {
        if let Some(last) = &mut self.last {
            last.at = now;
            last.phase = HandoverPhase::Moved;
            last.reason = None;
            last.frozen_micros = Some(frozen_micros);
        }
    }

    /// The one under way, or the last one.
    pub fn last(&self) -> Option<&Handover> {
        self.last.as_ref()
    }
}
