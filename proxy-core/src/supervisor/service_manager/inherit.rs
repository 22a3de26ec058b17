//! Descriptors that a process is given at its start, by the protocol of `sd_listen_fds(3)`.

use std::ffi::OsString;
use std::os::fd::OwnedFd;

use crate::descriptors::take_given_descriptors;

use super::super::listener::Listener;

/// The first one's number.
const FIRST: i32 = 3;

/// More than any unit has: a larger number is a mistake.
const MOST: i32 = 4096;

/// The name of connected sockets: clients who wait for a worker.
const CONNECTION: &str = "connection";

/// The name, or the beginning of the names, of listeners that a supervisor has bound itself.
pub const LISTENER: &str = "listener";

/// A descriptor, and what it is called.
#[derive(Debug)]
pub struct Given {
    /// Its name; empty where it has none.
    pub name: String,
    /// The descriptor.
    pub descriptor: OwnedFd,
}

/// Everything that was given.
#[derive(Debug, Default)]
pub struct Inheritance {
    /// Sockets that listen.
    pub listeners: Vec<Listener>,
    /// Clients.
    pub connections: Vec<OwnedFd>,
}

/// Takes over what the environment says was given, once in the life of a process, before anything else is opened.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn take(env: &dyn Fn(&str) -> Option<OsString>) -> std::io::Result<Vec<Given>> {
    let text = |name| env(name).and_then(|value| value.into_string().ok());
    let names = names(
        text("LISTEN_PID").as_deref(),
        text("LISTEN_FDS").as_deref(),
        text("LISTEN_FDNAMES").as_deref(),
        std::process::id(),
    );
    let mut given = Vec::new();
    for (number, descriptor) in take_given_descriptors(FIRST, names.len())? {
        let name = usize::try_from(number - FIRST)
            .ok()
            .and_then(|at| names.get(at).cloned());
        given.push(Given {
            name: name.unwrap_or_default(),
            descriptor,
        });
    }
    Ok(given)
}

/// The name of each descriptor that was given to the process `own_pid`.
fn names(pid: Option<&str>, count: Option<&str>, names: Option<&str>, own_pid: u32) -> Vec<String> {
    // The variables are inherited by children; what they say is for one process.
    if pid.and_then(|pid| pid.trim().parse().ok()) != Some(own_pid) {
        return Vec::new();
    }
    let count = count
        .and_then(|count| count.trim().parse::<i32>().ok())
        .filter(|count| (1..=MOST).contains(count))
        .and_then(|count| usize::try_from(count).ok())
        .unwrap_or(0);
    let mut all: Vec<String> = match names {
        Some(names) => names.split(':').map(str::to_owned).collect(),
        None => Vec::new(),
    };
    all.resize(count, String::new());
    all
}

/// Sorts what was given by what it is. What is neither a listener nor a client is closed, and said.
///
/// Needs a runtime, which watches the listeners.
pub fn sort(given: Vec<Given>) -> Inheritance {
    let mut inheritance = Inheritance::default();
    for Given { name, descriptor } in given {
        if name == CONNECTION {
            inheritance.connections.push(descriptor);
            continue;
        }
        match Listener::from_inherited(descriptor, None) {
            Ok(listener) => {
                let listener = match is_own(&name) {
                    true => listener.stored_as(name),
                    false => listener.lent(),
                };
                tracing::info!(address = %listener.address(), "was given a listener");
                inheritance.listeners.push(listener);
            }
            Err(error) => tracing::warn!(name, "was given a descriptor that is of no use: {error}"),
        }
    }
    inheritance
}

/// Whether a supervisor gave it this name, and not a socket unit.
fn is_own(name: &str) -> bool {
    name.strip_prefix(LISTENER).is_some_and(|rest| {
        rest.is_empty()
            || rest
                .strip_prefix('-')
                .is_some_and(|number| number.parse::<u32>().is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_has_names_and_is_for_one_process() {
        let own = |count, given: Option<&str>| names(Some("7"), Some(count), given, 7);
        assert_eq!(own("2", Some("http:listener-1")), ["http", "listener-1"]);
        assert_eq!(own("1", None), [""]);
        assert_eq!(own("3", Some("one")), ["one", "", ""]);
        assert_eq!(own("1", Some("one:two")), ["one"]);
        assert_eq!(own("2", Some(":x")), ["", "x"]);
        for count in ["0", "-1", "", "many", "4097", "99999999999"] {
            assert_eq!(own(count, Some("x")), [""; 0], "{count}");
        }
        for pid in [None, Some("8"), Some(""), Some("x"), Some("-7")] {
            assert_eq!(names(pid, Some("1"), Some("x"), 7), [""; 0], "{pid:?}");
        }
        assert_eq!(names(Some("7"), None, Some("x"), 7), [""; 0]);
    }

    #[test]
    fn a_supervisors_own_names_are_told_from_a_units() {
        for own in ["listener", "listener-1", "listener-27"] {
            assert!(is_own(own), "{own}");
        }
        for other in [
            "",
            "rollproxy.socket",
            "listeners",
            "listener-",
            "listener-x",
            "http",
        ] {
            assert!(!is_own(other), "{other}");
        }
    }
}
