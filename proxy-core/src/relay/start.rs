//! Starting a relay thread: a single-threaded runtime that serves what it is given, until its end.

use std::rc::Rc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use super::thread::{Setup, Thread};
use super::{Adopted, Errand, Phase, RelayError, connection, ending};

/// How often upstream connections that nobody used for long are closed.
const SWEEP: Duration = Duration::from_secs(15);

/// Starts the thread; it ends when every sender of `errands` is gone, or when everything is to be cut.
pub(super) fn start(
    setup: Setup,
    errands: mpsc::UnboundedReceiver<Errand>,
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
            LocalSet::new().block_on(&runtime, serve_all(thread, errands));
            // A resolver thread may hang in the system's resolver: nobody waits for it.
            runtime.shutdown_background();
        })
        .map_err(|source| RelayError::StartThread {
            thread: number,
            source,
        })?;
    Ok(())
}

async fn serve_all(thread: Rc<Thread>, mut errands: mpsc::UnboundedReceiver<Errand>) {
    let mut sweep = tokio::time::interval(SWEEP);
    let mut phase = thread.phase.clone();
    phase.mark_changed();
    let timeouts = Rc::clone(&thread.timeouts);
    let mut deadlines = std::pin::pin!(timeouts.run());
    loop {
        tokio::select! {
            // First what is to be done, then with whom: a socket that comes after a change is served by it.
            biased;
            changed = phase.changed() => {
                let now = phase.borrow_and_update().clone();
                if changed.is_err() {
                    return;
                }
                if matches!(now, Phase::Aborted) {
                    return end(&thread).await;
                }
                thread.drain.replace(now.for_idle());
                thread.timeouts.wake_all();
            }
            errand = errands.recv() => match errand {
                Some(Errand::List(most, reply)) => {
                    let _nobody_waits = reply.send(thread.register.list(most));
                }
                Some(Errand::Serve(Adopted { socket, admitted })) => {
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

/// What is left is cut by whoever called this; WebSockets are told before.
async fn end(thread: &Thread) {
    thread.websockets.end();
    thread.timeouts.wake_all();
    let _late = tokio::time::timeout(ending::ALL, thread.websockets.gone()).await;
}
