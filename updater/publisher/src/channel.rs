//! Channels: a role of its own signs what each offers, one small file a target triple.

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU64;

use tough::schema::{DelegatedRole, PathPattern, PathSet, Target, Targets};

use crate::disk;
use crate::feed::{Feed, Folder, SPEC_VERSION, find, put};
use crate::keys::KeyId;
use crate::names::{
    ChannelFile, SCHEMA, archive_name, channel_name, parse_channel, paths_of_channel,
    role_of_channel,
};
use crate::{Place, PublishError};

/// The most bytes that hosts read of a channel's file.
pub(crate) const LIMIT: u64 = 64 * 1024;

/// What one channel offers for one target triple.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    pub(crate) channel: String,
    pub(crate) target: String,
    pub(crate) file: ChannelFile,
}

impl Feed {
    /// What `channel` offers for `target`; none if it offers nothing.
    pub(crate) fn offer(
        &self,
        channel: &str,
        target: &str,
    ) -> Result<Option<ChannelFile>, PublishError> {
        let name = channel_name(target, channel);
        // Feeds of old had the channels' files in `targets` itself; hosts look there first.
        let own = self.channels.get(channel);
        let about = self
            .target(&name)
            .or_else(|| own.and_then(|own| find(own, &name)));
        about
            .map(|about| read_offer(&self.folder, &name, about))
            .transpose()
    }

    /// Everything that is offered.
    pub(crate) fn offers(&self) -> Result<Vec<Offer>, PublishError> {
        let mut all = Vec::new();
        let of_old = self.targets.targets.keys().filter_map(|name| {
            let file = name.raw().strip_prefix("rollproxy/")?.split_once('/')?.1;
            file.strip_suffix(".json").map(str::to_owned)
        });
        let channels: BTreeSet<_> = self.channels.keys().cloned().chain(of_old).collect();
        for channel in channels {
            for target in self.triples_of(&channel) {
                if let Some(file) = self.offer(&channel, &target)? {
                    all.push(Offer {
                        channel: channel.clone(),
                        target,
                        file,
                    });
                }
            }
        }
        Ok(all)
    }

    /// The target triples that a channel offers something for.
    pub(crate) fn triples_of(&self, channel: &str) -> Vec<String> {
        let own = self.channels.get(channel);
        let names = own
            .into_iter()
            .flat_map(|own| own.targets.keys())
            .chain(self.targets.targets.keys());
        let mut triples: Vec<_> = names
            .filter_map(|name| parse_channel(name.raw(), channel))
            .map(str::to_owned)
            .collect();
        triples.sort();
        triples
    }

    /// Makes `channel` offer what `file` says, for `target`. The channel's role must be there ([`Feed::delegate`]).
    pub(crate) fn set_offer(
        &mut self,
        channel: &str,
        target: &str,
        file: &ChannelFile,
    ) -> Result<(), PublishError> {
        let role = role_of_channel(channel);
        let mut bytes = serde_json::to_vec_pretty(file).map_err(|e| PublishError::Sign {
            role: role.clone(),
            source: Box::new(e),
        })?;
        bytes.push(b'\n');
        if bytes.len() as u64 > LIMIT {
            return Err(PublishError::TooLarge {
                role,
                length: bytes.len() as u64,
                limit: LIMIT,
            });
        }
        let (name, measure) = (channel_name(target, channel), disk::measure_bytes(&bytes));
        // The version also in `custom`, so that `jq` need not open the file.
        let custom = HashMap::from([("version".to_owned(), file.version.clone().into())]);
        self.add_file(self.folder.target_file(&name, &measure.sha256), bytes);
        self.touch_channel(channel);
        match self.channels.get_mut(channel) {
            Some(own) => put(own, &role, &name, &measure, custom),
            None => Err(PublishError::ChannelUnknown {
                channel: channel.to_owned(),
            }),
        }
    }

    /// Makes `channel` offer nothing for `target`. Its role stays: hosts refuse a feed that loses one.
    pub(crate) fn clear_offer(&mut self, channel: &str, target: &str) {
        if let (Some(own), Ok(name)) = (
            self.channels.get_mut(channel),
            tough::TargetName::new(channel_name(target, channel)),
        ) {
            own.remove_target(&name);
        }
        self.touch_channel(channel);
    }

