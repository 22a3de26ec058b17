//! Whether the supervisor may move to another program now. Pure: facts in, conditions out.

use control::supervisor::{Condition, Preflight};
use staging::version::PackageVersion;

/// What a try of the new program in check mode came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checked {
    /// It can take the state over.
    Ready,
    /// It knows no state of this kind: it can only be started anew, when nothing is in flight.
    Incompatible(String),
    /// It does not run, or refuses.
    Failed(String),
}

/// What is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// SIGTERM was heard.
    pub stopping: bool,
    /// No candidate, probation, take-over or recovery.
    pub settled: bool,
    /// A verdict is being written.
    pub filing: bool,
    /// The program was found, or why not.
    pub program: Result<(), String>,
    /// What check mode came to; nothing while it has not ended.
    pub checked: Option<Checked>,
    /// What is in flight in all generations, where that is known.
    pub in_flight: Option<u64>,
}

impl Facts {
    /// What stands in the way whatever the new program is: nothing, or the words for a person.
    pub fn unsettled(&self) -> Option<&'static str> {
        if self.stopping {
            Some("the supervisor is stopping")
        } else if !self.settled {
            Some("a rollout, its probation, or a recovery is under way")
        } else if self.filing {
            Some("a verdict is being written")
        } else {
            None
        }
    }

    /// Each condition, and whether it holds.
    pub fn preflight(&self, to: PackageVersion) -> Preflight {
        let said = |name: &str, holds: Option<bool>, detail: String| Condition {
            name: name.to_owned(),
            holds,
            detail,
        };
        let mut conditions = vec![
            said(
                "running",
                Some(!self.stopping),
                if self.stopping {
                    "the supervisor is stopping".into()
                } else {
                    "the supervisor is not stopping".into()
                },
            ),
            said(
                "noRollout",
                Some(self.settled),
                if self.settled {
                    "no rollout, probation or recovery is under way".into()
                } else {
                    "a rollout, its probation, or a recovery is under way".into()
                },
            ),
            said(
                "written",
                Some(!self.filing),
                if self.filing {
                    "a verdict is being written".into()
                } else {
                    "every verdict is written".into()
                },
            ),
            said(
                "program",
                Some(self.program.is_ok()),
                match &self.program {
                    Ok(()) => "the program is there".into(),
                    Err(why) => why.clone(),
                },
            ),
        ];
        let (holds, detail) = match (&self.program, &self.checked) {
            (Err(_), _) => (None, "not tried: there is no program".into()),
            (Ok(()), None) => (None, "the program has not answered".into()),
            (Ok(()), Some(Checked::Ready)) => (Some(true), "it can take the state over".into()),
            (Ok(()), Some(Checked::Incompatible(why))) => (
                Some(true),
                format!("{why}; it can start anew while nothing is in flight"),
            ),
            (Ok(()), Some(Checked::Failed(why))) => (Some(false), why.clone()),
        };
        conditions.push(said("check", holds, detail));
        if let Some(Checked::Incompatible(_)) = self.checked {
            conditions.push(said(
                "idle",
                self.in_flight.map(|count| count == 0),
                match self.in_flight {
                    None => "not every worker says what is in flight".into(),
                    Some(0) => "nothing is in flight".into(),
                    Some(count) => format!("{count} requests or tunnels are in flight"),
                },
            ));
        }
        let settled = conditions
            .iter()
            .all(|condition| condition.holds == Some(true));
        Preflight {
            to,
            conditions,
            settled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_well() -> Facts {
        Facts {
            stopping: false,
            settled: true,
            filing: false,
            program: Ok(()),
            checked: Some(Checked::Ready),
            in_flight: Some(0),
        }
    }

    fn version() -> PackageVersion {
        "1.2.3".parse().unwrap()
    }

    #[test]
    fn it_is_settled_only_when_every_condition_is_known_to_hold() {
        assert!(all_well().preflight(version()).settled);
        let incompatible = Some(Checked::Incompatible("schema 9".into()));
        let spoilt: [(&str, Facts); 8] = [
            (
                "running",
                Facts {
                    stopping: true,
                    ..all_well()
                },
            ),
            (
                "noRollout",
                Facts {
                    settled: false,
                    ..all_well()
                },
            ),
            (
                "written",
                Facts {
                    filing: true,
                    ..all_well()
                },
            ),
            (
                "program",
                Facts {
                    program: Err("gone".into()),
                    ..all_well()
                },
            ),
            (
                "check",
                Facts {
                    checked: None,
                    ..all_well()
                },
            ),
            (
                "check",
                Facts {
                    checked: Some(Checked::Failed("exit code 1".into())),
                    ..all_well()
                },
            ),
            (
                "idle",
                Facts {
                    checked: incompatible.clone(),
                    in_flight: None,
                    ..all_well()
                },
            ),
            (
                "idle",
                Facts {
                    checked: incompatible.clone(),
                    in_flight: Some(2),
                    ..all_well()
                },
            ),
        ];
        for (name, facts) in spoilt {
            let preflight = facts.preflight(version());
            assert!(!preflight.settled, "{name}");
            let failing = preflight
                .conditions
                .iter()
                .find(|condition| condition.holds != Some(true))
                .unwrap();
            assert_eq!(failing.name, name);
        }
        let idle = Facts {
            checked: incompatible,
            ..all_well()
        };
        assert!(idle.preflight(version()).settled);
    }

    #[test]
    fn what_is_in_flight_matters_only_to_a_program_that_starts_anew() {
        let busy = Facts {
            in_flight: None,
            ..all_well()
        };
        let preflight = busy.preflight(version());
        assert!(preflight.settled);
        assert!(
            preflight
                .conditions
                .iter()
                .all(|condition| condition.name != "idle")
        );
    }
}
