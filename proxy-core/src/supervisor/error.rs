//! Why a supervisor does not start.

use staging::document::DocumentError;
use staging::home::HomeError;
use staging::locks::LockError;
use staging::ownership::OwnershipError;
use staging::report::{Exit, Report};

use crate::config::ConfigError;

use super::api::ApiError;
use super::listener::ListenError;
use super::snapshot::SealError;

/// Why a supervisor does not start.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// The home cannot be used.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// Another supervisor has this home.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// This process's own identity is not known.
    #[error(transparent)]
    Identity(#[from] OwnershipError),
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration cannot be kept.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// An address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// No control socket.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// `run/supervisor.json` cannot be written.
    #[error(transparent)]
    Announce(#[from] DocumentError),
    /// The system refused something basic.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl SupervisorError {
    pub(super) fn system(what: &'static str) -> impl Fn(std::io::Error) -> Self + Copy {
        move |source| Self::System { what, source }
    }
}

impl Report for SupervisorError {
    fn code(&self) -> &'static str {
        match self {
            Self::Home(error) => error.code(),
            Self::Lock(error) => error.code(),
            Self::Identity(error) => error.code(),
            Self::Config(error) => error.code(),
            Self::Announce(error) => error.code(),
            Self::Api(ApiError::Home(error)) => error.code(),
            Self::Listen(error) => error.code(),
            Self::Api(_) => "CONTROL_SOCKET",
            Self::Seal(_) | Self::System { .. } => "SYSTEM",
        }
    }

    fn exit(&self) -> Exit {
        match self {
            Self::Home(error) => error.exit(),
            Self::Lock(error) => error.exit(),
            Self::Identity(error) => error.exit(),
            Self::Config(error) => error.exit(),
            Self::Announce(error) => error.exit(),
            Self::Api(ApiError::Home(error)) => error.exit(),
            Self::Listen(error) => error.exit(),
            _ => Exit::Failed,
        }
    }

    fn retry(&self) -> bool {
        match self {
            Self::Lock(error) => error.retry(),
            Self::Listen(error) => error.retry(),
            Self::System { .. } => true,
            _ => false,
        }
    }
}
