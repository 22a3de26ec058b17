//! Signing one role. The library's face is asynchronous for keys that live elsewhere; ours live in memory, so it never waits.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use aws_lc_rs::rand::SystemRandom;
use tough::editor::signed::SignedRole;
use tough::error::Error as ToughError;
use tough::schema::{KeyHolder, Role, RoleType, Root};

use crate::PublishError;
use crate::chain::limit_of;
use crate::keys::{KeyId, Keys};

/// Signs `role` with every key of `keys` that `holder` allows for it; fewer than its threshold is an error, and so is
/// metadata larger than hosts read.
pub(crate) fn sign<R: Role>(
    role: R,
    name: &str,
    holder: &KeyHolder,
    keys: &Keys,
) -> Result<SignedRole<R>, PublishError> {
    let (sources, random) = (keys.sources(), SystemRandom::new());
    let signed = SignedRole::new(role, holder, &sources, &random);
    let missing = || {
        let (ids, needed) = allowed(holder, name);
        PublishError::KeyMissing {
            role: name.to_owned(),
            keys: keys.folders(),
            found: keys.count_of(&ids),
            needed,
        }
    };
    match at_once(signed) {
        Some(Ok(signed)) if signed.signed().signatures.is_empty() => Err(missing()),
        Some(Ok(signed)) if *signed.length() > limit_of(name) => Err(PublishError::TooLarge {
            role: name.to_owned(),
            length: *signed.length(),
            limit: limit_of(name),
        }),
        Some(Ok(signed)) => Ok(signed),
        Some(Err(
            ToughError::SigningKeysNotFound { .. } | ToughError::KeysNotFoundInRoot { .. },
        )) => Err(missing()),
        Some(Err(source)) => Err(PublishError::Sign {
            role: name.to_owned(),
            source: Box::new(source),
        }),
        None => Err(PublishError::Sign {
            role: name.to_owned(),
            source: "the signing library waited for something".into(),
        }),
    }
}

/// Signs a root with the keys that it names itself, and with those of the root before it, if there is one: hosts ask for the
/// thresholds of both.
pub(crate) fn sign_root(
    root: &Root,
    before: Option<&Root>,
    keys: &Keys,
) -> Result<SignedRole<Root>, PublishError> {
    let mut signed = signed_root(root, root, keys)?;
    if let Some(before) = before {
        let old = signed_root(root, before, keys)?;
        signed = signed
            .add_old_signatures(old.signed().signatures.clone())
            .map_err(|source| PublishError::Sign {
                role: "root".into(),
                source: Box::new(source),
            })?;
    }
    Ok(signed)
}

fn signed_root(root: &Root, by: &Root, keys: &Keys) -> Result<SignedRole<Root>, PublishError> {
    let holder = KeyHolder::Root(by.clone());
    let signed = sign(root.clone(), "root", &holder, keys)?;
    // The library does not count here, for roots may be signed by several people one after the other.
    let (ids, needed) = allowed(&holder, "root");
    if (signed.signed().signatures.len() as u64) < needed {
        return Err(PublishError::KeyMissing {
            role: "root".into(),
            keys: keys.folders(),
            found: keys.count_of(&ids),
            needed,
        });
    }
    Ok(signed)
}

/// Whether `keys` can sign for `role`.
pub(crate) fn can_sign(holder: &KeyHolder, role: &str, keys: &Keys) -> bool {
    let (ids, needed) = allowed(holder, role);
    needed > 0 && keys.count_of(&ids) >= needed
}

/// The keys that may sign for `role`, and how many must.
fn allowed(holder: &KeyHolder, role: &str) -> (Vec<KeyId>, u64) {
    let found = match holder {
        KeyHolder::Root(root) => role_type(role)
            .and_then(|role| root.roles.get(&role))
            .map(|role| (role.keyids.clone(), role.threshold.get())),
        KeyHolder::Delegations(delegations) => delegations
            .roles
            .iter()
            .find(|delegated| delegated.name == role)
            .map(|role| (role.keyids.clone(), role.threshold.get())),
    };
    found.unwrap_or_default()
}

/// The four roles of a root by their names.
pub(crate) fn role_type(role: &str) -> Option<RoleType> {
    match role {
        "root" => Some(RoleType::Root),
        "targets" => Some(RoleType::Targets),
        "snapshot" => Some(RoleType::Snapshot),
        "timestamp" => Some(RoleType::Timestamp),
        _ => None,
    }
}

/// The outcome of a future that has nothing to wait for.
fn at_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
