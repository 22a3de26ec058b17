//! Signals: blocked before anything else runs, read as values.

use std::task::{Context, Poll};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tokio::io::unix::AsyncFd;

use crate::descriptors::watch;

/// What a person or a service manager may say by signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// SIGTERM, SIGINT: finish and stop; twice = now.
    Stop,
    /// SIGHUP: the same version with the configuration as it now is.
    Reload,
    /// SIGUSR2: the pending version.
    Update,
}

/// The blocked signals, not yet read.
pub struct Blocked(SigSet);

impl Blocked {
    /// Blocks them for this thread and every one started after. Call it first: until then SIGUSR2 and SIGHUP kill.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn block() -> std::io::Result<Self> {
        let mut set = SigSet::empty();
        for signal in [
            Signal::SIGTERM,
            Signal::SIGINT,
            Signal::SIGHUP,
            Signal::SIGUSR2,
        ] {
            set.add(signal);
        }
        set.thread_block()?;
        Ok(Self(set))
    }

    /// Reads them in the current runtime.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn listen(&self) -> std::io::Result<Signals> {
        let fd = SignalFd::with_flags(&self.0, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Signals(watch(fd)?))
    }
}

/// Signals as they come.
pub struct Signals(AsyncFd<SignalFd>);

impl Signals {
    /// The next one.
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Said> {
        loop {
            let mut guard = match self.0.poll_read_ready(context) {
                Poll::Ready(Ok(guard)) => guard,
                // A signalfd does not break; were it to, pending signals stay pending.
                Poll::Ready(Err(_)) | Poll::Pending => return Poll::Pending,
            };
            match self.0.get_ref().read_signal() {
                Ok(Some(info)) => {
                    let said = match i32::try_from(info.ssi_signo).map(Signal::try_from) {
                        Ok(Ok(Signal::SIGHUP)) => Said::Reload,
                        Ok(Ok(Signal::SIGUSR2)) => Said::Update,
                        _ => Said::Stop,
                    };
                    return Poll::Ready(said);
                }
                Ok(None) | Err(nix::errno::Errno::EAGAIN) => guard.clear_ready(),
                Err(_) => {}
            }
        }
    }
}
