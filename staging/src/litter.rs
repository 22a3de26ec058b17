//! Temporary files of writers that died between creating and renaming them ([`crate::files::write_atomic`]). Each is
//! small, and a host that is killed often must not fill up with them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::home::Home;
use crate::locks::{StateLock, UpdaterLock};
use crate::report::{Exit, Report};

/// Who writes without a lock of ours needs no longer than this.
const LIVING: Duration = Duration::from_secs(3600);

/// A temporary file was not removed.
#[derive(Debug, thiserror::Error)]
#[error("removing {path}, which a job that died left: {source}")]
pub struct LitterError {
    /// The file, or the folder that cannot be read.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

impl Report for LitterError {
    fn code(&self) -> &'static str {
        "LITTER_REMOVE"
    }
    fn exit(&self) -> Exit {
        Exit::Failed
    }
    fn retry(&self) -> bool {
        true
    }
}

/// Removes the temporary files that nobody finishes. Whoever calls holds both locks: what is written under one of them
/// has no living writer then. Other temporary files, as a supervisor's, are removed once they are old. Says how many.
///
/// # Errors
/// The first that cannot be removed.
pub fn reap(_updater: &UpdaterLock, _state: &StateLock, home: &Home) -> Result<usize, LitterError> {
    let mut reaped = 0;
    for folder in [home.root(), &trust(home), &home.run()] {
        let dead = |path: &Path| is_ours_alone(home, path) || is_old(path);
        reaped += reap_in(folder, false, &dead)?;
    }
    Ok(reaped + reap_in(&home.state(), true, &|_| true)?)
}

fn trust(home: &Home) -> PathBuf {
    let mut folder = home.trust_root();
    folder.pop();
    folder
}

fn reap_in(folder: &Path, deep: bool, dead: &dyn Fn(&Path) -> bool) -> Result<usize, LitterError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| LitterError { path, source }
    };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(failed(folder)(error)),
    };
    let mut reaped = 0;
    for entry in entries {
        let entry = entry.map_err(failed(folder))?;
        let path = entry.path();
        if deep && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            reaped += reap_in(&path, true, dead)?;
            continue;
        }
        if target(&path).is_none() || !dead(&path) {
            continue;
        }
        match fs::remove_file(&path) {
            Ok(()) => reaped += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&path)(error)),
        }
    }
    Ok(reaped)
}

/// The name that a temporary file was to get: `x.json` for `.x.json.a1b2c3.tmp`. None if it is no temporary file.
fn target(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    let (target, random) = name
        .strip_prefix('.')?
        .strip_suffix(".tmp")?
        .rsplit_once('.')?;
    let is_random = !random.is_empty() && random.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_random && !target.is_empty()).then_some(target)
}

/// Whether only a holder of one of the two locks writes it.
fn is_ours_alone(home: &Home, path: &Path) -> bool {
    let written = [home.selection_file(), home.updater_record()];
    let target = target(path).map(|name| path.with_file_name(name));
    target.is_some_and(|target| written.contains(&target))
}

fn is_old(path: &Path) -> bool {
    let changed = fs::symlink_metadata(path).and_then(|metadata| metadata.modified());
    changed.is_ok_and(|changed| {
        SystemTime::now()
            .duration_since(changed)
            .is_ok_and(|age| age > LIVING)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch;

    #[test]
    fn a_temporary_file_is_told_by_its_name() {
        for (name, wanted) in [
            (".selection.json.a1B2c3.tmp", Some("selection.json")),
            (".x.abc.tmp", Some("x")),
            ("selection.json", None),
            (".selection.json.tmp", Some("selection")),
            (".selection.json..tmp", None),
            (".x.a-b.tmp", None),
            ("x.json.abc.tmp", None),
            ("..abc.tmp", None),
            (".abc.tmp", None),
        ] {
            assert_eq!(target(Path::new(name)), wanted, "{name}");
        }
    }

    #[test]
    fn the_dead_s_are_removed_and_what_a_supervisor_may_be_writing_is_not() {
        let (_folder, home) = scratch::home();
        let write = |folder: PathBuf, name: &str, age: Duration| {
            let path = folder.join(name);
            fs::write(&path, "half").unwrap();
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
            path
        };
        let now = Duration::ZERO;
        let deep = home.feed().join("targets/rollproxy");
        fs::create_dir_all(&deep).unwrap();
        let root = || home.root().to_owned();
        let dead = [
            write(root(), ".selection.json.aaaaaa.tmp", now),
            write(home.run(), ".updater.json.aaaaaa.tmp", now),
            write(home.state(), ".update.json.aaaaaa.tmp", now),
            write(home.jobs(), ".j.json.aaaaaa.tmp", now),
            write(deep, ".stable.json.aaaaaa.tmp", now),
            write(home.run(), ".snapshot.json.aaaaaa.tmp", LIVING * 2),
        ];
        let living = [
            write(home.run(), ".snapshot.json.bbbbbb.tmp", now),
            write(home.run(), ".supervisor.json.bbbbbb.tmp", now),
            write(root(), ".config.toml.bbbbbb.tmp", now),
            write(root(), "mine.tmp", LIVING * 2),
            write(home.downloads(), "0a.part", LIVING * 2),
        ];
        let updater = UpdaterLock::try_acquire(&home).unwrap();
        let state = StateLock::acquire(&home, Duration::from_secs(60)).unwrap();
        assert_eq!(reap(&updater, &state, &home).unwrap(), dead.len());
        assert!(dead.iter().all(|path| !path.exists()));
        assert!(living.iter().all(|path| path.exists()));
    }
}
