//! How many connections this worker takes.

use crate::config::Config;

/// What bounds the connections of a worker.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// How many descriptors this process may have open.
    descriptors: u64,
    /// `[server] max_connections`; zero is as many as the descriptors allow.
    max_connections: u64,
}

impl Room {
    /// The room that limits and configuration leave.
    pub fn of(config: &Config) -> Self {
        Self {
            descriptors: rustix::process::getrlimit(rustix::process::Resource::Nofile)
                .current
                .unwrap_or(u64::MAX),
            max_connections: config.server.max_connections as u64,
        }
    }

    /// Whether one more connection is within the limit, and leaves descriptors for the upstream of each and
    /// some for the rest. A socket that is refused waits its turn in the supervisor's queue; one that is
    /// taken without room for its upstream could only be answered with an error.
    pub fn has_room(self, connections: u64, held: usize) -> bool {
        let connections = connections.saturating_add(held as u64);
        if self.max_connections != 0 && connections >= self.max_connections {
            return false;
        }
        let reserve = (self.descriptors / 4).min(64);
        connections.saturating_mul(2).saturating_add(2 + reserve) <= self.descriptors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_room(descriptors: u64, connections: u64, held: usize) -> bool {
        let room = Room {
            descriptors,
            max_connections: 0,
        };
        room.has_room(connections, held)
    }

    #[test]
    fn a_worker_keeps_a_descriptor_for_each_upstream_and_some_for_the_rest() {
        assert!(has_room(1024, 478, 0));
        assert!(!has_room(1024, 480, 0));
        assert!(!has_room(1024, 400, 80));
        assert!(has_room(40, 10, 0));
        assert!(!has_room(40, 15, 0));
        assert!(has_room(u64::MAX, 1_000_000, 64));
    }

    #[test]
    fn a_worker_takes_no_more_than_its_configured_connections() {
        let room = Room {
            descriptors: 1024,
            max_connections: 3,
        };
        assert!(room.has_room(2, 0));
        assert!(!room.has_room(2, 1));
        assert!(!room.has_room(3, 0));
        let more_than_descriptors = Room {
            descriptors: 40,
            max_connections: 1000,
        };
        assert!(!more_than_descriptors.has_room(15, 0));
    }
}
