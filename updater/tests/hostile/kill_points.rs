//! Killed at every step: the job is killed before each of its calls that change files, and what it left must be sound;
//! then it is run again, and must come to the same end as if nothing had been.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use staging::home::Home;
use staging::journal::{JobRecord, State};

use super::program;
use super::supervisor::Supervisor;
use super::tracer::{self, Next, Trace};
use super::world::{ENTRY, Host, World, walk};

/// One job that is killed, and what must be true of it.
struct Case<'a> {
    /// The home before the job.
    template: &'a Host,
    /// Where its copies go.
    folder: &'a Path,
    /// The job.
    job: &'a (dyn Fn(&Host) -> Command + Sync),
    /// Whether the second run removes all that the first one left.
    tidies: bool,
    /// Whether a supervisor runs meanwhile.
    supervised: bool,
    /// What may be selected at any time.
    selected: &'a [Option<&'a str>],
    /// Judges the home after the second run.
    after: &'a (dyn Fn(&Host, &str) + Sync),
}

impl Case<'_> {
    fn supervisor(&self, home: &Home) -> Option<Supervisor> {
        self.supervised.then(|| Supervisor::start(home))
    }

    fn host(&self, name: &str) -> (Host, Home) {
        let path = self.folder.join(name);
        let host = self.template.copy(&path);
        let home = host.home.clone();
        (host, home)
    }

    /// The whole job, traced and not killed.
    fn whole(&self) -> Trace {
        let (host, home) = self.host("whole");
        let supervisor = self.supervisor(&home);
        let trace = tracer::run(&(self.job)(&host), home.root(), &mut |_, _| Next::Go);
        assert_eq!(trace.code, Some(0), "{} {}", trace.out, trace.err);
        (self.after)(&host, "not killed at all");
        drop(supervisor);
        trace
    }

    /// Kills the job at its n-th point. Says whether it came so far.
    fn at(&self, n: usize) -> bool {
        let (host, home) = self.host(&format!("point-{n}"));
        let supervisor = self.supervisor(&home);
        let mut killed_before = None;
        let trace = tracer::run(&(self.job)(&host), home.root(), &mut |point, call| {
            if point < n {
                return Next::Go;
            }
            killed_before = Some(format!("point {n}, before {:?} {:?}", call.kind, call.path));
            Next::Kill
        });
        let Some(when) = killed_before else {
            assert_eq!(trace.code, Some(0), "{} {}", trace.out, trace.err);
            return false;
        };
        host.assert_sound(&when);
        let selected = host.selected();
        assert!(
            self.selected.contains(&selected.as_deref()),
            "{when}: {selected:?}"
        );
        let killed = host.jobs();
        let again = (self.job)(&host).output().unwrap();
        assert!(again.status.success(), "{when}: {again:?}");
        host.assert_sound(&when);
        if self.tidies {
            host.assert_tidy(&when);
        }
        assert_told(&killed, &host.jobs(), &when);
        (self.after)(&host, &when);
        drop(supervisor);
        staging::files::remove_tree(&PathBuf::from(home.root())).unwrap();
        true
    }

    /// Every `stride`-th point, by as many threads as there are processors. Says how many.
    fn walk(&self, stride: usize) -> usize {
        let points = self.whole().points();
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        let n = next.fetch_add(stride, Ordering::Relaxed);
                        // Threads of a job do not always take the same turns: a little further than counted.
                        if n > points + stride || (!self.at(n) && n >= points) {
                            return;
                        }
                    }
                });
            }
        });
        points
    }
}

/// The journal is true: a job that was killed on its way is interrupted at the step that it had reached, and one that
/// had come to its end is left alone.
fn assert_told(killed: &[JobRecord], after: &[JobRecord], when: &str) {
    for before in killed {
        let now = after
            .iter()
            .find(|record| record.job == before.job)
            .unwrap_or_else(|| panic!("{when}: {} is forgotten", before.job));
        if before.state.is_final() {
            assert_eq!(now, before, "{when}");
        } else {
            assert_eq!(
                (now.state, &now.step),
                (State::Interrupted, &before.step),
                "{when}"
            );
        }
    }
}

fn first_install(stride: usize) -> usize {
    let world = World::new(&["1.0.0"]);
    let template = world.home("template");
    let case = Case {
        template: &template,
        folder: world.folder.path(),
        job: &Host::check_command,
        tidies: true,
        supervised: false,
        selected: &[None, Some("1.0.0")],
        after: &|host, when| {
            assert_eq!(host.selected().as_deref(), Some("1.0.0"), "{when}");
            assert_eq!(host.installed(), ["1.0.0"], "{when}");
            assert_eq!(host.pending(), None, "{when}");
        },
    };
    case.walk(stride)
}

