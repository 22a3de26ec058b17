//! Signing one role. The library's face is asynchronous for keys that live elsewhere; ours live in memory, so it never waits.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use aws_lc_rs::rand::SystemRandom;
use tough::editor::signed::SignedRole;
use tough::error::Error as ToughError;
use tough::schema::{KeyHolder, Role, Root};

use crate::PublishError;
use crate::keys::Keys;

/// Signs `role` with every key of `keys` that `root` allows for it; fewer than its threshold is an error.
pub(crate) fn sign<R: Role>(
    role: R,
    name: &'static str,
    root: &Root,
    keys: &Keys,
    folder: &Path,
) -> Result<SignedRole<R>, PublishError> {
    let (holder, sources, random) = (
        KeyHolder::Root(root.clone()),
        keys.sources(),
        SystemRandom::new(),
    );
    let signed = SignedRole::new(role, &holder, &sources, &random);
    let missing = || PublishError::KeyMissing {
        role: name,
        keys: folder.to_owned(),
    };
    match at_once(signed) {
        Some(Ok(signed)) if signed.signed().signatures.is_empty() => Err(missing()),
        Some(Ok(signed)) => Ok(signed),
        Some(Err(
            ToughError::SigningKeysNotFound { .. } | ToughError::KeysNotFoundInRoot { .. },
        )) => Err(missing()),
        Some(Err(source)) => Err(PublishError::Sign {
            role: name,
            source: Box::new(source),
        }),
        None => Err(PublishError::Sign {
            role: name,
            source: "the signing library waited for something".into(),
        }),
    }
}

/// The outcome of a future that has nothing to wait for.
fn at_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
