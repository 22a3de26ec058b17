//! A TUF repository written by hand: for what a publisher's tool never makes, and an attacker or another tool may.

use std::collections::BTreeMap;
use std::fs;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;

/// Roles of every repository, in the order in which they are published.
pub const ALL: [&str; 4] = ["root", "targets", "snapshot", "timestamp"];

pub struct Repository {
    folder: tempfile::TempDir,
    pub home: Home,
    pub now: Timestamp,
    keys: Vec<Ed25519KeyPair>,
    /// What is signed next, by role.
    pub roles: BTreeMap<String, Value>,
    /// Which keys sign it.
    pub signers: BTreeMap<String, Vec<usize>>,
    /// Whether metadata are pinned by length and digest too.
    pub digests: bool,
}

impl Repository {
    /// The first version of everything, and a home that pinned the root. Key `n` is that of the `n`th of [`ALL`].
    pub async fn new() -> Self {
        let mut repository = Self::unpinned();
        repository.publish(&ALL);
        repository.pin().await.unwrap();
        repository
    }

    /// As above, but nothing is published or pinned yet.
    pub fn unpinned() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::at(folder.path().join("home"));
        home.create().unwrap();
        fs::create_dir_all(folder.path().join("feed/metadata")).unwrap();
        let now = Timestamp::now();
        let mut repository = Self {
            folder,
            home,
            now,
            keys: Vec::new(),
            roles: BTreeMap::new(),
            signers: BTreeMap::new(),
            digests: false,
        };
        for role in ALL {
            repository.roles.insert(role.into(), repository.blank(role));
        }
        repository.roles.get_mut("root").unwrap()["consistent_snapshot"] = true.into();
        for (key, role) in ALL.into_iter().enumerate() {
            assert_eq!(repository.new_key(), key);
            repository.hand(role, &[key], 1);
        }
        repository
    }

    fn blank(&self, role: &str) -> Value {
        let kind = if ALL.contains(&role) { role } else { "targets" };
        let mut signed = json!({
            "_type": kind, "spec_version": "1.0.31", "version": 0, "expires": self.in_days(90),
        });
        let field = match kind {
            "root" => "roles",
            "targets" => "targets",
            _ => "meta",
        };
        signed[field] = json!({});
        if kind == "root" {
            signed["keys"] = json!({});
        }
        signed
    }

    /// A moment as it stands in metadata.
    pub fn in_days(&self, days: i64) -> String {
        let moment = self.now + SignedDuration::from_hours(24 * days);
        moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    pub fn new_key(&mut self) -> usize {
        self.keys.push(Ed25519KeyPair::generate().unwrap());
        self.keys.len() - 1
    }

    pub fn new_keys(&mut self, count: usize) -> Vec<usize> {
        (0..count).map(|_| self.new_key()).collect()
    }

    fn public(&self, key: usize) -> Value {
        let hex: String = (self.keys[key].public_key().as_ref().iter())
            .map(|byte| format!("{byte:02x}"))
            .collect();
        json!({"keytype": "ed25519", "scheme": "ed25519", "keyval": {"public": hex}})
    }

    /// The next root gives `role` to these keys, and they sign it from now on.
    pub fn hand(&mut self, role: &str, keys: &[usize], threshold: usize) {
        for key in keys {
            let public = self.public(*key);
            self.of("root")["keys"][id(*key)] = public;
        }
        let ids: Vec<_> = keys.iter().map(|key| id(*key)).collect();
        self.of("root")["roles"][role] = json!({"keyids": ids, "threshold": threshold});
        self.signers.insert(role.into(), keys.to_vec());
    }

    /// What is signed next as `role`.
    pub fn of(&mut self, role: &str) -> &mut Value {
        self.roles.get_mut(role).unwrap()
    }

    /// `delegator` gives `role` with these paths to a new key, which signs it too.
    pub fn delegate(&mut self, delegator: &str, role: &str, paths: &[&str], terminating: bool) {
        let key = self.new_key();
        if !self.roles.contains_key(role) {
            let blank = self.blank(role);
            self.roles.insert(role.into(), blank);
        }
        self.signers.entry(role.into()).or_default().push(key);
        let public = self.public(key);
        let delegator = self.of(delegator);
        if delegator["delegations"].is_null() {
            delegator["delegations"] = json!({"keys": {}, "roles": []});
        }
        delegator["delegations"]["keys"][id(key)] = public;
        delegator["delegations"]["roles"].as_array_mut().unwrap().push(json!({
            "name": role, "keyids": [id(key)], "threshold": 1, "terminating": terminating, "paths": paths,
        }));
    }

    /// `role` names a file from now on; the file is there.
    pub fn add(&mut self, role: &str, name: &str, content: &[u8], custom: Value) {
        let sha256 = staging::digest::of(content);
        self.of(role)["targets"][name] =
            json!({"length": content.len(), "hashes": {"sha256": sha256}, "custom": custom});
        let (folder, base) = name.rsplit_once('/').unwrap_or(("", name));
        let folder = self.feed().join("targets").join(folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("{sha256}.{base}")), content).unwrap();
    }

    /// Signs the next version of each of these, in this order.
    pub fn publish(&mut self, roles: &[&str]) {
        for role in roles {
            let version = self.version(role) + 1;
            self.of(role)["version"] = version.into();
            let bytes = self.signed(role);
            self.write(role, version, &bytes);
        }
    }

    /// `role` as it is now, signed.
    pub fn signed(&self, role: &str) -> Vec<u8> {
        let signed = &self.roles[role];
        let canonical = sigstore_tuf::canonical_json::to_canonical_bytes(signed).unwrap();
        let signatures: Vec<_> = (self.signers[role].iter())
            .map(|key| {
                let signature = self.keys[*key].sign(&canonical);
                let hex: String = (signature.as_ref().iter())
                    .map(|byte| format!("{byte:02x}"))
                    .collect();
                json!({"keyid": id(*key), "sig": hex})
            })
            .collect();
        serde_json::to_vec(&json!({"signed": signed, "signatures": signatures})).unwrap()
    }

    /// Puts these bytes where version `version` of `role` is looked for, and what pins it right.
    pub fn write(&mut self, role: &str, version: u64, bytes: &[u8]) {
        let file = match role {
            "timestamp" => "timestamp.json".to_owned(),
            role => format!("{version}.{role}.json"),
        };
        fs::write(self.feed().join("metadata").join(file), bytes).unwrap();
        let mut pin = json!({"version": version});
        if self.digests {
            pin["length"] = bytes.len().into();
            pin["hashes"] = json!({"sha256": staging::digest::of(bytes)});
        }
        match role {
            "root" | "timestamp" => {}
            "snapshot" => self.of("timestamp")["meta"]["snapshot.json"] = pin,
            role => self.of("snapshot")["meta"][format!("{role}.json")] = pin,
        }
    }

    pub fn version(&self, role: &str) -> u64 {
        self.roles[role]["version"].as_u64().unwrap()
    }

    /// The next version that is published of `role` is this one.
    pub fn restart(&mut self, role: &str, version: u64) {
        self.of(role)["version"] = (version - 1).into();
    }

    pub fn feed(&self) -> PathBuf {
        self.folder.path().join("feed")
    }

    pub fn url(&self) -> String {
        file_url(&self.feed())
    }

    /// Pins the first root.
    pub async fn pin(&self) -> Result<(), FeedError> {
        let bytes = fs::read(self.feed().join("metadata/1.root.json")).unwrap();
        let sha256 = staging::digest::of(&bytes);
        pin_root(&self.home, &RootSource::Bytes(bytes), &sha256).await
    }

    pub async fn refresh(&self) -> Result<Feed, FeedError> {
        self.refresh_from(&self.url()).await
    }

    pub async fn refresh_from(&self, url: &str) -> Result<Feed, FeedError> {
        let mut feed = Feed::open(&FeedSettings::new(url)?, &self.home)?;
        feed.refresh(self.now).await?;
        Ok(feed)
    }

    /// What this host trusts: the versions of [`ALL`], 0 for none.
    pub fn trusted(&self) -> [u64; 4] {
        let version = |name: &str| {
            let text = fs::read(self.home.feed().join(name)).ok()?;
            let file: serde_json::Value = serde_json::from_slice(&text).unwrap();
            file["signed"]["version"].as_u64()
        };
        [
            Feed::cached(&self.home).unwrap().root,
            version("targets.json").unwrap_or(0),
            version("snapshot.json").unwrap_or(0),
            version("timestamp.json").unwrap_or(0),
        ]
    }
}

/// How metadata name a key.
pub fn id(key: usize) -> String {
    format!("{key:064}")
}
