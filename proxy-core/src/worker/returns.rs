//! Connections on their way back to the supervisor, and how many of them may be under way.

use std::collections::VecDeque;

/// Where connections between two requests belong now, and those that wait for a credit.
///
/// A connection that waits is watched by nobody: what its client sends stays in the kernel, for whoever has it next.
#[derive(Debug)]
pub struct Returns<T> {
    /// Whether they go back at all.
    open: bool,
    /// How many may be unanswered; `None`: nobody counts.
    window: Option<u64>,
    unanswered: u64,
    waiting: VecDeque<T>,
}

/// What becomes of a connection that the relay let go.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate<T> {
    /// It goes back now.
    Return(T),
    /// It waits for its credit.
    Wait,
    /// It was let go before we were told to keep connections again: it is served here.
    Serve(T),
}

impl<T> Default for Returns<T> {
    fn default() -> Self {
        Self {
            open: false,
            window: None,
            unanswered: 0,
            waiting: VecDeque::new(),
        }
    }
}

impl<T> Returns<T> {
    /// Connections go back from now on. What waits and may go is handed out.
    pub fn open(&mut self, window: Option<u32>) -> Vec<T> {
        self.open = true;
        self.window = window.map(u64::from);
        if self.window.is_none() {
            self.unanswered = 0;
        }
        self.let_go()
    }

    /// Connections stay from now on. What still waits is handed out, to be served here.
    pub fn close(&mut self) -> Vec<T> {
        self.open = false;
        std::mem::take(&mut self.waiting).into()
    }

    /// The relay let a connection go.
    pub fn came(&mut self, connection: T) -> Fate<T> {
        if !self.open {
            return Fate::Serve(connection);
        }
        // Not past those that came before it.
        if !self.waiting.is_empty() || !self.spend() {
            self.waiting.push_back(connection);
            return Fate::Wait;
        }
        Fate::Return(connection)
    }

    /// So many returns were taken. What may follow is handed out.
    pub fn credit(&mut self, count: u32) -> Vec<T> {
        self.unanswered = self.unanswered.saturating_sub(u64::from(count));
        self.let_go()
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn let_go(&mut self) -> Vec<T> {
        let mut gone = Vec::new();
        while !self.waiting.is_empty() && self.spend() {
            gone.extend(self.waiting.pop_front());
        }
        gone
    }

    /// Takes a credit, if there is one. Where nobody counts, nobody will answer, either.
    fn spend(&mut self) -> bool {
        match self.window {
            None => true,
            Some(window) if self.unanswered < window => {
                self.unanswered += 1;
                true
            }
            Some(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn came(returns: &mut Returns<u32>, connections: std::ops::Range<u32>) -> Vec<Fate<u32>> {
        connections.map(|one| returns.came(one)).collect()
    }

    #[test]
    fn no_more_are_unanswered_than_may_be_and_each_credit_lets_one_go_in_order() {
        let mut returns = Returns::default();
        assert!(returns.open(Some(2)).is_empty());
        assert_eq!(
            came(&mut returns, 0..5),
            [
                Fate::Return(0),
                Fate::Return(1),
                Fate::Wait,
                Fate::Wait,
                Fate::Wait
            ]
        );
        assert_eq!(returns.credit(1), [2]);
        assert_eq!(returns.credit(1), [3]);
        // One that comes now does not overtake the one that waits.
        assert_eq!(returns.came(5), Fate::Wait);
        assert_eq!(returns.credit(2), [4, 5]);
        assert_eq!(returns.came(6), Fate::Wait);
        assert_eq!(returns.waiting(), 1);
    }

    #[test]
    fn a_supervisor_that_counts_none_gets_all() {
        let mut returns = Returns::default();
        assert!(returns.open(None).is_empty());
        assert!(
            came(&mut returns, 0..1000)
                .iter()
                .all(|fate| matches!(fate, Fate::Return(_)))
        );
        // What it was given without a count it never answers: it does not weigh on the next count.
        assert!(returns.open(Some(1)).is_empty());
        assert_eq!(returns.came(7), Fate::Return(7));
        assert_eq!(returns.came(8), Fate::Wait);
        // And the other way round.
        assert_eq!(returns.open(None), [8]);
    }

    #[test]
    fn whoever_is_told_to_keep_connections_serves_what_waits_and_what_still_comes() {
        let mut returns = Returns::default();
        assert_eq!(returns.came(0), Fate::Serve(0));
        returns.open(Some(1));
        assert_eq!(
            came(&mut returns, 1..4),
            [Fate::Return(1), Fate::Wait, Fate::Wait]
        );
        assert_eq!(returns.close(), [2, 3]);
        assert_eq!(returns.came(4), Fate::Serve(4));
        assert!(returns.credit(1).is_empty());
        assert_eq!(returns.waiting(), 0);
    }

    #[test]
    fn what_is_unanswered_counts_across_a_second_time() {
        let mut returns = Returns::default();
        returns.open(Some(2));
        assert_eq!(came(&mut returns, 0..2), [Fate::Return(0), Fate::Return(1)]);
        assert!(returns.close().is_empty());
        assert!(returns.open(Some(2)).is_empty());
        assert_eq!(returns.came(2), Fate::Wait);
        assert_eq!(returns.credit(2), [2]);
        assert_eq!(returns.came(3), Fate::Return(3));
        // More than was owed is no credit for later.
        assert!(returns.credit(9).is_empty());
        assert_eq!(
            came(&mut returns, 4..7),
            [Fate::Return(4), Fate::Return(5), Fate::Wait]
        );
    }

    #[test]
    fn a_window_of_none_at_all_waits_for_another_word() {
        let mut returns = Returns::default();
        returns.open(Some(0));
        assert_eq!(returns.came(0), Fate::Wait);
        assert!(returns.credit(1).is_empty());
        assert_eq!(returns.open(Some(1)), [0]);
    }
}
