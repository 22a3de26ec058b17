//! The update job: from a signed feed to a rollout with a verdict.
//!
//! [`job`] is one check, [`update`] its main path, top to bottom. [`look`] asks the [`feed`], and [`policy`] decides; [`bring`] puts
//! a release into a staging folder under two [`deadline`]s, [`ask`] asks the supervisor and believes what it sees.

pub mod adopt;
pub mod answer;
pub mod ask;
pub mod before;
pub mod bring;
pub mod cli;
pub mod deadline;
pub mod feed;
pub mod fleet;
pub mod gc;
pub mod history;
pub mod hold;
pub mod init;
pub mod interrupt;
pub mod job;
pub mod look;
pub mod policy;
pub mod progress;
pub mod retry;
pub mod selftest;
pub mod settings;
pub mod slot;
pub mod sound;
pub mod update;
pub mod verify;
pub mod window;
