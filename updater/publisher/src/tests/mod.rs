//! What needs to see inside: a publisher that is killed in front of any of its writes. After it hosts still read the feed, and
//! the same command, run again, completes what was begun.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use staging::home::Home;
use updater::feed::{Feed, FeedSettings, RootSource, pin_root};

use crate::disk::faults;
use crate::{
    Add, Barrier, Init, KeyRole, Place, Promote, PublishError, Refresh, Rotate, Source, Validity,
    Verify, Withdraw, add, barrier, init, promote, refresh_all, rotate, verify, withdraw,
};

/// A feed that offers 1.1.0 in stable and 1.0.0 in beta, and a host that has read it.
struct World {
    folder: tempfile::TempDir,
    place: Place,
}

impl World {
    fn new() -> Self {
        // Thousands of fsyncs: where there is memory to write to, they cost nothing.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let folder = folder.unwrap();
        let place = Place::new(folder.path().join("feed"), folder.path().join("keys"));
        Self { folder, place }
    }

    /// A copy, for making one takes many writes.
    fn released() -> Self {
        static FIRST: LazyLock<World> = LazyLock::new(World::made);
        let world = Self::new();
        copy_tree(FIRST.folder.path(), world.folder.path());
        world
    }

    fn made() -> Self {
        let world = Self::new();
        init(&world.place, &Init::default()).unwrap();
        for (version, channel) in [("1.0.0", "beta"), ("1.1.0", "stable")] {
            add(&world.place, &world.adding(version)).unwrap();
            promote(&world.place, &promoting(channel, version)).unwrap();
        }
        world.pin("old");
        assert_eq!(world.offer("old"), Some("1.1.0".into()));
        world
    }

    fn adding(&self, version: &str) -> Add {
        let archive = self.folder.path().join(version);
        fs::write(&archive, version).unwrap();
        Add::new(version.parse().unwrap(), Source::Unchecked(archive))
    }

    fn home(&self, name: &str) -> Home {
        Home::at(self.folder.path().join(format!("home-{name}")))
    }

    fn pin(&self, name: &str) {
        let home = self.home(name);
        home.create().unwrap();
        let root = self.place.root();
        let sha256 = staging::digest::of(&fs::read(&root).unwrap());
        block_on(pin_root(&home, &RootSource::File(root), &sha256)).unwrap();
    }

    /// What stable offers to the host of that name, whose state is as if it had not looked.
    fn offer(&self, name: &str) -> Option<String> {
        let looking = self.folder.path().join("home-looking");
        let _ = fs::remove_dir_all(&looking);
        copy_tree(self.home(name).root(), &looking);
        let url = format!("file://{}/", self.place.feed.display());
        block_on(async {
            let settings = FeedSettings::new(&url).unwrap();
            let mut feed = Feed::open(&settings, &self.home("looking")).unwrap();
            feed.refresh(jiff::Timestamp::now()).await.unwrap();
            let release = feed.release("stable", staging::TARGET).await.unwrap();
            release.map(|release| release.version.to_string())
        })
    }

    /// What stable offers, to a host that saw the feed before and to one that has never seen it.
    fn offered(&self) -> Option<String> {
        let _ = fs::remove_dir_all(self.home("new").root());
        self.pin("new");
        let offer = self.offer("new");
        assert_eq!(self.offer("old"), offer);
        offer
    }
}

