//! One relay thread: a single-threaded runtime and everything that its connections share.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;

use super::buffers::Buffers;
use super::counters::Counters;
use super::timeouts::Timeouts;
use super::tls::Tls;
use super::upstream::Upstreams;
use super::{Adopted, Drain, Phase, RelayError, connection, http2};
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
}

/// What the connections of one thread share.
pub(super) struct Thread {
    pub(super) config: Arc<Config>,
    /// The field line that answers get in addition; empty unless configured.
    pub(super) via: String,
    pub(super) gateway: Arc<Gateway>,
    pub(super) counters: Arc<Counters>,
    /// What is to be done with connections between two requests, once it was asked for.
    pub(super) drain: RefCell<Option<Drain>>,
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) buffers: Rc<Buffers>,
    pub(super) timeouts: Rc<Timeouts>,
    pub(super) upstreams: Upstreams,
    /// The upstream connections of requests that are in HTTP/2 on one side at least.
    pub(super) http2: http2::Upstreams,
}

impl Thread {
    pub(super) fn new(setup: Setup) -> Self {
        let via = match setup.config.server.via.as_str() {
            "" => String::new(),
            pseudonym => format!("Via: 1.1 {pseudonym}\r\n"),
        };
        Self {
            config: setup.config,
            via,
            gateway: setup.gateway,
            counters: setup.counters,
            drain: RefCell::new(None),
            phase: setup.phase,
            buffers: Rc::default(),
            timeouts: Rc::default(),
            http2: http2::Upstreams::new(setup.tls.clone()),
            upstreams: Upstreams::new(setup.tls),
        }
    }

    /// Whether every answer from now on is the last one on its connection.
    pub(super) fn is_closing(&self) -> bool {
        matches!(&*self.drain.borrow(), Some(Drain::Close))
    }
}

/// Starts the thread; it ends when every sender of `sockets` is gone, or when everything is to be cut.
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
            // What is left when this returns is dropped with the set: each connection where it stands.
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
    let mut phase = thread.phase.clone();
    phase.mark_changed();
    let timeouts = Rc::clone(&thread.timeouts);
    let mut deadlines = std::pin::pin!(timeouts.run());
    loop {
        tokio::select! {
            changed = phase.changed() => {
                let now = phase.borrow_and_update().clone();
                match now {
                    _ if changed.is_err() => return,
                    Phase::Serving => {}
                    Phase::Aborted => return,
                    Phase::Draining(drain) => {
                        thread.drain.replace(Some(drain));
                        thread.timeouts.wake_all();
                    }
                }
            }
            adopted = sockets.recv() => match adopted {
                Some(Adopted { socket, admitted }) => {
                    let thread = Rc::clone(&thread);
                    tokio::task::spawn_local(async move {
                        connection::serve(&thread, socket).await;
                        drop(admitted);
                    });
                }
                None => return,
            },
            () = deadlines.as_mut() => {}
            () = thread.upstreams.heard() => thread.upstreams.sweep(),
            _ = sweep.tick() => {
                thread.upstreams.sweep();
                thread.http2.sweep();
            }
        }
    }
}
