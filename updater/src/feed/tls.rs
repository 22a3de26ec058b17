//! Certificates that a host trusts besides its own, as a company's own authority asks for.

use std::path::Path;

use staging::files;

use super::FeedError;

/// No file of certificates comes near this many bytes.
const LIMIT: u64 = 4 * 1024 * 1024;

/// The certificates in `file`, in PEM; none without a file.
///
/// # Errors
/// [`FeedError::Certificates`] if it cannot be read, or holds none.
pub(crate) fn certificates(file: Option<&Path>) -> Result<Vec<reqwest::Certificate>, FeedError> {
    let Some(file) = file else {
        return Ok(Vec::new());
    };
    let unusable = |reason: String| FeedError::Certificates {
        path: file.to_owned(),
        reason,
    };
    let bytes = match files::read_bounded(file, LIMIT) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err(unusable("there is no such file".to_owned())),
        Err(error) => return Err(unusable(error.to_string())),
    };
    match reqwest::Certificate::from_pem_bundle(&bytes) {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(unusable("it holds no certificate in PEM".to_owned())),
    }
}
