//! SHA-256 as lower-case hex: the only form in which digests are written, compared and shown.

use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::files;

/// A digest in the making.
#[derive(Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Nothing hashed yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of everything added.
    pub fn finish(self) -> String {
        hex(&self.0.finalize())
    }
}

/// The digest of bytes in memory.
pub fn of(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Length and digest of a file, read once.
///
/// # Errors
/// Whatever opening or reading the file says.
pub fn of_file(path: &Path) -> io::Result<(u64, String)> {
    of_reader(files::open_regular(path)?)
}

pub(crate) fn of_reader(mut reader: impl Read) -> io::Result<(u64, String)> {
    let mut hasher = Hasher::new();
    let mut buffer = vec![0u8; 128 * 1024];
    let mut length = 0u64;
    loop {
        let count = match reader.read(&mut buffer) {
            Ok(0) => return Ok((length, hasher.finish())),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hasher.update(&buffer[..count]);
        length += count as u64;
    }
}

/// Bytes as lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)] as char);
        text.push(DIGITS[usize::from(byte & 15)] as char);
    }
    text
}

/// Whether a text has the form of a digest.
pub fn is_digest(text: &str) -> bool {
    text.len() == 64
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_answer_in_one_piece_in_two_and_from_a_file() {
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(of(b"abc"), known);
        let mut hasher = Hasher::new();
        hasher.update(b"a");
        hasher.update(b"bc");
        assert_eq!(hasher.finish(), known);
        let folder = crate::scratch::Scratch::new();
        let path = folder.path().join("abc");
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(of_file(&path).unwrap(), (3, known.to_owned()));
        assert!(is_digest(known));
        assert!(!is_digest(&known.to_uppercase()));
        assert!(!is_digest(&known[1..]));
    }
}
