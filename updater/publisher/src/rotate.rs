//! `rotate`: new keys in the place of old ones that were lost, stolen or used long enough. Every host that pinned the first root
//! follows.
//!
//! No moment of it leaves hosts without a feed that they can read, whatever is cut short. A new key of `targets`, `snapshot` or
//! `timestamp` takes two roots: one that admits it beside the old one, and, when everything is signed with it, one that
//! knows the old one no more. A channel's key changes in `targets` metadata, so at once; those of the root in the second root.
//!
//! A new key is `<name>.next.pk8` until all that is done. A rotation that was cut short is so found again and completed by the
//! next one of the same role.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use serde::Serialize;
use staging::digest;
use tough::schema::{RoleType, Root};

use crate::disk::{self, SERVED};
use crate::feed::Feed;
use crate::init::check_threshold;
use crate::keys::{KeyId, PrivateKey, file_of, root_name};
use crate::names::role_of_channel;
use crate::root::{self, Named};
use crate::sign::{role_type, sign_root};
use crate::{KeyRole, Place, PublishError, ROOT_DAYS, Validity};

/// Which keys are to be replaced.
#[derive(Debug, Clone)]
pub struct Rotate {
    /// The roles.
    pub roles: Vec<KeyRole>,
    /// The one key of the root to replace, by its file, which need not be there; without it, all keys of the root.
    pub lost: Option<PathBuf>,
    /// How many keys the root has then, if all are replaced; without it, as many as before.
    pub root_keys: Option<u8>,
    /// How many of them must sign then, if all are replaced; without it, as many as before.
    pub root_threshold: Option<u8>,
    /// Days until the new root expires.
    pub root_days: u32,
    /// When it is signed, and how long the rest holds.
    pub validity: Validity,
}

impl Rotate {
    /// New keys for these roles.
    pub fn new(roles: impl IntoIterator<Item = KeyRole>) -> Self {
        Self {
            roles: roles.into_iter().collect(),
            lost: None,
            root_keys: None,
            root_threshold: None,
            root_days: ROOT_DAYS,
            validity: Validity::default(),
        }
    }
}

/// Keys that were replaced.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rotated {
    /// The new keys.
    pub keys: Vec<NewKey>,
    /// The newest root: hosts that pinned an earlier one find it by themselves.
    pub root: PathBuf,
    /// Its version.
    pub root_version: u64,
    /// Its SHA-256, for hosts that pin this one.
    pub root_sha256: String,
    /// When the first of all metadata expires.
    pub expires: jiff::Timestamp,
    /// Channels that kept their keys while `targets` got a new one.
    pub channels_left: Vec<String>,
}

/// A key that took the place of another.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewKey {
    /// The role it signs for.
    pub role: KeyRole,
    /// Its file.
    pub file: PathBuf,
    /// Where the old key's file is now, if it was there.
    pub retired: Option<PathBuf>,
}

/// Replaces keys. A new root is signed by the keys of the one before it, as many as its threshold says, and by its own.
///
/// # Errors
/// [`PublishError::KeyMissing`] if too few keys of the root are here (or, for a channel, not that of `targets`), or those to sign
/// what follows; [`PublishError::KeyUnknown`] for a lost key that the root does not have; anything wrong with the feed.
pub fn rotate(place: &Place, how: &Rotate) -> Result<Rotated, PublishError> {
    let mut roles = how.roles.clone();
    roles.sort();
    roles.dedup();
    if (how.lost.is_some() || how.root_keys.is_some() || how.root_threshold.is_some())
        && !roles.contains(&KeyRole::Root)
    {
        return Err(PublishError::NotTheRoot);
    }
    let mut feed = Feed::open(place)?;
    let _lock = feed.lock();
    refuse_early(&feed, &roles)?;
    let channels_left = channels_left(&feed, &roles);
    let changes = plan(&mut feed, place, how, &roles)?;
    let rotated = apply(feed, place, how, &changes)?;
    let keys = settle(&changes)?;
    Ok(Rotated {
        keys,
        channels_left,
        ..rotated
    })
}

