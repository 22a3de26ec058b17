//! Who owns the home changes between any two steps of a job: it does nothing more then, whenever that is; or it had
//! done all before.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use staging::home::Home;
use staging::locks::StateLock;

use super::supervisor::Supervisor;
use super::tracer::{self, Next};
use super::world::{Host, World};

/// What can be seen of a home from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    selected: Option<String>,
    pending: Option<String>,
    installed: Vec<String>,
}

impl Seen {
    fn look(host: &Host) -> Self {
        Self {
            selected: host.selected(),
            pending: host.pending(),
            installed: host.installed(),
        }
    }
}

/// Whether somebody is in the middle of a change of the state.
fn is_changing(home: &Home) -> bool {
    StateLock::acquire(home, Duration::ZERO).is_err()
}

/// Calls `at` with every `stride`-th number until it says that the job does not come so far.
fn walk(stride: usize, at: &(dyn Fn(usize) -> bool + Sync)) -> usize {
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while at(next.fetch_add(stride, Ordering::Relaxed)) {
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    done.into_inner()
}

/// Changes the supervisor before the n-th call of an update. Says whether it came so far.
fn changed_at(world: &World, template: &Host, n: usize, restarted: bool) -> bool {
    let host = template.copy(&world.folder.path().join(format!("{restarted}-{n}")));
    let home = host.home.clone();
    let mut supervisor = Some(Supervisor::start(&home));
    let mut then = None;
    let trace = tracer::run(&host.check_command(), home.root(), &mut |point, call| {
        if point == n {
            let asked = supervisor.take().unwrap().asked().len();
            if restarted {
                supervisor = Some(Supervisor::start(&home));
            }
            let when = format!("point {n}, before {:?} {:?}", call.kind, call.path);
            then = Some((when, asked, is_changing(&home), Seen::look(&host)));
        }
        Next::Go
    });
    let Some((when, asked, was_changing, before)) = then else {
        assert_eq!(trace.code, Some(0), "{} {}", trace.out, trace.err);
        return false;
    };
    let said: Value = serde_json::from_str(&trace.out)
        .unwrap_or_else(|error| panic!("{when}: {error}: {} {}", trace.out, trace.err));
    let outcome = said["outcome"].as_str().unwrap();
    let after = Seen::look(&host);
    let told = format!("{when}: {said} {before:?} {after:?}");
    host.assert_sound(&when);
    let (old, new) = (Some("1.0.0"), Some("1.1.0"));
    match (trace.code, outcome) {
        // All was done before, or it began after.
        (Some(0), "updated") => assert_eq!(after.selected.as_deref(), new, "{told}"),
        // Nobody supervised any more when it began.
        (Some(0), "pending") => {
            assert!(!restarted && asked == 0, "{told}");
            assert_eq!(
                (after.selected.as_deref(), after.pending.as_deref()),
                (old, new),
                "{told}"
            );
        }
        // The verdict was heard, and its check met another supervisor.
        (Some(2), "unverified") => {
            assert_eq!(asked, 1, "{told}");
            assert_eq!(after.selected.as_deref(), new, "{told}");
        }
        (Some(75), "deferred") => {
            assert_eq!(
                after.selected.as_deref(),
                if asked == 0 { old } else { new },
                "{told}"
            );
            // A step that was being made under the lock is made to its end; no other begins.
            let pending = after.pending == before.pending;
            let installed = after.installed == before.installed;
            assert!(
                pending && installed || was_changing && (pending || installed),
                "{told}"
            );
        }
        _ => panic!("{told} {}", trace.err),
    }
    drop(supervisor);
    // Whoever supervises next gets the update.
    let supervisor = Supervisor::start(&home);
    let again = host.check();
    assert_eq!(again.code, Some(0), "{told} {again:?}");
    assert_eq!(host.selected().as_deref(), new, "{told}");
    host.assert_tidy(&told);
    drop(supervisor);
    staging::files::remove_tree(home.root()).unwrap();
    true
}

fn update() -> (World, Host) {
    let world = World::new(&["1.0.0"]);
    let template = world.home("template");
    template.check().expect(0, "installed");
    world.release("1.1.0");
    (world, template)
}

#[test]
fn a_supervisor_restarted_between_any_two_steps_changes_nothing_or_all_was_done() {
    let (world, template) = update();
    let done = walk(2, &|n| changed_at(&world, &template, n, true));
    assert!(done > 30, "{done}");
}

#[test]
fn an_updater_that_outlives_its_supervisor_changes_nothing_or_all_was_done() {
    let (world, template) = update();
    let done = walk(3, &|n| changed_at(&world, &template, n, false));
    assert!(done > 20, "{done}");
}

/// A job sleeps before its n-th call; its lock file is replaced, and a newer job brings a newer release to its end.
/// Says whether the old one came so far.
fn woken_at(n: usize) -> bool {
    let world = World::new(&["1.0.0"]);
    let host = world.home("home");
    host.check().expect(0, "installed");
    world.release("1.1.0");
    let supervisor = Supervisor::start(&host.home);
    let mut newer = None;
    let trace = tracer::run(
        &host.check_command(),
        host.home.root(),
        &mut |point, call| {
            // What holds the state lock cannot be overtaken.
            if point >= n && newer.is_none() && !is_changing(&host.home) {
                fs::remove_file(host.home.updater_lock()).unwrap();
                world.release("1.2.0");
                let when = format!("point {point}, before {:?} {:?}", call.kind, call.path);
                newer = Some((when, host.check()));
            }
            Next::Go
        },
    );
    let Some((when, newer)) = newer else {
        return false;
    };
    assert_eq!(
        (newer.code, newer.json()["outcome"].as_str()),
        (Some(0), Some("updated")),
        "{when} {newer:?}"
    );
    let told = format!("{when}: {} {}", trace.out, trace.err);
    assert_eq!(host.selected().as_deref(), Some("1.2.0"), "{told}");
    assert_eq!(host.pending(), None, "{told}");
    host.assert_sound(&told);
    // It claims nothing of its own, unless it had done that before; what its files went missing for is a failure.
    let before = supervisor
        .asked()
        .iter()
        .filter(|asked| asked["version"] == "1.1.0")
        .count();
    let said: Value = serde_json::from_str(&trace.out).expect(&told);
    let claims = said["version"] == "1.1.0" && said["outcome"] == "updated";
    assert!(!claims || before > 0, "{told}");
    assert!(matches!(trace.code, Some(0 | 1 | 2 | 75)), "{told}");
    host.check().expect(0, "upToDate");
    assert_eq!(host.selected().as_deref(), Some("1.2.0"), "{told}");
    // What the old one downloaded goes with the next download.
    world.release("1.3.0");
    host.check().expect(0, "updated");
    host.assert_tidy(&told);
    true
}

#[test]
fn a_stale_job_that_wakes_after_a_newer_one_overwrites_nothing() {
    let done = walk(7, &woken_at);
    assert!(done > 10, "{done}");
}