fn promoting(channel: &str, version: &str) -> Promote {
    Promote::new(channel, version.parse().unwrap())
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(future)
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    fs::set_permissions(to, fs::metadata(from).unwrap().permissions()).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Kills `command` in front of its first write, its second, and so on, each time in a fresh world; looks what hosts see, and runs it
/// again. Gives the number of its writes.
fn killed_everywhere(
    before: &str,
    after: Option<&str>,
    command: impl Fn(&World) -> Result<(), PublishError>,
) -> usize {
    for writes in 0.. {
        let world = World::released();
        faults::allow(Some(writes));
        let outcome = command(&world);
        faults::allow(None);
        let killed = match outcome {
            Ok(()) => false,
            Err(PublishError::Write { source, .. }) if source.to_string() == "killed" => true,
            Err(error) => panic!("after {writes} writes: {error}"),
        };
        if killed {
            let seen = world.offered();
            assert!(
                seen.as_deref() == Some(before) || seen.as_deref() == after,
                "after {writes} writes: {seen:?}"
            );
            verify(&world.place.feed, &Verify::default()).unwrap();
            if let Err(error) = command(&world) {
                panic!("again, after {writes} writes: {error}");
            }
        }
        verify(&world.place.feed, &Verify::default()).unwrap();
        assert_eq!(world.offered().as_deref(), after, "after {writes} writes");
        let left = fs::read_dir(world.place.keys.as_path()).unwrap();
        let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(left.filter(|name| name.contains(".next.")).count(), 0);
        if !killed {
            return writes;
        }
    }
    unreachable!()
}

#[test]
fn an_init_killed_at_any_write_is_completed() {
    for writes in 0.. {
        let world = World::new();
        faults::allow(Some(writes));
        let outcome = init(&world.place, &Init::default());
        faults::allow(None);
        if outcome.is_err() {
            init(&world.place, &Init::default()).unwrap();
        }
        verify(&world.place.feed, &Verify::default()).unwrap();
        world.pin("new");
        assert_eq!(world.offer("new"), None);
        if outcome.is_ok() {
            assert_eq!(writes, 6 + 2 + 3, "keys, roots, metadata");
            return;
        }
    }
}

#[test]
fn an_add_killed_at_any_write_leaves_a_feed() {
    let writes = killed_everywhere("1.1.0", Some("1.1.0"), |world| {
        add(&world.place, &world.adding("1.2.0")).map(drop)
    });
    assert_eq!(writes, 4);
}

#[test]
fn a_promotion_killed_at_any_write_leaves_a_feed() {
    let writes = killed_everywhere("1.1.0", Some("1.0.0"), |world| {
        promote(&world.place, &promoting("stable", "1.0.0")).map(drop)
    });
    assert_eq!(writes, 4);
    let writes = killed_everywhere("1.1.0", Some("1.1.0"), |world| {
        promote(&world.place, &promoting("nightly", "1.0.0")).map(drop)
    });
    assert_eq!(writes, 6, "with a key and targets");
}

#[test]
fn a_withdrawal_killed_at_any_write_leaves_a_feed() {
    let withdrawing = |world: &World, instead: Option<&str>| {
        let what = Withdraw {
            version: "1.1.0".parse().unwrap(),
            target: None,
            instead: instead.map(|version| version.parse().unwrap()),
            validity: Validity::default(),
        };
        match withdraw(&world.place, &what) {
            // The second run may find that the first did all of it but tell.
            Err(PublishError::VersionUnknown { .. }) => Ok(()),
            outcome => outcome.map(drop),
        }
    };
    killed_everywhere("1.1.0", Some("1.0.0"), |world| {
        withdrawing(world, Some("1.0.0"))
    });
    killed_everywhere("1.1.0", None, |world| withdrawing(world, None));
}

#[test]
fn a_barrier_and_a_refresh_killed_at_any_write_leave_a_feed() {
    killed_everywhere("1.1.0", Some("1.1.0"), |world| {
        let what = Barrier {
            channel: "stable".into(),
            version: "1.0.0".parse().unwrap(),
            target: None,
            remove: false,
            validity: Validity::default(),
        };
        barrier(&world.place, &what).map(drop)
    });
    killed_everywhere("1.1.0", Some("1.1.0"), |world| {
        refresh_all(&world.place, &Refresh::default()).map(drop)
    });
}

#[test]
fn a_rotation_killed_at_any_write_leaves_a_feed_and_is_completed() {
    for roles in [
        &["root"][..],
        &["targets"],
        &["snapshot"],
        &["timestamp"],
        &["channel-stable"],
        &[
            "root",
            "targets",
            "snapshot",
            "timestamp",
            "channel-stable",
            "channel-beta",
        ],
    ] {
        let roles: Vec<KeyRole> = roles.iter().map(|role| role.parse().unwrap()).collect();
        killed_everywhere("1.1.0", Some("1.1.0"), |world| {
            rotate(&world.place, &Rotate::new(roles.clone())).map(drop)
        });
    }
}

#[test]
fn a_rotation_of_a_lost_key_killed_at_any_write_is_completed() {
    killed_everywhere("1.1.0", Some("1.1.0"), |world| {
        // Lost before the first run; a second one finds it lost, or replaced already.
        let lost = world.folder.path().join("lost");
        if !lost.exists() {
            fs::write(lost, "").unwrap();
            fs::remove_file(world.place.keys.join("root-2.pk8")).unwrap();
        }
        let how = Rotate {
            lost: Some("root-2.pk8".into()),
            ..Rotate::new([KeyRole::Root])
        };
        rotate(&world.place, &how).map(drop)
    });
    for role in ["targets", "snapshot", "timestamp", "channel-stable"] {
        killed_everywhere("1.1.0", Some("1.1.0"), |world| {
            let lost = world.folder.path().join("lost");
            if !lost.exists() {
                fs::write(lost, "").unwrap();
                fs::remove_file(world.place.keys.join(format!("{role}.pk8"))).unwrap();
            }
            rotate(&world.place, &Rotate::new([role.parse().unwrap()])).map(drop)
        });
    }
}

#[test]
fn what_a_killed_publisher_left_half_written_is_removed() {
    let world = World::released();
    let metadata = world.place.feed.join("metadata");
    let left = metadata.join(".writing-abc");
    fs::write(&left, "half").unwrap();
    refresh_all(&world.place, &Refresh::default()).unwrap();
    assert!(!left.exists());
}