/// One key in the place of others.
#[derive(Debug)]
struct Change {
    role: KeyRole,
    /// Its name once it is settled, and the folder it lies in.
    name: String,
    folder: PathBuf,
    new: Named,
    /// The keys that go, as the metadata name them.
    old: Vec<KeyId>,
    /// Their files, as far as they are here.
    old_files: Vec<PathBuf>,
}

/// Refuses before any key is made what could not be signed at the end.
fn refuse_early(feed: &Feed, roles: &[KeyRole]) -> Result<(), PublishError> {
    for role in roles {
        if let KeyRole::Channel(name) = role
            && !feed.channels.contains_key(name)
        {
            return Err(PublishError::ChannelUnknown {
                channel: name.clone(),
            });
        }
    }
    let of_root = |role: &KeyRole| !matches!(role, KeyRole::Channel(_));
    if roles.iter().any(of_root) {
        // The same error, with the numbers, that signing would end with.
        sign_root(&feed.root, None, &feed.keys)?;
    }
    let lower = roles.iter().any(|role| *role != KeyRole::Root);
    let kept = |role: KeyRole| !roles.contains(&role);
    let channel = |role: &KeyRole| matches!(role, KeyRole::Channel(_));
    if roles.iter().any(channel) && kept(KeyRole::Targets) {
        feed.must_sign("targets")?;
    }
    let above_snapshot = |role: &KeyRole| channel(role) || *role == KeyRole::Targets;
    if roles.iter().any(above_snapshot) && kept(KeyRole::Snapshot) {
        feed.must_sign("snapshot")?;
    }
    if lower && kept(KeyRole::Timestamp) {
        feed.must_sign("timestamp")?;
    }
    Ok(())
}

/// The channels whose keys stay although those of `targets` go: mostly one forgot them.
fn channels_left(feed: &Feed, roles: &[KeyRole]) -> Vec<String> {
    let names = feed.channels.keys().filter(|name| {
        roles.contains(&KeyRole::Targets) && !roles.contains(&KeyRole::Channel((*name).clone()))
    });
    names.map(|name| role_of_channel(name)).collect()
}

/// Makes the new keys, or finds those of a rotation that was cut short.
fn plan(
    feed: &mut Feed,
    place: &Place,
    how: &Rotate,
    roles: &[KeyRole],
) -> Result<Vec<Change>, PublishError> {
    let mut changes = Vec::new();
    for role in roles {
        let (name, current) = match role {
            KeyRole::Root => {
                changes.extend(plan_root(feed, place, how)?);
                continue;
            }
            KeyRole::Channel(channel) => {
                let name = role_of_channel(channel);
                let delegations = feed.targets.delegations.iter();
                let mut roles = delegations.flat_map(|all| &all.roles);
                let keys = roles.find(|role| role.name == name);
                (
                    name,
                    keys.map(|role| role.keyids.clone()).unwrap_or_default(),
                )
            }
            role => {
                let name = role.to_string();
                let Some(of_root) = role_type(&name) else {
                    continue;
                };
                if root::threshold(&feed.root, of_root) != 1 {
                    return Err(PublishError::SeveralKeys { role: name });
                }
                (name, root::ids(&feed.root, of_root))
            }
        };
        changes.push(change(feed, role, &name, &place.keys, current)?);
    }
    Ok(changes)
}

fn plan_root(feed: &mut Feed, place: &Place, how: &Rotate) -> Result<Vec<Change>, PublishError> {
    let current = root::ids(&feed.root, RoleType::Root);
    if let Some(lost) = &how.lost {
        let (number, old) = find_lost(feed, lost, &current)?;
        let name = root_name(number);
        let folder = folder_of(place, lost, number);
        return Ok(vec![change(
            feed,
            &KeyRole::Root,
            &name,
            &folder,
            vec![old],
        )?]);
    }
    let count = how.root_keys.map_or(current.len(), usize::from);
    let mut changes = Vec::new();
    for number in 1..=count {
        let name = root_name(number);
        let folder = place.root_key_folder(number).to_owned();
        // A key of the root goes with the new one of its number, and what is left over with the last.
        let old = match number {
            last if last == count => current.get(number - 1..).unwrap_or_default(),
            _ => current.get(number - 1..number).unwrap_or_default(),
        };
        changes.push(change(feed, &KeyRole::Root, &name, &folder, old.to_vec())?);
    }
    Ok(changes)
}

