//! Which of a feed's copies is asked first: the feed itself, unless it failed lately and a mirror did not.
//!
//! What a copy says is worth no more than its signatures, so this only spares time. It is remembered in the home, by
//! addresses without credentials; a record that cannot be read is begun anew, for nothing but an order is lost with it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use staging::document::{self, Document};
use staging::home::Home;

use super::location::Location;

/// The most checks that a copy which failed is passed over for.
const MOST_PASSED_OVER: u32 = 16;

/// What is remembered about one copy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Standing {
    /// Failures in a row.
    failures: u32,
    /// How many more checks ask the others first.
    behind: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Book {
    schema: u32,
    /// By address, without credentials.
    copies: BTreeMap<String, Standing>,
}

impl Document for Book {
    const SCHEMA: u32 = 1;
    const NAME: &'static str = "record of mirrors";
}

/// The copies of one feed: number 0 is the feed itself, the others are its mirrors as they were given.
#[derive(Debug)]
pub(super) struct Mirrors {
    path: PathBuf,
    names: Vec<String>,
    standings: Mutex<Vec<Standing>>,
}

impl Mirrors {
    /// What the home remembers about these.
    pub(super) fn read(home: &Home, sites: &[&Location]) -> Self {
        let path = home.state().join("mirrors.json");
        let names: Vec<String> = sites.iter().map(ToString::to_string).collect();
        let book = document::read::<Book>(&path).ok().flatten();
        let standings = names
            .iter()
            .map(|name| {
                let copies = book.as_ref().map(|book| &book.copies);
                copies.and_then(|copies| copies.get(name).copied())
            })
            .map(Option::unwrap_or_default)
            .collect();
        Self {
            path,
            names,
            standings: Mutex::new(standings),
        }
    }

    /// In which order they are asked.
    pub(super) fn order(&self) -> Vec<usize> {
        order(&self.lock())
    }

    /// One did not do what a copy of the feed does.
    pub(super) fn failed(&self, site: usize) {
        if let Some(standing) = self.lock().get_mut(site) {
            standing.failures = standing.failures.saturating_add(1);
            let doubled = 1 << (standing.failures - 1).min(16);
            standing.behind = MOST_PASSED_OVER.min(doubled);
        }
    }

    /// One did.
    pub(super) fn worked(&self, site: usize) {
        if let Some(standing) = self.lock().get_mut(site) {
            *standing = Standing::default();
        }
    }

    /// A check is over in which these were not asked.
    pub(super) fn passed_over(&self, sites: &[usize]) {
        let mut standings = self.lock();
        for site in sites {
            if let Some(standing) = standings.get_mut(*site) {
                standing.behind = standing.behind.saturating_sub(1);
            }
        }
    }

    /// Writes what changed. That it cannot be written is no reason to fail: the order is lost, nothing else.
    pub(super) fn save(&self) {
        if self.names.len() < 2 {
            return;
        }
        let standings = self.lock();
        let copies = self.names.iter().cloned().zip(standings.iter().copied());
        let book = Book {
            schema: Book::SCHEMA,
            copies: copies
                .filter(|(_, standing)| *standing != Standing::default())
                .collect(),
        };
        let there = document::read::<Book>(&self.path).ok().flatten();
        if there.as_ref() != Some(&book) && (there.is_some() || !book.copies.is_empty()) {
            let _ = document::write(&self.path, &book);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Standing>> {
        self.standings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Those in good standing as they were given, then the others, the least behind first.
fn order(standings: &[Standing]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..standings.len()).collect();
    order.sort_by_key(|site| standings[*site].behind);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirrors(home: &Home) -> Mirrors {
        let sites: Vec<Location> = ["https://ann:secret@a/", "https://b/", "https://c/"]
            .iter()
            .map(|url| url.parse().unwrap())
            .collect();
        Mirrors::read(home, &sites.iter().collect::<Vec<_>>())
    }

    #[test]
    fn one_that_fails_stands_behind_for_longer_each_time_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::at(folder.path().join("home"));
        home.create().unwrap();
        let them = mirrors(&home);
        assert_eq!(them.order(), [0, 1, 2]);
        them.failed(0);
        assert_eq!(them.order(), [1, 2, 0]);
        // The next check asks the mirror first; after it the feed has its turn again.
        them.worked(1);
        them.passed_over(&[0]);
        assert_eq!(them.order(), [0, 1, 2]);
        them.failed(0);
        for passed in 0..2 {
            assert_eq!(them.order()[2], 0, "{passed}");
            them.passed_over(&[0]);
        }
        assert_eq!(them.order(), [0, 1, 2]);
        for _ in 0..100 {
            them.failed(1);
        }
        them.failed(2);
        assert_eq!(them.order(), [0, 2, 1]);
        for _ in 0..MOST_PASSED_OVER {
            them.passed_over(&[1, 2]);
        }
        assert_eq!(them.order(), [0, 1, 2]);
    }

    #[test]
    fn it_is_remembered_without_credentials_and_a_damaged_record_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::at(folder.path().join("home"));
        home.create().unwrap();
        let them = mirrors(&home);
        them.save();
        let path = home.state().join("mirrors.json");
        assert!(!path.exists(), "there was nothing to remember");
        them.failed(0);
        them.save();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            !text.contains("secret") && text.contains("https://***@a/"),
            "{text}"
        );
        assert_eq!(mirrors(&home).order(), [1, 2, 0]);
        std::fs::write(&path, "{").unwrap();
        let anew = mirrors(&home);
        assert_eq!(anew.order(), [0, 1, 2]);
        anew.failed(1);
        anew.save();
        assert_eq!(mirrors(&home).order(), [0, 2, 1]);
    }
}
