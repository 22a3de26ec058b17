//! Validation with real programs. This test program packs itself: started as an entry (`--version`, `check --self-test`)
//! it behaves as the package's `share/behaviour` says, and so needs a `main` of its own.

// Without the standard harness nothing here counts as a test to clippy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use staging::archive::{Limits, Unpacked, unpack};
use staging::home::Home;
use staging::locks::StateLock;
use staging::manifest::Manifest;
use staging::pack::{Plan, pack_archive, pack_folder};
use staging::publish::publish;
use staging::report::Report;
use staging::selection::{self, Change};
use staging::stage::StagingFolder;
use staging::validate::{Expected, Validated, ValidationError, Validator};
use staging::version::PackageVersion;
use staging::{launch, package};

const LONG: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--version" | "check") => entry(&arguments),
        _ => run_tests(&arguments),
    }
}

// ---- as an entry of a package

fn entry(arguments: &[String]) -> ExitCode {
    let executable = std::env::current_exe().unwrap();
    let name = executable.file_name().unwrap().to_str().unwrap().to_owned();
    let root = executable
        .parent()
        .and_then(Path::parent)
        .unwrap()
        .to_owned();
    let home = PathBuf::from(std::env::var_os("ROLLPROXY_HOME").unwrap_or_default());
    let behaviour = fs::read_to_string(root.join("share/behaviour")).unwrap_or_default();
    let self_test = arguments == ["check", "--self-test"];
    match behaviour.as_str() {
        "exit 1" => {
            eprintln!("the shared library is missing");
            return ExitCode::from(1);
        }
        "hang" => {
            fs::write(home.join("hanging"), std::process::id().to_string()).unwrap();
            loop {
                std::thread::park();
            }
        }
        "abort" => std::process::abort(),
        "other version" => {
            println!("{name} 9.9.9");
            return ExitCode::SUCCESS;
        }
        "other name" => {
            println!("nginx {}", package::own_version("0.0.0"));
            return ExitCode::SUCCESS;
        }
        "self-test fails" if self_test => {
            eprintln!("cannot read the feed's metadata");
            return ExitCode::from(78);
        }
        "rewrites itself" => {
            let path = root.join("share/behaviour");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            fs::write(&path, "REWRITES ITSELF").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        }
        "adds a file" => fs::write(root.join("bin/added"), "").unwrap(),
        "tells its environment" => {
            let mut lines: Vec<String> = std::env::vars_os()
                .map(|(key, _)| key.to_string_lossy().into_owned())
                .collect();
            lines.sort();
            fs::write(home.join("environment"), lines.join(" ")).unwrap();
            if self_test {
                fs::write(home.join("self-tested"), "").unwrap();
            }
        }
        _ => {}
    }
    if !self_test {
        println!("{}", package::version_report(&name, "0.0.1", "abc", false));
    }
    ExitCode::SUCCESS
}

// ---- as the test

/// A folder that goes away even with read-only packages in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        Scratch(tempfile::tempdir().unwrap().keep())
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = staging::files::remove_tree(&self.0);
    }
}

struct Staged {
    _folder: Scratch,
    home: Home,
    root: PathBuf,
}

impl Staged {
    fn new(behaviour: &str) -> Staged {
        let folder = Scratch::new();
        let home = Home::at(folder.path().join("home"));
        home.create().unwrap();
        let text = folder.path().join("behaviour");
        fs::write(&text, behaviour).unwrap();
        let me = std::env::current_exe().unwrap();
        let plan = Plan {
            version: PackageVersion::new(1, 2, 0),
            target: staging::TARGET.to_owned(),
            binaries: vec![
                ("rollproxy".into(), me.clone()),
                ("rollproxy-updater".into(), me),
            ],
            extra: vec![("share/behaviour".into(), text)],
            commit: "abc".into(),
            compiled_version: "0.0.1".into(),
            min_launcher: PackageVersion::new(0, 1, 0),
            level: 1,
        };
        let root = folder.path().join("package");
        pack_folder(&plan, &root).unwrap();
        Staged {
            _folder: folder,
            home,
            root,
        }
    }

