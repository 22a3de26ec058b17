//! Which listeners are wanted, kept and closed: values in, values out.

use serde::{Deserialize, Serialize};

use crate::config::ListenAddress;

use super::super::rollout::RolloutId;
use super::super::service_manager::LISTENER;

/// What a listener is called: by the configuration, and by the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Named {
    /// The entry of `[server] listen` that it serves. `None`: a service manager gave it beside the configuration.
    #[serde(default)]
    pub asked: Option<ListenAddress>,
    /// What it is bound to.
    pub bound: ListenAddress,
    /// The name under which a service manager keeps it for the next supervisor.
    #[serde(default)]
    pub stored: Option<String>,
    /// A service manager listens on it itself and only lets us accept: it stays open when we close it.
    #[serde(default)]
    pub lent: bool,
}

impl Named {
    pub(super) fn new(asked: Option<ListenAddress>, bound: ListenAddress) -> Self {
        Self {
            asked,
            bound,
            stored: None,
            lent: false,
        }
    }

    /// The name under which another program is given it, so that it treats it as we do.
    pub fn given_name(&self) -> &str {
        match &self.stored {
            Some(name) => name,
            None if self.lent => "lent",
            None => LISTENER,
        }
    }
}

/// What becomes of listeners when others are wanted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    /// To be bound.
    pub bind: Vec<ListenAddress>,
    /// Those that stay, by their place in the list, and which entry each one serves.
    pub keep: Vec<(usize, ListenAddress)>,
    /// Those that nobody wants any more, by their place.
    pub close: Vec<usize>,
}

/// From the listeners that there are to those that are wanted. An entry that did not change keeps its socket, and so
/// its port where the kernel chose that; one that was given beside the configuration is never closed.
pub fn plan_change(current: &[Named], wanted: &[ListenAddress]) -> Change {
    // The surest match first, for all: an entry must not take the socket that is another one's own.
    let rules: [fn(&Named, &ListenAddress) -> bool; 3] = [
        |named, wanted| named.asked.as_ref() == Some(wanted),
        |named, wanted| named.bound == *wanted,
        |named, wanted| named.asked.is_none() && is_of_any_port(&named.bound, wanted),
    ];
    let mut serves: Vec<Option<&ListenAddress>> = vec![None; current.len()];
    let mut left: Vec<Option<&ListenAddress>> = wanted.iter().map(Some).collect();
    for fits in rules {
        for slot in &mut left {
            let Some(entry) = *slot else { continue };
            let free =
                (0..current.len()).find(|at| serves[*at].is_none() && fits(&current[*at], entry));
            if let Some(at) = free {
                serves[at] = Some(entry);
                *slot = None;
            }
        }
    }
    let mut change = Change {
        bind: left.into_iter().flatten().cloned().collect(),
        ..Change::default()
    };
    for (at, serves) in serves.into_iter().enumerate() {
        match serves {
            Some(entry) => change.keep.push((at, entry.clone())),
            None if current[at].asked.is_some() => change.close.push(at),
            None => {}
        }
    }
    change
}

/// Whether `bound` is what binding `wanted`, which leaves the port open, could have given.
fn is_of_any_port(bound: &ListenAddress, wanted: &ListenAddress) -> bool {
    match (bound, wanted) {
        (ListenAddress::Tcp(bound), ListenAddress::Tcp(wanted)) => {
            wanted.port() == 0 && bound.ip() == wanted.ip()
        }
        _ => false,
    }
}

/// The listeners that a rollout under way asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) rollout: RolloutId,
    pub(super) wanted: Vec<ListenAddress>,
    /// Whether its generation takes sockets.
    pub(super) activated: bool,
}

/// What one listener is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Connections are taken from it.
    Accept,
    /// Bound for a rollout that may still fail.
    Wait,
    /// For nothing any more.
    Close,
}

