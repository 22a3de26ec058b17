//! A host and its fleet: the updater as a process, and a FleetLock server of a few lines.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests are tests

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use common::{World, supervise};
use serde_json::Value;
use staging::clock;
use staging::locks::StateLock;
use staging::update_state::{self, FleetPlace};

/// A FleetLock server that says no as often as it is told, and yes after that.
struct Fleet {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
    refusals: Arc<Mutex<u32>>,
}

impl Fleet {
    fn serve() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://user:s3cret@{}/", listener.local_addr().unwrap());
        let (asked, refusals) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(0)));
        let (heard, left) = (Arc::clone(&asked), Arc::clone(&refusals));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut text = Vec::new();
                while !text.ends_with(b"}}") {
                    let mut block = [0; 1024];
                    let count = stream.read(&mut block).unwrap();
                    text.extend_from_slice(&block[..count]);
                }
                let text = String::from_utf8(text).unwrap();
                assert!(
                    text.to_lowercase()
                        .contains("fleet-lock-protocol: true\r\n"),
                    "{text}"
                );
                let path = text.split(' ').nth(1).unwrap().to_owned();
                let mut refusals = left.lock().unwrap();
                let (status, body) = if path == "/v1/pre-reboot" && *refusals > 0 {
                    *refusals -= 1;
                    (
                        "409 Conflict",
                        r#"{"kind":"all_slots_taken","value":"wait"}"#,
                    )
                } else {
                    ("200 OK", "")
                };
                let body_of = text.split("\r\n\r\n").nth(1).unwrap();
                let client: Value = serde_json::from_str(body_of).unwrap();
                let client = &client["client_params"];
                assert_eq!(client["group"], "web");
                let who = client["id"].as_str().unwrap();
                heard.lock().unwrap().push(format!("{path} {who}"));
                write!(
                    stream,
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                )
                .unwrap();
            }
        });
        Self {
            url,
            asked,
            refusals,
        }
    }

    /// What it was asked since the last time, without who asked.
    fn asked(&self) -> Vec<String> {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        asked
            .iter()
            .map(|asked| asked.split(' ').next().unwrap().to_owned())
            .collect()
    }
}

#[test]
fn a_fleet_is_asked_before_a_rollout_and_told_after_it() {
    let fleet = Fleet::serve();
    let world = World::new("1.0.0");
    world.configure(&format!(
        "fleet_lock = {:?}\nfleet_lock_group = \"web\"",
        fleet.url
    ));
    // Nothing rolls where nobody runs: nobody is asked.
    world.check().expect(0, "installed");
    assert_eq!(fleet.asked(), Vec::<String>::new());

    world.release("1.1.0");
    *fleet.refusals.lock().unwrap() = 1;
    let supervisor = supervise(&world.home, "kept", true);
    let ran = world.check();
    let said = ran.expect(75, "deferred");
    assert_eq!(said["error"]["code"], "FLEET_LOCK_REFUSED");
    assert!(
        said["error"]["message"]
            .as_str()
            .unwrap()
            .contains("all_slots_taken"),
        "{said}"
    );
    assert!(
        !ran.out.contains("s3cret") && !ran.err.contains("s3cret"),
        "{ran:?}"
    );
    assert_eq!((world.installed().len(), world.pending()), (2, None));
    assert_eq!(update_state::read(&world.home).unwrap().fleet_lock, None);
    assert_eq!(fleet.asked(), ["/v1/pre-reboot"]);

    // The next one has its turn, and brings nothing again.
    let said = world.check().expect(0, "updated");
    assert_eq!(said["bytes"], 0);
    let asked = fleet.asked.lock().unwrap().clone();
    assert_eq!(fleet.asked(), ["/v1/pre-reboot", "/v1/steady-state"]);
    assert_eq!(update_state::read(&world.home).unwrap().fleet_lock, None);
    // Always by one name, which is not the number of this host.
    let number = fs::read_to_string(world.home.node_id()).unwrap();
    let names: Vec<_> = asked
        .iter()
        .map(|asked| asked.split(' ').nth(1).unwrap())
        .collect();
    assert_eq!(names[0], names[1]);
    assert_ne!(names[0], number.trim());
    assert_eq!(supervisor.stop().len(), 1);
}

#[test]
fn the_place_in_the_fleet_is_given_back_after_every_end() {
    let fleet = Fleet::serve();
    for (verdict, code, outcome) in [
        ("rolledBack", 3, "rolledBack"),
        ("failed", 1, "failed"),
        ("deferred", 75, "deferred"),
    ] {
        let world = World::new("1.0.0");
        world.check().expect(0, "installed");
        world.configure(&format!(
            "fleet_lock = {:?}\nfleet_lock_group = \"web\"",
            fleet.url
        ));
        world.release("1.1.0");
        let supervisor = supervise(&world.home, verdict, false);
        world.check().expect(code, outcome);
        assert_eq!(
            fleet.asked(),
            ["/v1/pre-reboot", "/v1/steady-state"],
            "{verdict}"
        );
        supervisor.stop();
    }
}

#[test]
fn a_place_that_a_killed_job_took_is_given_back_by_the_next_run() {
    let fleet = Fleet::serve();
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    world.configure(&format!(
        "fleet_lock = {:?}\nfleet_lock_group = \"web\"",
        fleet.url
    ));
    let note = || {
        let lock = StateLock::acquire(&world.home, std::time::Duration::ZERO).unwrap();
        update_state::modify(&lock, &world.home, |state| {
            state.fleet_lock = Some(FleetPlace {
                server: None,
                job: "killed".to_owned(),
                at: clock::now(),
            });
        })
        .unwrap();
    };
    note();
    // A supervisor that may be in the middle of it, for it does not say: the place is kept.
    let supervisor = supervise(&world.home, "kept", true);
    let (socket, aside) = (
        world.home.control_socket(),
        world.home.run().join("aside.sock"),
    );
    fs::rename(&socket, &aside).unwrap();
    world.check().expect(0, "upToDate");
    assert_eq!(fleet.asked(), Vec::<String>::new());
    fs::rename(&aside, &socket).unwrap();
    world.check().expect(0, "upToDate");
    assert_eq!(fleet.asked(), ["/v1/steady-state"]);
    assert_eq!(update_state::read(&world.home).unwrap().fleet_lock, None);
    supervisor.stop();
    note();
    world.check().expect(0, "upToDate");
    assert_eq!(
        fleet.asked(),
        ["/v1/steady-state"],
        "and without a supervisor"
    );
    world.check().expect(0, "upToDate");
    assert_eq!(fleet.asked(), Vec::<String>::new(), "once is enough");
}
