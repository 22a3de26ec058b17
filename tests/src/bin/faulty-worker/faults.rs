//! What is to go wrong.

use std::cell::Cell;
use std::path::Path;

/// The words of `share/fault`.
pub struct Faults {
    words: Vec<String>,
    /// How often each point was passed at which something may go wrong.
    passed: Cell<[u32; POINTS.len()]>,
}

/// The points between two messages at which the worker can kill itself; `crash-after-owned=3` does so the third time.
pub const POINTS: [&str; 6] = [
    "crash-before-accepted",
    "crash-after-accepted",
    "crash-after-commit",
    "crash-after-owned",
    "crash-before-returned",
    "crash-after-returned",
];

impl Faults {
    pub fn read(text: &str) -> Self {
        let mut words = Vec::new();
        for word in text.split_whitespace() {
            match word.strip_prefix("told-by=") {
                // Not written yet: nothing is to go wrong yet.
                Some(file) => words.extend(
                    std::fs::read_to_string(file)
                        .unwrap_or_default()
                        .split_whitespace()
                        .map(str::to_owned),
                ),
                None => words.push(word.to_owned()),
            }
        }
        Self::of(words)
    }

    fn of(words: Vec<String>) -> Self {
        Self {
            words,
            passed: Cell::default(),
        }
    }

    pub fn have(&self, word: &str) -> bool {
        self.words.iter().any(|known| known == word)
    }

    /// What stands behind `name=`.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.words
            .iter()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// The number behind `name=`, or one for the name alone.
    pub fn count(&self, name: &str) -> Option<u64> {
        match self.value(name) {
            Some(number) => number.parse().ok(),
            None => self.have(name).then_some(1),
        }
    }

    /// The faults that hold for a worker that starts now.
    pub fn of_this_start(self) -> Self {
        let first = self
            .value("first")
            .and_then(|first| first.split_once('@'))
            .and_then(|(count, file)| Some((count.parse::<u32>().ok()?, Path::new(file))));
        match first {
            Some((count, file)) if count_start(file) > count => Self::of(Vec::new()),
            _ => self,
        }
    }

    /// The worker is at one of the [`POINTS`]; if it is to end here, it does, as by the kernel's hand.
    pub fn pass(&self, point: &str) {
        let Some(number) = POINTS.iter().position(|known| *known == point) else {
            return;
        };
        let mut passed = self.passed.get();
        passed[number] += 1;
        self.passed.set(passed);
        if self.count(point) == Some(u64::from(passed[number])) {
            let us = nix::unistd::Pid::this();
            let _ = nix::sys::signal::kill(us, nix::sys::signal::Signal::SIGKILL);
            std::process::abort();
        }
    }
}

/// The number of this start. Workers of one home start one after the other, so a plain file will do.
fn count_start(file: &Path) -> u32 {
    let before = std::fs::read_to_string(file)
        .ok()
        .and_then(|text| text.trim().parse::<u32>().ok())
        .unwrap_or(0);
    // A count that cannot be written leaves the worker faulty, and the test says so.
    let _ = std::fs::write(file, (before + 1).to_string());
    before + 1
}