/// The number of a lost key of the root, and how the root names it: by the key itself if it is here, else by its file's name.
fn find_lost(feed: &Feed, lost: &Path, current: &[KeyId]) -> Result<(usize, KeyId), PublishError> {
    let here = feed.keys.with_ids(current);
    let by_key = here
        .iter()
        .find(|key| key.path() == lost || key.path().file_name() == lost.file_name())
        .and_then(|key| key.id().ok())
        .and_then(|id| Some((current.iter().position(|other| *other == id)? + 1, id)));
    let number = lost
        .file_name()
        .and_then(|name| name.to_str())
        .and_then(|name| {
            name.strip_suffix(".pk8")
                .unwrap_or(name)
                .strip_prefix("root-")
        })
        .and_then(|number| number.parse::<usize>().ok());
    let by_name = number.and_then(|number| {
        let id = current.get(number.checked_sub(1)?)?;
        Some((number, id.clone()))
    });
    by_key.or(by_name).ok_or_else(|| PublishError::KeyUnknown {
        file: lost.to_owned(),
        count: current.len(),
    })
}

/// Where the new key of the root goes: to the folder that was named with the lost one, if it is one of the place's.
fn folder_of(place: &Place, lost: &Path, number: usize) -> PathBuf {
    let named = lost
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let known = place.key_folders();
    named
        .filter(|named| known.iter().any(|folder| folder == named))
        .unwrap_or_else(|| place.root_key_folder(number))
        .to_owned()
}

fn change(
    feed: &mut Feed,
    role: &KeyRole,
    name: &str,
    folder: &Path,
    current: Vec<KeyId>,
) -> Result<Change, PublishError> {
    let key = feed.keys.get_or_generate(folder, &next_name(name))?;
    let new = (key.id()?, key.public()?);
    let old: Vec<_> = current.into_iter().filter(|id| *id != new.0).collect();
    let files = feed.keys.with_ids(&old).into_iter().map(PrivateKey::path);
    Ok(Change {
        role: role.clone(),
        name: name.to_owned(),
        folder: folder.to_owned(),
        old_files: files.map(Path::to_owned).collect(),
        new,
        old,
    })
}

fn next_name(name: &str) -> String {
    format!("{name}.next")
}

/// Signs everything with the new keys and writes it, in the order in which hosts can follow at any time.
fn apply(
    mut feed: Feed,
    place: &Place,
    how: &Rotate,
    changes: &[Change],
) -> Result<Rotated, PublishError> {
    let root_expires = how.validity.expires(how.root_days)?;
    let before = feed.root.clone();
    let admitting = admitting(&before, changes, root_expires);
    let settled = settled(
        admitting.as_ref().unwrap_or(&before),
        how,
        changes,
        root_expires,
    )?;
    let mut lower = false;
    for change in changes {
        match &change.role {
            KeyRole::Root => {}
            KeyRole::Targets => feed.touch_targets(),
            KeyRole::Snapshot => feed.touch_snapshot(),
            KeyRole::Timestamp => {}
            KeyRole::Channel(name) => {
                feed.replace_channel_key(name, &change.new.0, change.new.1.clone());
            }
        }
        lower |= change.role != KeyRole::Root && !change.old.is_empty();
    }

    let mut roots = Vec::new();
    let folder = feed.folder.clone();
    let mut last = before;
    for root in [admitting.clone(), settled].into_iter().flatten() {
        let signed = sign_root(&root, Some(&last), &feed.keys)?;
        roots.push((root.version.get(), signed.buffer().clone()));
        last = root;
    }
    let newest = roots.last().map(|(_, bytes)| bytes.clone());
    let newest = newest.unwrap_or_else(|| feed.root_bytes.clone());
    // By the keys of the root that admits both: whoever has read an older root already can read this, too.
    if let Some(admitting) = &admitting {
        feed.root = admitting.clone();
    }
    let standing = standing(&feed);
    let soon = how.validity.expires(how.validity.days)?;
    let signed = match lower {
        true => Some(feed.sign(soon, soon)?),
        false => None,
    };

    let write = |(version, bytes): &(u64, Vec<u8>)| {
        disk::write_whole(
            &folder.metadata_file(&format!("{version}.root.json")),
            bytes,
            SERVED,
        )
    };
    let (first, rest) = roots.split_at(usize::from(admitting.is_some()));
    first.iter().try_for_each(write)?;
    let expires = match signed {
        Some(signed) => signed.write()?.expires,
        None => standing,
    };
    rest.iter().try_for_each(write)?;
    Ok(Rotated {
        keys: Vec::new(),
        root: place
            .feed
            .join("metadata")
            .join(format!("{}.root.json", last.version)),
        root_version: last.version.get(),
        root_sha256: digest::of(&newest),
        expires: expires.min(last.expires),
        channels_left: Vec::new(),
    })
}