    /// Makes the role of a channel if there is none yet: terminating, for this channel's files only, with a key of its own.
    pub(crate) fn delegate(&mut self, place: &Place, channel: &str) -> Result<(), PublishError> {
        if self.channels.contains_key(channel) {
            return Ok(());
        }
        let role = role_of_channel(channel);
        // Looked at first, so that no key is made that nothing will name.
        self.must_sign("targets")?;
        let key = self.keys.get_or_generate(&place.keys, &role)?;
        let (id, public) = (key.id()?, key.public()?);
        let paths =
            PathPattern::new(paths_of_channel(channel)).map_err(|e| PublishError::Sign {
                role: "targets".into(),
                source: Box::new(e),
            })?;
        let delegations = self.delegations_mut();
        delegations.keys.insert(id.clone(), public);
        delegations.roles.push(DelegatedRole {
            name: role,
            keyids: vec![id],
            threshold: NonZeroU64::MIN,
            paths: PathSet::Paths(vec![paths]),
            terminating: true,
            targets: None,
        });
        let mut own = Targets {
            delegations: None,
            ..Targets::new(SPEC_VERSION.into(), NonZeroU64::MIN, self.targets.expires)
        };
        // What `targets` signed for this channel before it had a role moves there, whatever the triple.
        let names: Vec<_> = self.targets.targets.keys().cloned().collect();
        for name in names {
            if parse_channel(name.raw(), channel).is_some()
                && let Some(about) = self.targets.remove_target(&name)
            {
                own.add_target(name, about);
            }
        }
        self.channels.insert(channel.to_owned(), own);
        self.touch_channel(channel);
        Ok(())
    }

    /// Puts another key in the place of a channel's.
    pub(crate) fn replace_channel_key(
        &mut self,
        channel: &str,
        id: &KeyId,
        public: tough::schema::key::Key,
    ) {
        let name = role_of_channel(channel);
        let delegations = self.delegations_mut();
        for role in &mut delegations.roles {
            if role.name == name {
                role.keyids = vec![id.clone()];
                role.threshold = NonZeroU64::MIN;
            }
        }
        delegations.keys.insert(id.clone(), public);
        let roles = &delegations.roles;
        delegations
            .keys
            .retain(|key, _| roles.iter().any(|role| role.keyids.contains(key)));
        self.touch_channel(channel);
    }

    /// Refuses early what could not be signed.
    pub(crate) fn must_sign(&self, role: &str) -> Result<(), PublishError> {
        if self.can_sign(role) {
            return Ok(());
        }
        Err(PublishError::KeyMissing {
            role: role.to_owned(),
            keys: self.keys.folders(),
            found: 0,
            needed: 1,
        })
    }
}

/// Reads a channel's file, whose length and digest the feed tells.
pub(crate) fn read_offer(
    folder: &Folder,
    name: &str,
    about: &Target,
) -> Result<ChannelFile, PublishError> {
    let path = folder.target_file(name, &about.hashes.sha256);
    let damaged = |reason: &str| PublishError::TargetDamaged {
        path: path.clone(),
        reason: reason.to_owned(),
    };
    let bytes = disk::read_bounded(&path, LIMIT)?.ok_or_else(|| damaged("it is missing"))?;
    let found = disk::measure_bytes(&bytes);
    if found.length != about.length || *found.sha256 != *about.hashes.sha256 {
        return Err(damaged("it is not what the feed says it is"));
    }
    let file: ChannelFile = serde_json::from_slice(&bytes)
        .map_err(|e| damaged(&format!("it is no channel file: {e}")))?;
    if file.schema != SCHEMA {
        return Err(damaged(&format!("it is of schema {}", file.schema)));
    }
    let target = name.split('/').nth(1).unwrap_or_default();
    if file.archive != archive_name(target, &file.version) {
        return Err(damaged("its archive is not that of its version"));
    }
    Ok(file)
}