    fn validate(
        &self,
        entry_timeout: Duration,
        cancel: &dyn Fn() -> bool,
    ) -> Result<Validated, ValidationError> {
        let validator = Validator {
            entry_timeout,
            self_test_timeout: LONG,
            ..Validator::default()
        };
        let expected = Expected {
            version: PackageVersion::new(1, 2, 0),
            manifest_digest: None,
        };
        validator.validate(&self.root, &expected, &self.home, cancel)
    }
}

fn refusal(behaviour: &str, code: &str, words: &[&str]) {
    let error = Staged::new(behaviour)
        .validate(LONG, &|| false)
        .unwrap_err();
    assert_eq!(error.code(), code, "{behaviour}: {error}");
    for word in words.iter().chain(&["1.2.0"]) {
        assert!(
            error.to_string().contains(word),
            "{behaviour}: `{word}` is not in: {error}"
        );
    }
}

fn a_good_package_passes() {
    let staged = Staged::new("");
    let validated = staged.validate(LONG, &|| false).unwrap();
    assert_eq!((validated.entries, validated.self_tested), (2, true));
}

fn entries_get_the_home_a_path_and_nothing_else() {
    let staged = Staged::new("tells its environment");
    staged.validate(LONG, &|| false).unwrap();
    let environment = fs::read_to_string(staged.home.root().join("environment")).unwrap();
    assert_eq!(environment, "PATH ROLLPROXY_HOME");
    assert!(staged.home.root().join("self-tested").exists());
}

fn bad_entries_are_refused_with_their_own_words() {
    refusal(
        "exit 1",
        "ENTRY_FAILED",
        &["rollproxy", "shared library is missing", "1"],
    );
    refusal("abort", "ENTRY_FAILED", &["signal"]);
    refusal("other version", "VERSION_MISMATCH", &["9.9.9"]);
    refusal("other name", "VERSION_MISMATCH", &["nginx"]);
    refusal(
        "self-test fails",
        "SELF_TEST_FAILED",
        &["updater of package", "feed's metadata", "78"],
    );
}

fn a_package_that_changes_itself_is_refused() {
    refusal(
        "rewrites itself",
        "PACKAGE_CHANGED_ITSELF",
        &["share/behaviour"],
    );
    refusal("adds a file", "PACKAGE_CHANGED_ITSELF", &["bin/added"]);
}

