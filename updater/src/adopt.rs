//! Making sure that what runs is itself a package, before anything newer is tried: a rollback needs somewhere to go.

use std::path::{Path, PathBuf};

use staging::TARGET;
use staging::home::Home;
use staging::locks::StateLock;
use staging::ownership::SupervisorRecord;
use staging::pack::{self, Plan};
use staging::package::{self, Package};
use staging::publish;
use staging::report::Failure;
use staging::stage::StagingFolder;
use staging::update_state;
use staging::validate::{Expected, UPDATER, Validator};
use staging::version::PackageVersion;

/// The entry that a supervisor is.
const MAIN: &str = "rollproxy";
/// The entry that starts it, packed if it lies beside it.
const LAUNCHER: &str = "rollproxy-launcher";

/// Packs and publishes what runs, unless a rollback has somewhere to go already. `unchanged` gives the state lock, if
/// everything is still as it was when the job began. Says whether a package was made.
///
/// # Errors
/// What stands in the way; without a way back nothing newer is tried.
pub fn ensure(
    home: &Home,
    supervisor: &SupervisorRecord,
    selected: Option<&PackageVersion>,
    job: &str,
    validator: &Validator,
    unchanged: impl Fn() -> Result<StateLock, Failure>,
) -> Result<bool, Failure> {
    let installed = package::list(home)?;
    let version = &supervisor.version;
    let way_back = selected.unwrap_or(version);
    if installed.contains(way_back) || installed.contains(version) {
        return Ok(false);
    }
    let folder = StagingFolder::create(home, &format!("{job}-running"))?;
    let plan = plan(supervisor);
    let packed = pack::pack_folder(&plan, folder.path())?;
    let expected = Expected {
        version: version.clone(),
        manifest_digest: Some(packed.digest().to_owned()),
    };
    validator.validate(folder.path(), &expected, home, &|| false)?;
    let lock = unchanged()?;
    publish::publish(&lock, home, folder, &packed)?;
    update_state::modify(&lock, home, |state| {
        let digest = packed.digest().to_owned();
        state.archives.insert(version.clone(), digest);
    })?;
    Ok(true)
}

/// What to pack: the package that the supervisor stands in, or the programs that lie about it.
fn plan(supervisor: &SupervisorRecord) -> Plan {
    let executable = executable(supervisor);
    match package::containing(&executable) {
        Some(package) => of_package(&package, &supervisor.version),
        None => of_programs(executable, &supervisor.version),
    }
}

fn of_package(package: &Package, version: &PackageVersion) -> Plan {
    let Package { root, manifest } = package;
    let binaries = manifest
        .entries
        .iter()
        .map(|(name, path)| (name.clone(), root.join(path)))
        .collect();
    let is_entry = |path: &String| manifest.entries.values().any(|entry| entry == path);
    let extra = manifest
        .files
        .iter()
        .map(|file| &file.path)
        .filter(|path| !is_entry(path))
        .map(|path| (path.clone(), root.join(path)))
        .collect();
    Plan {
        version: version.clone(),
        target: manifest.target.clone(),
        binaries,
        extra,
        commit: manifest.build.commit.clone(),
        compiled_version: manifest.build.compiled_version.clone(),
        min_launcher: manifest.min_launcher.clone(),
        level: 0,
    }
}

fn of_programs(executable: PathBuf, version: &PackageVersion) -> Plan {
    let launcher = executable.with_file_name(LAUNCHER);
    let mut binaries = vec![(MAIN.to_owned(), executable)];
    if let Ok(updater) = std::env::current_exe() {
        binaries.push((UPDATER.to_owned(), updater));
    }
    if launcher.is_file() {
        binaries.push((LAUNCHER.to_owned(), launcher));
    }
    Plan {
        version: version.clone(),
        target: TARGET.to_owned(),
        binaries,
        extra: Vec::new(),
        commit: "unknown".to_owned(),
        compiled_version: version.to_string(),
        min_launcher: PackageVersion::new(0, 0, 0),
        level: 0,
    }
}

/// The supervisor's executable; through its process if the file was replaced or removed since it started.
fn executable(supervisor: &SupervisorRecord) -> PathBuf {
    let process = PathBuf::from(format!("/proc/{}/exe", supervisor.identity.pid));
    let same = same_file(&process, &supervisor.executable);
    if same {
        supervisor.executable.clone()
    } else {
        process
    }
}

fn same_file(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (std::fs::metadata(a), std::fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use staging::manifest;
    use staging::ownership::ProcessIdentity;

    fn supervisor(executable: PathBuf) -> SupervisorRecord {
        SupervisorRecord {
            schema: 1,
            identity: ProcessIdentity::current().unwrap(),
            version: PackageVersion::new(1, 2, 3),
            executable,
            listeners: Vec::new(),
            since: staging::clock::now(),
        }
    }

    #[test]
    fn a_replaced_executable_is_read_through_its_process() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(executable(&supervisor(own.clone())), own);
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("rollproxy");
        std::fs::write(&other, "another build").unwrap();
        let through = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
        assert_eq!(executable(&supervisor(other)), through);
        assert_eq!(executable(&supervisor(folder.path().join("gone"))), through);
    }

    #[test]
    fn a_package_is_packed_again_as_it_is_and_programs_as_they_lie() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("p");
        let lone = folder.path().join("rollproxy");
        let notes = folder.path().join("notes");
        std::fs::write(&lone, "program").unwrap();
        std::fs::write(&notes, "notes").unwrap();
        let programs = of_programs(lone.clone(), &PackageVersion::new(1, 0, 0));
        let names: Vec<&str> = programs
            .binaries
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(names, [MAIN, UPDATER], "no launcher lies beside it");
        std::fs::write(folder.path().join(LAUNCHER), "launcher").unwrap();
        assert_eq!(
            of_programs(lone.clone(), &PackageVersion::new(1, 0, 0))
                .binaries
                .len(),
            3
        );

        let plan = Plan {
            binaries: vec![(MAIN.to_owned(), lone)],
            extra: vec![("share/notes".to_owned(), notes)],
            ..programs
        };
        let packed = pack::pack_folder(&plan, &root).unwrap();
        let found = package::containing(&root.join("bin/rollproxy")).unwrap();
        let again = pack::pack_folder(
            &of_package(&found, &packed.version),
            &folder.path().join("again"),
        )
        .unwrap();
        assert_eq!(again.digest(), packed.digest());
        assert!(folder.path().join("again").join(manifest::FILE).exists());
    }

    #[test]
    fn nothing_is_made_where_a_rollback_has_somewhere_to_go() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::at(folder.path().join("home"));
        home.create().unwrap();
        let no_lock = || -> Result<StateLock, Failure> { panic!("nothing to publish") };
        let supervisor = supervisor(std::env::current_exe().unwrap());
        let selected = PackageVersion::new(1, 0, 0);
        std::fs::create_dir(home.package(&selected)).unwrap();
        let validator = Validator::default();
        assert!(
            !ensure(
                &home,
                &supervisor,
                Some(&selected),
                "j",
                &validator,
                no_lock
            )
            .unwrap()
        );
        std::fs::create_dir(home.package(&supervisor.version)).unwrap();
        assert!(!ensure(&home, &supervisor, None, "j", &validator, no_lock).unwrap());
    }
}