fn supervised_update(stride: usize) -> usize {
    let world = World::new(&["1.0.0"]);
    let template = world.home("template");
    template.check().expect(0, "installed");
    world.release("1.1.0");
    let case = Case {
        template: &template,
        folder: world.folder.path(),
        job: &Host::check_command,
        tidies: true,
        supervised: true,
        selected: &[Some("1.0.0"), Some("1.1.0")],
        after: &|host, when| {
            assert_eq!(host.selected().as_deref(), Some("1.1.0"), "{when}");
            assert_eq!(host.installed(), ["1.0.0", "1.1.0"], "{when}");
            assert_eq!(host.pending(), None, "{when}");
        },
    };
    case.walk(stride)
}

/// An update by a patch, whose one large file is shared with the version before.
fn patched_update(stride: usize) -> usize {
    let world = World::new(&[]);
    let says = |version: &str| program::printing(&format!("{ENTRY} {version}\n"));
    world.release_with("1.0.0", says("1.0.0"), 20_000);
    let template = world.home("template");
    template.check().expect(0, "installed");
    world.release_as("1.1.0", says("1.1.0"), 20_000, &["1.0.0"]);
    let alone = template.copy(&world.folder.path().join("alone"));
    let said = alone.check().expect(0, "pending");
    assert_eq!(said["deltaFrom"], "1.0.0", "{said}");
    let case = Case {
        template: &template,
        folder: world.folder.path(),
        job: &Host::check_command,
        tidies: true,
        supervised: false,
        selected: &[Some("1.0.0")],
        after: &|host, when| {
            assert_eq!(host.installed(), ["1.0.0", "1.1.0"], "{when}");
            assert_eq!(host.pending().as_deref(), Some("1.1.0"), "{when}");
        },
    };
    case.walk(stride)
}

fn collection(stride: usize) -> usize {
    let world = World::new(&["1.0.0"]);
    let template = world.home("template");
    template.check().expect(0, "installed");
    for version in ["1.1.0", "1.2.0", "1.3.0"] {
        world.release(version);
        template.check().expect(0, "pending");
    }
    let case = Case {
        template: &template,
        folder: world.folder.path(),
        job: &|host| host.command(&["gc", "--keep", "0"]),
        tidies: true,
        supervised: false,
        selected: &[Some("1.0.0")],
        after: &|host, when| {
            assert_eq!(host.selected().as_deref(), Some("1.0.0"), "{when}");
            assert_eq!(host.installed(), ["1.0.0", "1.3.0"], "{when}");
            assert_eq!(host.pending().as_deref(), Some("1.3.0"), "{when}");
        },
    };
    case.walk(stride)
}

fn making_a_home(stride: usize) -> usize {
    let world = World::new(&["1.0.0"]);
    let template = Host::at(world.folder.path().join("template"));
    staging::files::create_private(template.home.root()).unwrap();
    let case = Case {
        template: &template,
        folder: world.folder.path(),
        job: &|host| world.init(host),
        tidies: false,
        supervised: false,
        selected: &[None],
        after: &|host, when| {
            // Nobody knows whether another `init` is at work: what a dead one left goes when it is old.
            walk(host.home.root(), &mut |path| {
                if path.extension().is_some_and(|extension| extension == "tmp") {
                    let file = fs::File::options().write(true).open(path).unwrap();
                    let hours = Duration::from_secs(7200);
                    file.set_modified(SystemTime::now() - hours).unwrap();
                }
            });
            host.check().expect(0, "installed");
            host.assert_tidy(when);
        },
    };
    case.walk(stride)
}

#[test]
fn making_a_home_survives_a_kill_before_every_call() {
    assert!(making_a_home(1) > 10);
}

#[test]
fn removing_old_packages_survives_a_kill_before_every_call() {
    assert!(collection(1) > 10);
}

#[test]
fn a_first_install_survives_a_kill_before_every_call() {
    assert!(first_install(1) > 100);
}

#[test]
fn a_supervised_update_survives_a_kill_before_every_call() {
    assert!(supervised_update(1) > 100);
}

#[test]
fn an_update_by_a_patch_survives_a_kill_before_every_call() {
    assert!(patched_update(1) > 50);
}
