//! What this worker says about itself at `/ready` and `/status`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use staging::home::Home;

use crate::channel::Addressee;
use crate::gateway::Vitals;
use crate::relay::Relay;

use super::stance::{Place, Stance};

/// The vital signs of a worker process.
pub struct WorkerVitals {
    us: Addressee,
    version: String,
    home: Home,
    stance: Mutex<Stance>,
    dropped: AtomicU64,
    relay: OnceLock<Relay>,
}

impl WorkerVitals {
    /// Of a worker that is not active yet.
    pub fn new(us: Addressee, version: String, home: Home) -> Self {
        Self {
            us,
            version,
            home,
            stance: Mutex::default(),
            dropped: AtomicU64::new(0),
            relay: OnceLock::new(),
        }
    }

    /// From now on the load of `relay` is shown.
    pub fn watch(&self, relay: &Relay) {
        // Set once, at the start; a second call would be a second relay, which a worker has not.
        let _ = self.relay.set(relay.clone());
    }

    /// What the supervisor has told us.
    pub fn set_stance(&self, stance: Stance) {
        *self.stance.lock().unwrap_or_else(PoisonError::into_inner) = stance;
    }

    fn stance(&self) -> Stance {
        *self.stance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message of the supervisor was not understood.
    pub fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl Vitals for WorkerVitals {
    fn ready(&self) -> bool {
        self.stance().is_ready()
    }

    /// Our own figures, and the supervisor's last snapshot as it lies on disk.
    fn status(&self) -> serde_json::Value {
        let stance = self.stance();
        let load = self.relay.get().map(Relay::load).unwrap_or_default();
        let mut supervisor = std::fs::read(self.home.snapshot_file())
            .ok()
            .and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
        if let Some(serde_json::Value::Object(fields)) = &mut supervisor {
            // For whoever may use the control socket, not for whoever reaches the port.
            for private in ["nonce", "home"] {
                fields.remove(private);
            }
        }
        serde_json::json!({
            "schema": 1,
            "workerVersion": self.version,
            "worker": {
                "generation": self.us.generation,
                "pid": self.us.pid,
                "place": stance.place.name(),
                "active": stance.place == Place::Active,
                "paused": stance.paused,
                "connections": load.connections,
                "streams": load.exchanges,
                "requests": load.requests,
                "local5xx": load.local_5xx,
                "droppedMessages": self.dropped.load(Ordering::Relaxed),
            },
            "supervisor": supervisor,
        })
    }
}
