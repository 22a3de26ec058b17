//! Nothing is named before it is on disk, and nothing is claimed before its name is: judged from the list of calls that
//! a whole job made, by rules that made-up lists prove to bite.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::calls::{Call, Kind};
use super::supervisor::Supervisor;
use super::tracer::{self, Next, Trace};
use super::world::World;

/// What the rules say about a list of calls: one text a breach.
///
/// - A file that is renamed or linked was synced after the last change of its bytes; a folder that is renamed, with all
///   that lies in it: each file, and each folder after the last change of its names.
/// - After a rename the folder of the new name is synced before the next rename begins, and before the job says that it
///   is done.
fn breaches(calls: &[Call], said: Option<u64>) -> Vec<String> {
    let mut judge = Judge::default();
    // Changes count from their beginning, what makes them durable from its end.
    let mut moments: Vec<(u64, Moment)> = Vec::new();
    for call in calls.iter().filter(|call| call.ok) {
        let left = call.left.unwrap_or(u64::MAX);
        match call.kind {
            Kind::Sync => moments.push((left, Moment::Synced(call))),
            Kind::Rename | Kind::Exchange | Kind::Link => {
                moments.push((call.entered, Moment::Names(call)));
                moments.push((left, Moment::Named(call)));
            }
            _ => moments.push((left, Moment::Changed(call))),
        }
    }
    if let Some(said) = said {
        moments.push((said, Moment::Said));
    }
    moments.sort_by_key(|(at, _)| *at);
    for (_, moment) in moments {
        judge.see(&moment);
    }
    judge.end();
    judge.breaches
}

