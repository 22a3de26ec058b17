//! SIGINT and SIGTERM: what runs is stopped in an orderly way, and the journal says that it was called off.

use std::future::Future;

use staging::report::{Exit, Failure};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for the two signals.
#[derive(Debug)]
pub struct Interrupt {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupt {
    /// Begins to listen; from now on the signals no longer end the process by themselves.
    ///
    /// # Errors
    /// Whatever the system says.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Ends when one of the signals comes.
    pub async fn came(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Runs `work` unless a signal comes first; then `work` is dropped.
    ///
    /// # Errors
    /// [`called_off`]
    pub async fn unless<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            done = work => done,
            () = self.came() => Err(called_off()),
        }
    }
}

/// What a job ends with that a signal called off.
pub fn called_off() -> Failure {
    Failure::new(
        CODE,
        "a signal called the check off; the next one takes up what is here already",
        Exit::Deferred,
        true,
    )
}

/// The code of [`called_off`].
pub const CODE: &str = "CALLED_OFF";
