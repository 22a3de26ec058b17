//! The root of trust as a value: which keys may sign what. Pure.

use std::collections::HashMap;
use std::num::NonZeroU64;

use tough::schema::key::Key;
use tough::schema::{RoleKeys, RoleType, Root};

use crate::feed::SPEC_VERSION;
use crate::keys::KeyId;

/// A key as a root names it.
pub(crate) type Named = (KeyId, Key);

/// A first root that names nobody yet.
pub(crate) fn empty(expires: jiff::Timestamp) -> Root {
    Root {
        spec_version: SPEC_VERSION.into(),
        consistent_snapshot: true,
        version: NonZeroU64::MIN,
        expires,
        keys: HashMap::new(),
        roles: HashMap::new(),
        _extra: HashMap::new(),
    }
}

/// Names the keys of a role, in this order, and how many of them must sign.
pub(crate) fn assign(root: &mut Root, role: RoleType, keys: &[Named], threshold: NonZeroU64) {
    for (id, key) in keys {
        root.keys.insert(id.clone(), key.clone());
    }
    root.roles.insert(
        role,
        RoleKeys {
            keyids: keys.iter().map(|(id, _)| id.clone()).collect(),
            threshold,
            _extra: HashMap::new(),
        },
    );
    forget_unused(root);
}

/// One more key for a role.
pub(crate) fn admit(root: &mut Root, role: RoleType, (id, key): &Named) {
    if let Some(keys) = root.roles.get_mut(&role)
        && !keys.keyids.contains(id)
    {
        keys.keyids.push(id.clone());
        root.keys.insert(id.clone(), key.clone());
    }
}

/// Puts a key of a role in the place of another.
pub(crate) fn replace(root: &mut Root, role: RoleType, old: &KeyId, (id, key): &Named) {
    if let Some(keys) = root.roles.get_mut(&role) {
        for place in keys.keyids.iter_mut().filter(|place| *place == old) {
            *place = id.clone();
        }
        root.keys.insert(id.clone(), key.clone());
    }
    forget_unused(root);
}

/// The ids of the keys of a role, in their order.
pub(crate) fn ids(root: &Root, role: RoleType) -> Vec<KeyId> {
    root.roles
        .get(&role)
        .map(|keys| keys.keyids.clone())
        .unwrap_or_default()
}

/// How many keys must sign for a role.
pub(crate) fn threshold(root: &Root, role: RoleType) -> u64 {
    root.roles.get(&role).map_or(0, |keys| keys.threshold.get())
}

/// The root that follows, still the same otherwise.
pub(crate) fn next(root: &Root, expires: jiff::Timestamp) -> Root {
    Root {
        version: crate::feed::after(root.version.get()),
        expires,
        ..root.clone()
    }
}

fn forget_unused(root: &mut Root) {
    let roles = &root.roles;
    root.keys
        .retain(|id, _| roles.values().any(|role| role.keyids.contains(id)));
}
