//! A feed with its keys in a temporary folder, and hosts that read it with the updater's own client.

// Helpers of tests are tests; not every test needs all of them.
#![allow(clippy::unwrap_used, clippy::panic, dead_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use publisher::{Add, Binaries, Init, Place, Promote, Source, add, init, promote};
use serde_json::Value;
use staging::home::Home;
use staging::version::PackageVersion;
use updater::feed::{Feed, FeedError, FeedSettings, Release, RootSource, pin_root};

pub struct World {
    pub folder: tempfile::TempDir,
    pub place: Place,
}

impl World {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path().join("feed"), folder.path().join("keys"));
        Self { folder, place }
    }

    pub fn initialised() -> Self {
        let world = Self::new();
        init(&world.place, &Init::default()).unwrap();
        world
    }

    /// A feed whose stable channel offers 1.0.0.
    pub fn released() -> Self {
        let world = Self::initialised();
        world.release("1.0.0");
        world
    }

    /// Adds a version that no host would unpack, and promotes it to stable.
    pub fn release(&self, text: &str) {
        add(&self.place, &self.unchecked(text, text.as_bytes())).unwrap();
        promote(&self.place, &Promote::new("stable", version(text))).unwrap();
    }

    pub fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    pub fn unchecked(&self, text: &str, content: &[u8]) -> Add {
        Add::new(version(text), Source::Unchecked(self.file(text, content)))
    }

    /// A version of three programs, each with `more` at its end.
    pub fn real(&self, text: &str, more: &[u8]) -> Add {
        let folder = self.binaries(text, more);
        let binaries = Binaries::in_folder(&folder, "0.1.0").unwrap();
        Add::new(version(text), Source::Binaries(binaries))
    }

    /// A folder of three programs.
    pub fn binaries(&self, name: &str, more: &[u8]) -> PathBuf {
        let folder = self.folder.path().join(format!("bin-{name}"));
        fs::create_dir_all(&folder).unwrap();
        for name in ["rollproxy", "rollproxy-updater", "rollproxy-launcher"] {
            let path = folder.join(name);
            let mut content = format!("#!/bin/sh\necho {name}\n").into_bytes();
            content.extend_from_slice(more);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        folder
    }

    pub fn metadata(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.place.feed.join("metadata").join(name)).unwrap())
            .unwrap()
    }

    /// Every file of the feed, with its content.
    pub fn everything(&self) -> Vec<(PathBuf, Vec<u8>)> {
        files_of(&self.place.feed)
    }

    /// A host that pinned the first root, and has read nothing yet.
    pub fn host(&self, name: &str) -> Host {
        let home = Home::at(self.folder.path().join(format!("home-{name}")));
        home.create().unwrap();
        let root = self.place.root();
        let sha256 = staging::digest::of(&fs::read(&root).unwrap());
        let host = Host {
            home,
            url: file_url(&self.place.feed),
        };
        block_on(pin_root(&host.home, &RootSource::File(root), &sha256)).unwrap();
        host
    }
}

/// A host's view of a feed.
pub struct Host {
    pub home: Home,
    pub url: String,
}

impl Host {
    pub fn release(&self, channel: &str) -> Result<Option<Release>, FeedError> {
        block_on(async {
            let mut feed = Feed::open(&FeedSettings::new(&self.url)?, &self.home)?;
            feed.refresh(jiff::Timestamp::now()).await?;
            feed.release(channel, staging::TARGET).await
        })
    }

    /// The version that a channel offers; the code of the error if the feed is refused.
    pub fn offer(&self, channel: &str) -> Result<Option<String>, &'static str> {
        match self.release(channel) {
            Ok(release) => Ok(release.map(|release| release.version.to_string())),
            Err(error) => {
                println!("{error}");
                Err(staging::report::Report::code(&error))
            }
        }
    }
}

pub fn file_url(folder: &Path) -> String {
    format!("file://{}/", folder.display())
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

pub fn files_of(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    collect(folder, &mut all);
    all.sort();
    all
}

fn collect(folder: &Path, into: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, into);
        } else {
            into.push((path.clone(), fs::read(path).unwrap()));
        }
    }
}

pub fn version(text: &str) -> PackageVersion {
    text.parse().unwrap()
}

/// Bytes that do not compress.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

type Object = serde_json::Map<String, Value>;

/// Signs other targets with the key of a role, as whoever has that key can, and pins them with the keys of snapshot and timestamp.
pub fn resign(world: &World, role: &str, change: impl Fn(&mut Object)) {
    let pin = rewrite(world, role, |signed| {
        change(signed["targets"].as_object_mut().unwrap());
    });
    repin(world, |meta| {
        meta.insert(format!("{role}.json"), pin.clone());
    });
}

/// Makes the feed one of those whose channels had no roles.
pub fn forget_channel(world: &World, channel: &str) {
    let pin = rewrite(world, "targets", |signed| {
        signed.remove("delegations");
    });
    repin(world, |meta| {
        meta.remove(&format!("channel-{channel}.json"));
        meta.insert("targets.json".into(), pin.clone());
    });
}

fn repin(world: &World, change: impl Fn(&mut Object)) {
    let pin = rewrite(world, "snapshot", |signed| {
        change(signed["meta"].as_object_mut().unwrap());
    });
    rewrite(world, "timestamp", |signed| {
        signed["meta"]["snapshot.json"] = pin.clone();
    });
}

/// Changes the newest metadata of a role and signs them with its key; gives what pins them.
fn rewrite(world: &World, role: &str, change: impl Fn(&mut Object)) -> Value {
    let folder = world.place.feed.join("metadata");
    let newest = fs::read_dir(&folder)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter_map(|name| {
            name.strip_suffix(&format!(".{role}.json"))?
                .parse::<u64>()
                .ok()
        })
        .max();
    let name = match newest {
        Some(version) => format!("{version}.{role}.json"),
        None => format!("{role}.json"),
    };
    let mut all = world.metadata(&name);
    let version = all["signed"]["version"].as_u64().unwrap() + 1;
    all["signed"]["version"] = version.into();
    change(all["signed"].as_object_mut().unwrap());
    let key = fs::read(world.place.keys.join(format!("{role}.pk8"))).unwrap();
    let key = aws_lc_rs::signature::Ed25519KeyPair::from_pkcs8(&key).unwrap();
    let signature = key.sign(canonical(&all["signed"]).as_bytes());
    all["signatures"][0]["sig"] = staging::digest::hex(signature.as_ref()).into();
    let bytes = serde_json::to_vec_pretty(&all).unwrap();
    let name = match newest {
        Some(_) => format!("{version}.{role}.json"),
        None => name,
    };
    fs::write(folder.join(name), &bytes).unwrap();
    serde_json::json!({
        "length": bytes.len(), "version": version, "hashes": {"sha256": staging::digest::of(&bytes)},
    })
}

/// JSON as it is signed, for texts that need no escapes.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(all) => {
            let mut members: Vec<_> = all
                .iter()
                .map(|(name, value)| format!("{}:{}", Value::from(name.as_str()), canonical(value)))
                .collect();
            members.sort();
            format!("{{{}}}", members.join(","))
        }
        Value::Array(all) => {
            let all: Vec<_> = all.iter().map(canonical).collect();
            format!("[{}]", all.join(","))
        }
        other => other.to_string(),
    }
}
