//! `state/node-id`: a number that tells this host from others. It never leaves the host: what is told to others is made
//! from it and does not lead back.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::digest::{self, Hasher};
use crate::files;
use crate::home::Home;
use crate::report::{Exit, Report};

/// Bytes of an id.
const BYTES: usize = 16;
/// What makes the id that a fleet's lock server sees another than the one it is made from.
const FLEET: &str = "rollproxy fleet lock";

/// The number of this host.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeId(String);

impl std::fmt::Debug for NodeId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("NodeId(not shown)")
    }
}

/// Why this host has no number.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The file cannot be read.
    #[error("reading {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file holds something else.
    #[error("{path} is not 32 hexadecimal digits; remove it, and the next check makes a new one")]
    Unparsable {
        /// The file.
        path: PathBuf,
    },
    /// A new one cannot be made.
    #[error("making {path}: {source}")]
    Make {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Report for NodeError {
    fn code(&self) -> &'static str {
        match self {
            NodeError::Read { .. } => "NODE_ID_READ",
            NodeError::Unparsable { .. } => "NODE_ID_UNPARSABLE",
            NodeError::Make { .. } => "NODE_ID_MAKE",
        }
    }
    fn exit(&self) -> Exit {
        Exit::Failed
    }
    fn retry(&self) -> bool {
        matches!(self, NodeError::Make { .. })
    }
}

impl NodeId {
    /// Where this host stands among all others when an archive is rolled out over time: a share of 2^64. Another archive puts
    /// the hosts in another order, so that it is not always the same ones who go first.
    pub fn position(&self, archive: &str) -> u64 {
        let mut hash = Hasher::new();
        hash.update(self.0.as_bytes());
        hash.update(archive.as_bytes());
        let digest = hash.finish();
        // The first 8 bytes of a digest, which is 64 hexadecimal digits.
        digest
            .get(..16)
            .and_then(|first| u64::from_str_radix(first, 16).ok())
            .unwrap_or(u64::MAX)
    }

    /// How this host is called by a fleet's lock server: always the same, and no way back to the number.
    pub fn for_fleet(&self) -> String {
        let mut hash = Hasher::new();
        hash.update(FLEET.as_bytes());
        hash.update(self.0.as_bytes());
        hash.finish().chars().take(2 * BYTES).collect()
    }
}

/// The number of this host; a new one where it has none yet.
///
/// # Errors
/// [`NodeError`]; a file that cannot be understood is never replaced.
pub fn ensure(home: &Home) -> Result<NodeId, NodeError> {
    let path = home.node_id();
    if let Some(id) = read(&path)? {
        return Ok(id);
    }
    let make = || -> io::Result<NodeId> {
        let mut bytes = [0; BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let id = digest::hex(&bytes);
        files::write_atomic(&path, format!("{id}\n").as_bytes())?;
        Ok(NodeId(id))
    };
    make().map_err(|source| NodeError::Make {
        path: path.clone(),
        source,
    })
}

fn read(path: &Path) -> Result<Option<NodeId>, NodeError> {
    let bytes = files::read_bounded(path, 256).map_err(|source| NodeError::Read {
        path: path.to_owned(),
        source,
    })?;
    let Some(bytes) = bytes else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim_end();
    let is_id = text.len() == 2 * BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_id {
        return Err(NodeError::Unparsable {
            path: path.to_owned(),
        });
    }
    Ok(Some(NodeId(text.to_ascii_lowercase())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::home;

    #[test]
    fn a_host_keeps_its_number_and_another_has_another() {
        let (_folder, home) = home();
        let id = ensure(&home).unwrap();
        assert_eq!(ensure(&home).unwrap(), id);
        let (_other, elsewhere) = crate::scratch::home();
        assert_ne!(ensure(&elsewhere).unwrap(), id);
        assert_eq!(std::fs::read(home.node_id()).unwrap().len(), 33);
    }

    #[test]
    fn what_is_no_number_is_named_and_stays() {
        let (_folder, home) = home();
        for text in ["", "0123", "zz23456789abcdef0123456789abcdef"] {
            std::fs::write(home.node_id(), text).unwrap();
            let error = ensure(&home).unwrap_err();
            assert!(error.to_string().contains("state/node-id"), "{error}");
            assert_eq!(std::fs::read_to_string(home.node_id()).unwrap(), text);
        }
    }

    #[test]
    fn a_position_is_of_host_and_archive_and_the_order_of_hosts_changes() {
        let hosts: Vec<NodeId> = (0..200)
            .map(|host| NodeId(format!("{host:032x}")))
            .collect();
        let first_half = |archive: &str| -> Vec<usize> {
            let half = |(_, id): &(usize, &NodeId)| id.position(archive) < u64::MAX / 2;
            let hosts = hosts.iter().enumerate();
            hosts.filter(half).map(|(host, _)| host).collect()
        };
        let (one, other) = (first_half("a"), first_half("b"));
        for half in [&one, &other] {
            assert!((70..=130).contains(&half.len()), "{}", half.len());
        }
        let both = one.iter().filter(|host| other.contains(host)).count();
        assert!(
            (25..=75).contains(&both),
            "{both} of 200 are first both times"
        );
        assert_eq!(hosts[3].position("a"), hosts[3].position("a"));
    }

    #[test]
    fn what_a_fleet_sees_is_steady_and_not_the_number() {
        let id = NodeId("00112233445566778899aabbccddeeff".to_owned());
        assert_eq!(id.for_fleet(), id.for_fleet());
        assert_eq!(id.for_fleet().len(), 32);
        assert_ne!(id.for_fleet(), id.0);
        assert!(!format!("{id:?}").contains("0011"));
    }
}