enum Moment<'a> {
    Changed(&'a Call),
    Synced(&'a Call),
    Names(&'a Call),
    Named(&'a Call),
    Said,
}

#[derive(Default)]
struct Judge {
    /// Files and folders whose last change is not on disk, and what that was.
    unsynced: BTreeMap<PathBuf, Kind>,
    /// Folders that hold a new name which is not on disk.
    unnamed: BTreeSet<PathBuf>,
    breaches: Vec<String>,
}

impl Judge {
    fn see(&mut self, moment: &Moment<'_>) {
        match moment {
            Moment::Changed(call) => self.changed(call),
            Moment::Synced(call) => {
                self.unsynced.remove(&call.path);
                self.unnamed.remove(&call.path);
            }
            Moment::Names(call) => {
                self.complain_unnamed(&format!("before {:?} of {:?}", call.kind, call.path));
                let mut moved = vec![&call.path];
                if call.kind == Kind::Exchange {
                    moved.extend(&call.to);
                }
                for (path, kind) in &self.unsynced {
                    if moved.iter().any(|moved| path.starts_with(moved)) {
                        let what = format!(
                            "{path:?} is not on disk after {kind:?}, and {:?} is named {:?}",
                            call.path, call.to
                        );
                        self.breaches.push(what);
                    }
                }
            }
            Moment::Named(call) => self.named(call),
            Moment::Said => self.complain_unnamed("before the job says that it is done"),
        }
    }

    fn changed(&mut self, call: &Call) {
        match call.kind {
            Kind::Create | Kind::MakeFolder | Kind::Symlink => {
                self.touch(parent(&call.path), call.kind);
                if call.kind != Kind::Symlink {
                    self.unsynced.insert(call.path.clone(), call.kind);
                }
            }
            Kind::Write | Kind::Truncate | Kind::Clone | Kind::Mode => {
                self.unsynced.insert(call.path.clone(), call.kind);
            }
            Kind::Unlink | Kind::RemoveFolder => {
                self.touch(parent(&call.path), call.kind);
                self.unsynced
                    .retain(|path, _| !path.starts_with(&call.path));
                self.unnamed.retain(|path| !path.starts_with(&call.path));
            }
            Kind::Sync | Kind::Rename | Kind::Exchange | Kind::Link => {}
        }
    }

    fn named(&mut self, call: &Call) {
        let Some(to) = &call.to else { return };
        if call.kind == Kind::Rename {
            // What is replaced is no more, and what is moved has its debts under the new name.
            self.unsynced.retain(|path, _| !path.starts_with(to));
            let (debts, rest): (BTreeMap<_, _>, _) = std::mem::take(&mut self.unsynced)
                .into_iter()
                .partition(|(path, _)| path.starts_with(&call.path));
            self.unsynced = rest;
            for (path, kind) in debts {
                let rest = path.strip_prefix(&call.path).unwrap();
                let moved = if rest.as_os_str().is_empty() {
                    to.clone()
                } else {
                    to.join(rest)
                };
                self.unsynced.insert(moved, kind);
            }
        }
        self.touch(parent(to), call.kind);
        // A link lies in a folder that is not yet named itself: its time is when that one is.
        if call.kind != Kind::Link {
            self.unnamed.insert(parent(to).to_owned());
        }
    }

    fn touch(&mut self, folder: &Path, kind: Kind) {
        self.unsynced.insert(folder.to_owned(), kind);
    }

    fn complain_unnamed(&mut self, when: &str) {
        for folder in std::mem::take(&mut self.unnamed) {
            self.breaches
                .push(format!("{folder:?} is not synced {when}"));
        }
    }

    fn end(&mut self) {
        self.complain_unnamed("when the job ends");
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

#[track_caller]
fn assert_durable(trace: &Trace) {
    assert_eq!(trace.code, Some(0), "{} {}", trace.out, trace.err);
    let found = breaches(&trace.calls, trace.said);
    assert!(found.is_empty(), "{found:#?}");
    // The rules were asked something.
    let renames = trace.calls.iter().filter(|call| call.kind == Kind::Rename);
    assert!(renames.count() > 5, "{:#?}", trace.calls);
    assert!(trace.said.is_some());
}

#[test]
fn a_first_install_names_nothing_that_is_not_on_disk() {
    let world = World::new(&["1.0.0"]);
    let host = world.home("home");
    let trace = tracer::run(&host.check_command(), host.home.root(), &mut |_, _| {
        Next::Go
    });
    assert_durable(&trace);
}

#[test]
fn a_supervised_update_names_nothing_that_is_not_on_disk() {
    let world = World::new(&["1.0.0"]);
    let host = world.home("home");
    host.check().expect(0, "installed");
    world.release("1.1.0");
    let supervisor = Supervisor::start(&host.home);
    let trace = tracer::run(&host.check_command(), host.home.root(), &mut |_, _| {
        Next::Go
    });
    assert_durable(&trace);
    assert_eq!(supervisor.asked().len(), 1);
}

// The rules themselves, on lists that no job made.

fn call(kind: Kind, path: &str, to: Option<&str>) -> Call {
    Call {
        kind,
        path: PathBuf::from(path),
        to: to.map(PathBuf::from),
        entered: 0,
        left: None,
        ok: true,
        is_point: true,
    }
}

/// The same list with each call done before the next one begins.
fn in_order(mut calls: Vec<Call>) -> Vec<Call> {
    for (at, call) in (1..).step_by(2).zip(&mut calls) {
        call.entered = at;
        call.left = Some(at + 1);
    }
    calls
}

/// A document, and a folder of two files, written as they should be.
fn well_done() -> Vec<Call> {
    use Kind::{Create, MakeFolder, Mode, Rename, Sync, Write};
    in_order(vec![
        call(Create, "/h/.x.tmp", None),
        call(Write, "/h/.x.tmp", None),
        call(Sync, "/h/.x.tmp", None),
        call(Rename, "/h/.x.tmp", Some("/h/x")),
        call(Sync, "/h", None),
        call(MakeFolder, "/h/s/p", None),
        call(MakeFolder, "/h/s/p/bin", None),
        call(Create, "/h/s/p/bin/a", None),
        call(Write, "/h/s/p/bin/a", None),
        call(Mode, "/h/s/p/bin/a", None),
        call(Sync, "/h/s/p/bin/a", None),
        call(Sync, "/h/s/p/bin", None),
        call(Sync, "/h/s/p", None),
        call(Rename, "/h/s/p", Some("/h/p/1")),
        call(Mode, "/h/p/1", None),
        call(Sync, "/h/p/1", None),
        call(Sync, "/h/p", None),
    ])
}

#[test]
fn what_is_done_well_breaks_no_rule() {
    assert_eq!(breaches(&well_done(), Some(100)), Vec::<String>::new());
}

#[test]
fn a_sync_that_is_missing_breaks_a_rule() {
    for (at, left_out) in well_done().iter().enumerate() {
        if left_out.kind != Kind::Sync {
            continue;
        }
        let mut calls = well_done();
        calls.remove(at);
        let found = breaches(&calls, Some(100));
        // The published root's own mode is no name: the next holder of the state lock mends it.
        let is_root = left_out.path == Path::new("/h/p/1");
        assert_eq!(
            found.is_empty(),
            is_root,
            "without {left_out:?}: {found:#?}"
        );
        // One that failed is as good as none.
        let mut calls = well_done();
        calls[at].ok = false;
        assert_eq!(breaches(&calls, Some(100)).is_empty(), is_root);
    }
}

#[test]
fn a_sync_at_the_wrong_time_breaks_a_rule() {
    // Begun before the rename, and not back from the disk by then.
    let mut late = well_done();
    late[2].left = Some(late[3].entered + 1);
    assert_eq!(
        breaches(&late, Some(100)).len(),
        1,
        "{:#?}",
        breaches(&late, None)
    );
    // Before the last write.
    let mut early = well_done();
    let write = early.remove(8);
    early.insert(10, write);
    assert!(!breaches(&in_order(early), Some(100)).is_empty());
    // The folder's after the job said that it is done, or after the next rename.
    let said = well_done()[3].left.map(|left| left + 1);
    let mut slow = well_done();
    slow[4].left = said.map(|said| said + 1);
    assert!(!breaches(&slow, said).is_empty());
    let mut slower = well_done();
    let sync = slower.remove(4);
    slower.insert(14, sync);
    assert!(!breaches(&in_order(slower), Some(100)).is_empty());
}

#[test]
fn a_name_that_was_never_moved_is_no_matter() {
    let download = in_order(vec![
        call(Kind::Create, "/h/d.part", None),
        call(Kind::Write, "/h/d.part", None),
        call(Kind::Unlink, "/h/d.part", None),
    ]);
    assert_eq!(breaches(&download, Some(100)), Vec::<String>::new());
}