/// When the first of the metadata below the root expires, as they stand.
fn standing(feed: &Feed) -> jiff::Timestamp {
    let pieces = feed.pieces();
    let below = pieces.iter().filter(|piece| piece.role != "root");
    below
        .map(|piece| piece.expires)
        .min()
        .unwrap_or(feed.root.expires)
}

/// The root that knows new keys of `targets`, `snapshot` and `timestamp` beside the old ones; none if it is there, or not needed.
fn admitting(before: &Root, changes: &[Change], expires: jiff::Timestamp) -> Option<Root> {
    let mut root = root::next(before, expires);
    for change in changes {
        if let Some(role) = role_type(&change.role.to_string())
            && role != RoleType::Root
        {
            root::admit(&mut root, role, &change.new);
        }
    }
    (root.roles != before.roles).then_some(root)
}

/// The root that knows the new keys only; none if it is there.
fn settled(
    before: &Root,
    how: &Rotate,
    changes: &[Change],
    expires: jiff::Timestamp,
) -> Result<Option<Root>, PublishError> {
    let mut root = root::next(before, expires);
    let of_root: Vec<_> = changes
        .iter()
        .filter(|change| change.role == KeyRole::Root)
        .collect();
    match (&how.lost, of_root.as_slice()) {
        (_, []) => {}
        (Some(_), one) => {
            for change in one {
                for old in &change.old {
                    root::replace(&mut root, RoleType::Root, old, &change.new);
                }
            }
        }
        (None, all) => {
            let standing = root::threshold(before, RoleType::Root);
            let threshold = how
                .root_threshold
                .unwrap_or_else(|| u8::try_from(standing).unwrap_or(u8::MAX));
            let count = u8::try_from(all.len()).unwrap_or(u8::MAX);
            let threshold = check_threshold(count, threshold)?;
            let new: Vec<_> = all.iter().map(|change| change.new.clone()).collect();
            root::assign(&mut root, RoleType::Root, &new, threshold);
        }
    }
    for change in changes {
        if let Some(role) = role_type(&change.role.to_string())
            && role != RoleType::Root
        {
            let new = std::slice::from_ref(&change.new);
            root::assign(&mut root, role, new, NonZeroU64::MIN);
        }
    }
    Ok((root.roles != before.roles).then_some(root))
}

/// Moves the old keys aside and gives the new ones their names.
fn settle(changes: &[Change]) -> Result<Vec<NewKey>, PublishError> {
    let mut keys = Vec::new();
    for change in changes {
        let file = file_of(&change.folder, &change.name);
        let mut old_files = change.old_files.clone();
        // Whatever has the name, even if the metadata never knew it.
        if !old_files.contains(&file) && file.exists() {
            old_files.push(file.clone());
        }
        let mut retired = None;
        for old in old_files {
            let to = aside(&old)?;
            disk::rename(&old, &to)?;
            retired = Some(to);
        }
        disk::rename(&file_of(&change.folder, &next_name(&change.name)), &file)?;
        keys.push(NewKey {
            role: change.role.clone(),
            file,
            retired,
        });
    }
    Ok(keys)
}

/// A free name for a key that is not used any more.
fn aside(path: &Path) -> Result<PathBuf, PublishError> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    for number in 1..u32::MAX {
        let name = match number {
            1 => format!("{stem}.pk8.retired"),
            number => format!("{stem}-{number}.pk8.retired"),
        };
        let aside = path.with_file_name(name);
        let taken = aside
            .try_exists()
            .map_err(|e| PublishError::read(&aside, e))?;
        if !taken {
            return Ok(aside);
        }
    }
    Ok(path.with_extension("pk8.retired"))
}