/// What each listener is for: what was kept is accepted from until another is kept; what a rollout wants
/// is bound from its beginning, and accepted from once its generation takes sockets.
pub(super) fn uses(current: &[Named], kept: &[ListenAddress], wishes: &[Wish]) -> Vec<Use> {
    let mut uses: Vec<Use> = current
        .iter()
        .map(|named| match named.asked {
            Some(_) => Use::Close,
            None => Use::Accept,
        })
        .collect();
    let waiting = wishes.iter().filter(|wish| !wish.activated);
    let accepted = wishes.iter().filter(|wish| wish.activated);
    let by_rank = waiting
        .map(|wish| (Use::Wait, wish.wanted.as_slice()))
        .chain(accepted.map(|wish| (Use::Accept, wish.wanted.as_slice())))
        .chain([(Use::Accept, kept)]);
    for (what_for, wanted) in by_rank {
        for (at, _) in plan_change(current, wanted).keep {
            uses[at] = what_for;
        }
    }
    uses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> ListenAddress {
        text.parse().unwrap()
    }

    fn addresses(texts: &[&str]) -> Vec<ListenAddress> {
        texts.iter().map(|text| address(text)).collect()
    }

    /// "asked>bound", "asked" for both the same, ">bound" for one that was given.
    fn named(texts: &[&str]) -> Vec<Named> {
        texts
            .iter()
            .map(|text| match text.split_once('>') {
                Some(("", bound)) => Named::new(None, address(bound)),
                Some((asked, bound)) => Named::new(Some(address(asked)), address(bound)),
                None => Named::new(Some(address(text)), address(text)),
            })
            .collect()
    }

    #[test]
    fn from_what_there_is_to_what_is_wanted() {
        type Case = (
            &'static str,
            &'static [&'static str],
            &'static [&'static str],
            &'static [&'static str],
            &'static [usize],
            &'static [usize],
        );
        let cases: &[Case] = &[
            (
                "nothing changes",
                &["1.1.1.1:1"],
                &["1.1.1.1:1"],
                &[],
                &[0],
                &[],
            ),
            (
                "the first start",
                &[],
                &["1.1.1.1:1", "unix:/a"],
                &["1.1.1.1:1", "unix:/a"],
                &[],
                &[],
            ),
            (
                "one added",
                &["1.1.1.1:1"],
                &["1.1.1.1:1", "[::1]:1"],
                &["[::1]:1"],
                &[0],
                &[],
            ),
            (
                "one removed",
                &["1.1.1.1:1", "unix:/a"],
                &["1.1.1.1:1"],
                &[],
                &[0],
                &[1],
            ),
            (
                "all others",
                &["1.1.1.1:1"],
                &["unix:/a"],
                &["unix:/a"],
                &[],
                &[0],
            ),
            (
                "another order",
                &["1.1.1.1:1", "unix:/a"],
                &["unix:/a", "1.1.1.1:1"],
                &[],
                &[0, 1],
                &[],
            ),
            (
                "a free port stays",
                &["1.1.1.1:0>1.1.1.1:40000"],
                &["1.1.1.1:0"],
                &[],
                &[0],
                &[],
            ),
            (
                "a second free port",
                &["1.1.1.1:0>1.1.1.1:40000"],
                &["1.1.1.1:0", "1.1.1.1:0"],
                &["1.1.1.1:0"],
                &[0],
                &[],
            ),
            (
                "one of two free ports",
                &["1.1.1.1:0>1.1.1.1:40000", "1.1.1.1:0>1.1.1.1:40001"],
                &["1.1.1.1:0"],
                &[],
                &[0],
                &[1],
            ),
            (
                "the port that the kernel chose, by its number",
                &["1.1.1.1:0>1.1.1.1:40000"],
                &["1.1.1.1:40000"],
                &[],
                &[0],
                &[],
            ),
            (
                "by its number, which must not take the other entry's own socket",
                &["1.1.1.1:0>1.1.1.1:40000", "1.1.1.1:0>1.1.1.1:40001"],
                &["1.1.1.1:40000", "1.1.1.1:0"],
                &["1.1.1.1:40000"],
                &[0],
                &[1],
            ),
            (
                "a number became free: another socket",
                &["1.1.1.1:1"],
                &["1.1.1.1:0"],
                &["1.1.1.1:0"],
                &[],
                &[0],
            ),
            (
                "given, and wanted",
                &[">1.1.1.1:1"],
                &["1.1.1.1:1"],
                &[],
                &[0],
                &[],
            ),
            (
                "given, and any port wanted",
                &[">1.1.1.1:1"],
                &["1.1.1.1:0"],
                &[],
                &[0],
                &[],
            ),
            (
                "given of another family",
                &[">[::1]:1"],
                &["1.1.1.1:0"],
                &["1.1.1.1:0"],
                &[],
                &[],
            ),
            (
                "given beside",
                &[">1.1.1.1:1", "unix:/a"],
                &["unix:/a"],
                &[],
                &[1],
                &[],
            ),
            (
                "given, by number before any port",
                &[">1.1.1.1:1", ">1.1.1.1:2"],
                &["1.1.1.1:0", "1.1.1.1:1"],
                &[],
                &[0, 1],
                &[],
            ),
            (
                "nothing is wanted",
                &["1.1.1.1:1", ">unix:/a"],
                &[],
                &[],
                &[],
                &[0],
            ),
        ];
        for (what, current, wanted, bind, keep, close) in cases {
            let change = plan_change(&named(current), &addresses(wanted));
            assert_eq!(change.bind, addresses(bind), "{what}");
            let kept: Vec<usize> = change.keep.iter().map(|(at, _)| *at).collect();
            assert_eq!(kept, *keep, "{what}");
            assert_eq!(change.close, *close, "{what}");
        }
    }

    #[test]
    fn what_is_kept_says_which_entry_it_serves() {
        let current = named(&[">1.1.1.1:1", ">1.1.1.1:2"]);
        let keep = plan_change(&current, &addresses(&["1.1.1.1:0", "1.1.1.1:1"])).keep;
        assert_eq!(keep, [(0, address("1.1.1.1:1")), (1, address("1.1.1.1:0"))]);
    }

    fn wish(rollout: RolloutId, wanted: &[&str], activated: bool) -> Wish {
        Wish {
            rollout,
            wanted: addresses(wanted),
            activated,
        }
    }

    #[test]
    fn a_listener_is_for_what_was_kept_and_for_what_may_be() {
        use Use::{Accept, Close, Wait};
        let current = named(&["1.1.1.1:1", "1.1.1.1:2", "1.1.1.1:3", ">1.1.1.1:4"]);
        let uses = |kept: &[&str], wishes: &[Wish]| uses(&current, &addresses(kept), wishes);

        assert_eq!(
            uses(&["1.1.1.1:1", "1.1.1.1:2"], &[]),
            [Accept, Accept, Close, Accept]
        );
        // A rollout that takes the second away and brings the third: until it is kept, nothing closes.
        let brings = |activated| wish(1, &["1.1.1.1:1", "1.1.1.1:3"], activated);
        assert_eq!(
            uses(&["1.1.1.1:1", "1.1.1.1:2"], &[brings(false)]),
            [Accept, Accept, Wait, Accept]
        );
        assert_eq!(
            uses(&["1.1.1.1:1", "1.1.1.1:2"], &[brings(true)]),
            [Accept, Accept, Accept, Accept]
        );
        // Beside an unproven generation the next candidate wants the third as well, and later alone.
        let next = wish(2, &["1.1.1.1:3"], false);
        assert_eq!(
            uses(&["1.1.1.1:1"], &[brings(true), next.clone()]),
            [Accept, Close, Accept, Accept]
        );
        assert_eq!(uses(&["1.1.1.1:1"], &[next]), [Accept, Close, Wait, Accept]);
    }
}