fn what_was_unpacked_here_is_hashed_again_only_after_it_ran() {
    let staged = Staged::new("something");
    let unpacked = Unpacked {
        manifest: Manifest::read(&staged.root).unwrap(),
        shared: 0,
    };
    let validate = || {
        let version = PackageVersion::new(1, 2, 0);
        let validator = Validator::default();
        validator.validate_unpacked(&staged.root, &version, &unpacked, &staged.home, &|| false)
    };
    validate().unwrap();
    // Of the same size and mode: only hashing tells.
    let text = staged.root.join("share/behaviour");
    fs::set_permissions(&text, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&text, "anotherxx").unwrap();
    fs::set_permissions(&text, fs::Permissions::from_mode(0o444)).unwrap();
    let before = staged.validate(LONG, &|| false).unwrap_err();
    assert_eq!(before.code(), "FILE_DIGEST", "{before}");
    let after = validate().unwrap_err();
    assert_eq!(after.code(), "PACKAGE_CHANGED_ITSELF", "{after}");
    fs::set_permissions(&text, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(validate().unwrap_err().code(), "FILE_MODE");
}

fn an_entry_that_hangs_is_killed_in_time() {
    let staged = Staged::new("hang");
    let start = Instant::now();
    let error = staged
        .validate(Duration::from_millis(300), &|| false)
        .unwrap_err();
    assert_eq!(error.code(), "ENTRY_TIMED_OUT", "{error}");
    assert!(start.elapsed() < LONG);
}

fn calling_off_kills_what_runs() {
    let staged = Staged::new("hang");
    let hanging = staged.home.root().join("hanging");
    let pid = || {
        fs::read_to_string(&hanging)
            .ok()
            .filter(|pid| !pid.is_empty())
    };
    let error = staged.validate(LONG, &|| pid().is_some()).unwrap_err();
    assert_eq!(error.code(), "VALIDATION_CANCELLED", "{error}");
    let pid = pid().unwrap();
    assert!(
        !Path::new(&format!("/proc/{pid}")).exists(),
        "{pid} still is there"
    );
    // Called off before anything ran.
    let error = Staged::new("").validate(LONG, &|| true).unwrap_err();
    assert_eq!(error.code(), "VALIDATION_CANCELLED");
}

fn modes_do_not_depend_on_the_umask() {
    // Here, for a umask is the whole process's, and only this program runs one test at a time.
    for umask in [0o000, 0o022, 0o077, 0o777] {
        let folder = Scratch::new();
        let home = Home::at(folder.path().join("home"));
        let archive = folder.path().join("a.tar.gz");
        let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(umask));
        home.create().unwrap();
        let me = std::env::current_exe().unwrap();
        let plan = Plan {
            version: PackageVersion::new(1, 2, 0),
            target: staging::TARGET.to_owned(),
            binaries: vec![("rollproxy".into(), me)],
            extra: vec![(
                "share/more/cargo.toml".into(),
                concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").into(),
            )],
            commit: "abc".into(),
            compiled_version: "0.0.1".into(),
            min_launcher: PackageVersion::new(0, 1, 0),
            level: 1,
        };
        pack_archive(&plan, &archive).unwrap();
        let staged = StagingFolder::create(&home, "job").unwrap();
        let manifest = unpack(
            fs::File::open(&archive).unwrap(),
            staged.path(),
            &Limits::default(),
            &mut |_| (),
        )
        .unwrap();
        let lock = StateLock::acquire(&home, LONG).unwrap();
        publish(&lock, &home, staged, &manifest).unwrap();
        let change = Change {
            version: manifest.version.clone(),
            pinned: false,
            by: "job".into(),
        };
        selection::write(&lock, &home, change).unwrap();
        rustix::process::umask(before);

        let root = home.package(&manifest.version);
        for (path, mode) in [
            (home.root().to_owned(), 0o700),
            (home.packages(), 0o700),
            (home.selection_file(), 0o600),
            (root.clone(), 0o555),
            (root.join("share/more"), 0o555),
            (root.join("bin/rollproxy"), 0o555),
            (root.join("package.json"), 0o444),
            (root.join("share/more/cargo.toml"), 0o444),
        ] {
            let found = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
            assert_eq!(found, mode, "umask {umask:03o}: {}", path.display());
        }
        home.check().unwrap();
        assert_eq!(launch::version(&home).unwrap().0, manifest.version);
    }
}

type Test = (&'static str, fn());

const TESTS: [Test; 8] = [
    (
        "what_was_unpacked_here_is_hashed_again_only_after_it_ran",
        what_was_unpacked_here_is_hashed_again_only_after_it_ran,
    ),
    (
        "modes_do_not_depend_on_the_umask",
        modes_do_not_depend_on_the_umask,
    ),
    ("a_good_package_passes", a_good_package_passes),
    (
        "entries_get_the_home_a_path_and_nothing_else",
        entries_get_the_home_a_path_and_nothing_else,
    ),
    (
        "bad_entries_are_refused_with_their_own_words",
        bad_entries_are_refused_with_their_own_words,
    ),
    (
        "a_package_that_changes_itself_is_refused",
        a_package_that_changes_itself_is_refused,
    ),
    (
        "an_entry_that_hangs_is_killed_in_time",
        an_entry_that_hangs_is_killed_in_time,
    ),
    ("calling_off_kills_what_runs", calling_off_kills_what_runs),
];

/// The part of the standard harness that is needed: names to choose by, a line a test, a failing exit.
fn run_tests(arguments: &[String]) -> ExitCode {
    if arguments.iter().any(|argument| argument == "--list") {
        for (name, _) in TESTS {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    // None of these is ignored.
    if arguments.iter().any(|argument| argument == "--ignored") {
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = arguments
        .iter()
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let mut failed = false;
    for (name, test) in TESTS {
        if filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str())) {
            let outcome = std::panic::catch_unwind(test);
            println!(
                "test {name} ... {}",
                if outcome.is_ok() { "ok" } else { "FAILED" }
            );
            failed |= outcome.is_err();
        }
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
