//! A supervisor of a few lines: this process, as far as a home can tell. It keeps every rollout that is asked of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use staging::home::Home;
use staging::locks::{StateLock, SupervisorLock};
use staging::ownership::{self, ProcessIdentity, SupervisorRecord};
use staging::selection::{self, Change};
use staging::version::PackageVersion;
use staging::{clock, update_state};

/// Lives until it is dropped.
pub struct Supervisor {
    home: Home,
    lock: Option<SupervisorLock>,
    server: Option<JoinHandle<()>>,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl Supervisor {
    /// Takes the home and answers on its socket.
    pub fn start(home: &Home) -> Self {
        // A restarted one is another process: the same number here, but never the same nonce.
        let identity = ProcessIdentity::current().unwrap();
        let lock = SupervisorLock::try_acquire(home).unwrap();
        let record = SupervisorRecord {
            schema: 1,
            identity: identity.clone(),
            version: PackageVersion::new(1, 0, 0),
            executable: std::env::current_exe().unwrap(),
            listeners: Vec::new(),
            since: clock::now(),
        };
        lock.announce(home, &record).unwrap();
        let address = home.socket_address().unwrap();
        let _ = std::fs::remove_file(home.control_socket());
        let listener = UnixListener::bind(address.path()).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (served, seen) = (home.clone(), Arc::clone(&asked));
        let server = std::thread::spawn(move || serve(&listener, &served, &identity, &seen));
        Self {
            home: home.clone(),
            lock: Some(lock),
            server: Some(server),
            asked,
        }
    }

    /// The rollouts that were asked for.
    pub fn asked(&self) -> Vec<Value> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if let Ok(address) = self.home.socket_address()
            && let Ok(mut stream) = UnixStream::connect(address.path())
        {
            let _ = stream.write_all(b"STOP\r\n\r\n");
        }
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
        let _ = std::fs::remove_file(self.home.control_socket());
        // This process lives on, which the one in the record must not.
        if let (Some(lock), Ok(Some(mut record))) =
            (&self.lock, ownership::read_supervisor(&self.home))
        {
            record.identity.start_time += 1;
            let _ = lock.announce(&self.home, &record);
        }
        self.lock.take();
    }
}

fn serve(
    listener: &UnixListener,
    home: &Home,
    identity: &ProcessIdentity,
    asked: &Mutex<Vec<Value>>,
) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        // Who was killed while asking is no reason to stop.
        let Some((line, body)) = request(&stream) else {
            continue;
        };
        if line.starts_with("STOP") {
            return;
        }
        let answer = if line.starts_with("POST /rollouts") {
            let wanted: Value = serde_json::from_str(&body).unwrap();
            asked.lock().unwrap().push(wanted.clone());
            roll(home, identity, &wanted)
        } else {
            let selected = selection::read(home).unwrap().unwrap();
            json!({
                "schema": 1, "supervisorVersion": "1.0.0", "supervisorPid": identity.pid, "nonce": identity.nonce,
                "since": clock::now(), "selectedPackageVersion": selected.version,
                "selectedSerial": selected.serial, "workerVersion": selected.version,
            })
        };
        let _ = write!(
            stream,
            "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{answer}\n"
        );
    }
}

/// Keeps the version, unless it was meant for another supervisor or another selection.
fn roll(home: &Home, identity: &ProcessIdentity, wanted: &Value) -> Value {
    let version: PackageVersion = wanted["version"].as_str().unwrap().parse().unwrap();
    let lock = StateLock::acquire(home, Duration::from_secs(30)).unwrap();
    let serial = selection::read(home).unwrap().unwrap().serial;
    let is_meant = wanted["nonce"] == json!(identity.nonce) && wanted["serial"] == json!(serial);
    if !is_meant {
        return json!({
            "rollout": 1, "verdict": "deferred", "version": version, "generation": 2,
            "code": "OWNERSHIP_CHANGED", "reason": "meant for another", "serial": serial,
        });
    }
    let change = Change {
        version: version.clone(),
        pinned: false,
        by: "job".to_owned(),
    };
    let written = selection::write(&lock, home, change).unwrap();
    update_state::modify(&lock, home, |state| state.kept(&version)).unwrap();
    json!({
        "rollout": 1, "verdict": "kept", "version": version, "generation": 2, "code": null,
        "reason": null, "serial": written.serial,
    })
}

fn request(stream: &UnixStream) -> Option<(String, String)> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        if let Some(value) = line.strip_prefix("Content-Length: ") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((first, String::from_utf8(body).ok()?))
}
