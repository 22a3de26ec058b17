//! One relay thread: a single-threaded runtime and everything that its connections share.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;

use super::counters::Counters;
use super::tls::Tls;
use super::upstream::Upstreams;
use super::{Adopted, Phase, RelayError, connection, http2};
use crate::config::Config;
use crate::gateway::Gateway;

/// How often upstream connections that nobody used for long are closed.
const SWEEP: Duration = Duration::from_secs(15);

/// What a thread is started with.
pub(super) struct Setup {
    pub(super) number: usize,
    pub(super) config: Arc<Config>,
    pub(super) gateway: Arc<Gateway>,
    pub(super) counters: Arc<Counters>,
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) tls: Tls,
    pub(super) head_timeout: Duration,
}

/// What the connections of one thread share.
pub(super) struct Thread {
    pub(super) gateway: Arc<Gateway>,
    pub(super) counters: Arc<Counters>,
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) upstreams: Upstreams,
    /// The upstream connections of requests that are in HTTP/2 on one side at least.
    pub(super) http2: http2::Upstreams,
    /// How long a client may take for a head, from its first byte to its last; and, once draining, for its first byte.
    pub(super) head_timeout: Duration,
    pub(super) config: Arc<Config>,
}

impl Thread {
    pub(super) fn new(setup: Setup) -> Self {
        Self {
            gateway: setup.gateway,
            counters: setup.counters,
            phase: setup.phase,
            http2: http2::Upstreams::new(setup.tls.clone()),
            upstreams: Upstreams::new(setup.tls),
            head_timeout: setup.head_timeout,
            config: setup.config,
        }
    }
}

/// Starts the thread; it ends when every sender of `sockets` is gone.
pub(super) fn start(
    setup: Setup,
    sockets: mpsc::UnboundedReceiver<Adopted>,
) -> Result<(), RelayError> {
    let number = setup.number;
    let runtime = Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|source| RelayError::BuildRuntime {
            thread: number,
            source,
        })?;
    std::thread::Builder::new()
        .name(format!("relay-{number}"))
        .spawn(move || {
            let thread = Rc::new(Thread::new(setup));
            LocalSet::new().block_on(&runtime, serve_all(thread, sockets));
            // A resolver thread may hang in the system's resolver: nobody waits for it.
            runtime.shutdown_background();
        })
        .map_err(|source| RelayError::StartThread {
            thread: number,
            source,
        })?;
    Ok(())
}

async fn serve_all(thread: Rc<Thread>, mut sockets: mpsc::UnboundedReceiver<Adopted>) {
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        let Adopted { socket, admitted } = tokio::select! {
            adopted = sockets.recv() => match adopted {
                Some(adopted) => adopted,
                None => return,
            },
            _ = sweep.tick() => {
                thread.upstreams.sweep();
                thread.http2.sweep();
                continue;
            }
        };
        let thread = Rc::clone(&thread);
        tokio::task::spawn_local(async move {
            connection::serve(&thread, socket).await;
            drop(admitted);
        });
    }
}
