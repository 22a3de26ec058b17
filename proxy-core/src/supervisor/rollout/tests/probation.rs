//! A new generation on probation, its standby, and the way back.

use super::*;
use crate::channel::Blame;

const PROBATION: u64 = 30_000;

/// How a generation that fails leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaves {
    Gone,
    Drains,
    IsKilled,
    /// It ends by itself, and is killed when that takes too long.
    Ends,
    /// It finishes, and is killed at the drain deadline.
    Deaf,
}

/// A machine whose generation 1 (1.0.0) stands by while generation 2 (1.1.0) is on probation since `at(0)`.
fn on_probation() -> (Machine, Vec<Effect>) {
    let mut machine = serving();
    machine.configure(Settings {
        probation: Duration::from_millis(PROBATION),
        ..settings()
    });
    let mut effects = Vec::new();
    let answer = machine.replace(at(0), request("1.1.0", By::Job), &mut effects);
    assert_eq!(answer, Answer::Started(1));
    effects.extend(bring_up(&mut machine, at(0), 2, "1.1.0"));
    (machine, effects)
}

fn places(machine: &Machine) -> [Option<Generation>; 4] {
    [
        machine.active(),
        machine.standby(),
        machine.taking_over(),
        machine.candidate(),
    ]
    .map(|worker| worker.map(|worker| worker.generation))
}

fn steps(effects: &[Effect]) -> Vec<&str> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Step { step, .. } => Some(*step),
            _ => None,
        })
        .collect()
}

fn handle(machine: &mut Machine, now: u64, generation: Generation, event: Event) -> Vec<Effect> {
    let mut effects = Vec::new();
    machine.handle(at(now), generation, event, &mut effects);
    effects
}

fn tick(machine: &mut Machine, now: u64) -> Vec<Effect> {
    let mut effects = Vec::new();
    machine.tick(at(now), &mut effects);
    effects
}

fn load(answered: u64, local_5xx: u64) -> Event {
    Event::Load {
        answered,
        local_5xx,
    }
}

/// Each way in which a generation that serves can fail, and how it leaves.
fn failures() -> Vec<(Event, &'static str, Mark, Leaves)> {
    let fatal = |blame| Event::Fatal {
        reason: "x".into(),
        blame,
    };
    vec![
        (exited(), "WORKER_EXITED", Mark::KnownBad, Leaves::Gone),
        (
            fatal(Blame::Package),
            "WORKER_FATAL",
            Mark::KnownBad,
            Leaves::Ends,
        ),
        (fatal(Blame::Host), "WORKER_FATAL", Mark::None, Leaves::Ends),
        (
            fatal(Blame::Configuration),
            "WORKER_FATAL",
            Mark::None,
            Leaves::Ends,
        ),
        (
            Event::ChannelClosed,
            "WORKER_CHANNEL_CLOSED",
            Mark::KnownBad,
            Leaves::Deaf,
        ),
        (
            Event::Drained,
            "WORKER_CHANNEL_CLOSED",
            Mark::KnownBad,
            Leaves::Deaf,
        ),
        (
            Event::PingUnanswered,
            "WORKER_UNRESPONSIVE",
            Mark::KnownBad,
            Leaves::IsKilled,
        ),
        (
            Event::TransferUnanswered,
            "WORKER_UNRESPONSIVE",
            Mark::KnownBad,
            Leaves::Drains,
        ),
        (load(40, 3), "LOCAL_ERRORS", Mark::KnownBad, Leaves::Drains),
    ]
}

/// How `generation` left, by what was asked for and what is still due.
fn assert_leaves(machine: &Machine, effects: &[Effect], generation: Generation, leaves: Leaves) {
    let drained = effects.contains(&Effect::Drain(generation));
    let killed = effects.contains(&Effect::Kill(generation));
    let left = machine
        .leaving
        .iter()
        .find(|leaving| leaving.worker.generation == generation);
    let found = match (drained, killed, left) {
        (false, false, None) => Leaves::Gone,
        (true, false, Some(left)) if left.shutdown_at.is_some() => Leaves::Drains,
        (false, true, Some(_)) => Leaves::IsKilled,
        (false, false, Some(left)) => match left.kill_at {
            Some(at) if at.since(Moment::default()) < Duration::from_secs(600) => Leaves::Ends,
            Some(_) => Leaves::Deaf,
            None => panic!("it would stay for ever"),
        },
        other => panic!("{other:?}"),
    };
    assert_eq!(found, leaves, "{effects:?}");
}

#[test]
fn a_rollout_is_kept_when_its_probation_is_over_and_only_then_the_previous_drains() {
    let (mut machine, effects) = on_probation();
    assert_eq!(
        steps(&effects),
        ["candidate", "ready", "activated", "probation"]
    );
    assert!(effects.contains(&Effect::Standby(1)));
    assert!(!effects.contains(&Effect::Drain(1)) && conclusions(&effects).is_empty());
    assert_eq!(places(&machine), [Some(2), Some(1), None, None]);
    assert_eq!(machine.fallback(), &target("1.0.0"));
    assert_eq!(machine.desired(), &target("1.1.0"));
    assert!(!machine.is_settled());
    assert_eq!(machine.next_deadline(), Some(at(PROBATION)));

    assert!(tick(&mut machine, PROBATION - 1).is_empty());
    let effects = tick(&mut machine, PROBATION);
    assert_eq!(steps(&effects), ["draining"]);
    assert!(effects.contains(&Effect::Drain(1)));
    assert_eq!(conclusions(&effects)[0].verdict, Outcome::Kept);
    assert_eq!(places(&machine), [Some(2), None, None, None]);
    assert_eq!(machine.fallback(), &target("1.1.0"));
    assert!(machine.is_settled());
}

#[test]
fn a_new_generation_that_fails_in_its_probation_gives_its_traffic_back() {
    for (event, code, mark, leaves) in failures() {
        let (mut machine, _) = on_probation();
        let effects = handle(&mut machine, 10_000, 2, event.clone());
        let concluded = conclusions(&effects);
        assert_eq!(concluded.len(), 1, "{event:?}");
        assert_eq!(concluded[0].verdict, Outcome::RolledBack);
        assert_eq!(concluded[0].why.as_ref().unwrap().code(), code);
        assert_eq!(concluded[0].mark, mark, "{event:?}");
        assert_leaves(&machine, &effects, 2, leaves);
        assert!(effects.contains(&Effect::Activate(1)), "{event:?}");
        assert_eq!(places(&machine), [None, None, Some(1), None]);
        assert_eq!(machine.desired(), &target("1.0.0"));
        assert!(!machine.is_settled());

        let effects = handle(&mut machine, 10_001, 1, Event::Activated);
        assert_eq!(
            effects,
            [Effect::Recovered {
                generation: 1,
                target: target("1.0.0")
            }]
        );
        assert_eq!(places(&machine), [Some(1), None, None, None]);
        assert_eq!(machine.probation(), None);
        assert!(machine.is_settled());
    }
}

#[test]
fn the_error_share_counts_what_was_answered_since_activated_and_ends_it_above_not_at_the_share() {
    for (said, ends) in [
        (load(0, 0), None),
        (load(19, 19), None),
        (load(20, 1), None),
        (load(20, 2), Some((10, 20))),
        (load(100, 5), None),
        (load(100, 6), Some((6, 100))),
        // A worker that counts wrongly is not believed to have answered less than it refused.
        (load(3, 30), Some((100, 30))),
    ] {
        let (mut machine, _) = on_probation();
        let effects = handle(&mut machine, 10, 2, said.clone());
        let why = conclusions(&effects)
            .first()
            .and_then(|conclusion| conclusion.why.clone());
        assert_eq!(
            why,
            ends.map(|(percent, of)| Failure::ErrorShare { percent, of }),
            "{said:?}"
        );
    }
}

#[test]
fn what_a_candidate_answered_before_it_served_does_not_count() {
    let mut machine = serving();
    machine.configure(Settings {
        probation: Duration::from_millis(PROBATION),
        ..settings()
    });
    machine.replace(at(0), request("1.1.0", By::Job), &mut Vec::new());
    handle(&mut machine, 0, 2, Event::Spawned { pid: 2 });
    handle(&mut machine, 0, 2, load(5, 5));
    bring_up(&mut machine, at(0), 2, "1.1.0");
    assert!(handle(&mut machine, 1, 2, load(25, 6)).is_empty());
    let probation = machine.probation().unwrap();
    assert_eq!((probation.answered, probation.local_5xx), (20, 1));
    assert!(!handle(&mut machine, 2, 2, load(25, 7)).is_empty());
}

#[test]
fn errors_outside_a_probation_and_of_others_change_nothing() {
    let (mut machine, _) = on_probation();
    assert!(handle(&mut machine, 1, 1, load(100, 100)).is_empty());
    tick(&mut machine, PROBATION);
    for generation in [1, 2, 9] {
        assert!(handle(&mut machine, PROBATION, generation, load(1_000, 1_000)).is_empty());
    }
    assert_eq!(places(&machine), [Some(2), None, None, None]);
}

#[test]
fn a_version_that_was_kept_before_is_never_marked_and_errors_with_another_configuration_are_a_strike()
 {
    let cases = [
        ("1.0.0", exited(), Mark::None),
        ("1.0.0", load(40, 40), Mark::None),
        ("1.1.0", exited(), Mark::KnownBad),
        ("1.1.0", load(40, 40), Mark::Strike),
    ];
    for (version, event, mark) in cases {
        let mut machine = serving();
        machine.configure(Settings {
            probation: Duration::from_millis(PROBATION),
            ..settings()
        });
        let mut request = request(version, By::Signal);
        request.target.config = "c1".into();
        machine.replace(at(0), request, &mut Vec::new());
        bring_up(&mut machine, at(0), 2, version);
        let effects = handle(&mut machine, 10, 2, event.clone());
        assert_eq!(conclusions(&effects)[0].mark, mark, "{version} {event:?}");
    }
    let mut machine = serving();
    let mut same = request("1.0.0", By::Person);
    same.target.config = "c1".into();
    machine.replace(at(0), same, &mut Vec::new());
    let effects = handle(&mut machine, 10, 2, exited());
    assert_eq!(
        (
            conclusions(&effects)[0].verdict,
            conclusions(&effects)[0].mark
        ),
        (Outcome::Failed, Mark::None)
    );
}

#[test]
fn a_standby_that_is_lost_does_not_end_the_probation() {
    for (event, code, _, leaves) in failures() {
        if matches!(event, Event::Load { .. }) {
            continue;
        }
        let (mut machine, _) = on_probation();
        let effects = handle(&mut machine, 10_000, 1, event.clone());
        assert!(conclusions(&effects).is_empty());
        assert!(
            effects.iter().any(|effect| matches!(
                effect,
                Effect::Lost { generation: 1, failure, .. } if failure.code() == code
            )),
            "{effects:?}"
        );
        assert_leaves(&machine, &effects, 1, leaves);
        assert_eq!(places(&machine), [Some(2), None, None, None]);
        assert!(!machine.is_settled(), "the probation goes on");
        let effects = tick(&mut machine, PROBATION);
        assert_eq!(conclusions(&effects)[0].verdict, Outcome::Kept);
        assert!(steps(&effects).is_empty());
        assert!(machine.is_settled());
    }
}

#[test]
fn both_lost_in_either_order_is_a_recovery_of_what_was_last_kept() {
    for first in [1, 2] {
        let (mut machine, _) = on_probation();
        let mut effects = handle(&mut machine, 10_000, first, exited());
        effects.extend(handle(&mut machine, 10_001, 3 - first, exited()));
        let concluded = conclusions(&effects);
        assert_eq!(concluded.len(), 1);
        assert_eq!(concluded[0].verdict, Outcome::RolledBack);
        assert_eq!(places(&machine), [None; 4]);
        assert_eq!(machine.next_deadline(), Some(at(10_001 + 250)));
        let effects = tick(&mut machine, 10_251);
        assert_eq!(
            effects,
            [Effect::Spawn {
                generation: 3,
                target: target("1.0.0")
            }]
        );
        bring_up(&mut machine, at(10_300), 3, "1.0.0");
        assert!(machine.is_settled(), "a recovery has no probation");
    }
}

#[test]
fn a_standby_that_does_not_take_over_is_replaced_by_a_recovery_and_keeps_its_streams() {
    let take_over = |event: Option<Event>| {
        let (mut machine, _) = on_probation();
        handle(&mut machine, 1_000, 2, exited());
        let effects = match event {
            Some(event) => handle(&mut machine, 2_000, 1, event),
            None => {
                assert!(tick(&mut machine, 30_999).is_empty());
                tick(&mut machine, 31_000)
            }
        };
        assert!(matches!(
            effects[..],
            [Effect::Lost { generation: 1, .. }, ..]
        ));
        assert!(conclusions(&effects).is_empty());
        assert!(machine.taking_over().is_none() && machine.active().is_none());
        let due = machine.recovery_due.unwrap();
        (machine, effects, due)
    };
    for (event, _, _, leaves) in failures() {
        if !matches!(event, Event::Load { .. }) {
            let (machine, effects, due) = take_over(Some(event));
            assert_leaves(&machine, &effects, 1, leaves);
            assert_eq!(due, at(2_250));
        }
    }
    let (mut machine, effects, due) = take_over(None);
    assert_leaves(&machine, &effects, 1, Leaves::Drains);
    assert_eq!(due, at(31_250));
    assert!(matches!(
        effects[0],
        Effect::Lost {
            failure: Failure::NotActivated(_),
            ..
        }
    ));
    // It says it too late: somebody else is on the way.
    assert!(handle(&mut machine, 31_100, 1, Event::Activated).is_empty());
    let effects = tick(&mut machine, 31_250);
    assert!(matches!(&effects[..], [Effect::Spawn { target: t, .. }] if *t == target("1.0.0")));
}

#[test]
fn without_a_probation_time_or_on_a_host_that_never_served_a_rollout_is_kept_at_once() {
    let mut effects = Vec::new();
    let with = Settings {
        probation: Duration::from_millis(PROBATION),
        ..settings()
    };
    let mut machine = Machine::start(at(0), with, target("1.0.0"), &mut effects);
    machine.handle(at(1), 1, Event::Spawned { pid: 1 }, &mut effects);
    machine.replace(at(2), request("1.1.0", By::Person), &mut effects);
    let effects = bring_up(&mut machine, at(3), 2, "1.1.0");
    assert_eq!(conclusions(&effects)[0].verdict, Outcome::Kept);
    assert!(machine.is_settled());
}

/// The active one died while its successor was being started: that one has to prove itself all the same.
#[test]
fn a_rollout_while_nobody_serves_has_its_probation_without_a_standby() {
    let mut machine = serving();
    machine.configure(Settings {
        probation: Duration::from_millis(PROBATION),
        ..settings()
    });
    machine.replace(at(0), request("1.1.0", By::Job), &mut Vec::new());
    handle(&mut machine, 1, 1, exited());
    let effects = bring_up(&mut machine, at(2), 2, "1.1.0");
    assert!(conclusions(&effects).is_empty());
    assert_eq!(places(&machine), [Some(2), None, None, None]);
    let effects = handle(&mut machine, 3, 2, exited());
    assert_eq!(conclusions(&effects)[0].verdict, Outcome::RolledBack);
    tick(&mut machine, 10_000);
    assert_eq!(machine.candidate().unwrap().target, target("1.0.0"));
}

#[test]
fn stopping_in_a_probation_or_a_take_over_defers_once_and_everyone_drains() {
    let (mut machine, _) = on_probation();
    let mut effects = Vec::new();
    machine.stop(at(20), Duration::from_secs(90), &mut effects);
    let concluded = conclusions(&effects);
    assert_eq!(concluded.len(), 1);
    assert_eq!(
        (concluded[0].verdict, concluded[0].mark),
        (Outcome::Deferred, Mark::None)
    );
    assert!(effects.contains(&Effect::Drain(1)) && effects.contains(&Effect::Drain(2)));
    assert_eq!(machine.next_deadline(), Some(at(90_020)));
    for generation in [1, 2] {
        assert!(!machine.is_finished());
        assert!(handle(&mut machine, 30, generation, exited()).is_empty());
    }
    assert!(machine.is_finished());

    let (mut machine, _) = on_probation();
    handle(&mut machine, 10, 2, Event::TransferUnanswered);
    let mut effects = Vec::new();
    machine.stop(at(20), Duration::from_secs(90), &mut effects);
    // Who drains already is told as well: nobody will take over what it would give back.
    assert_eq!(effects, [Effect::Drain(2), Effect::Drain(1)]);
    // Said on the way out: it does not serve again.
    handle(&mut machine, 21, 1, Event::Activated);
    assert_eq!(places(&machine), [None; 4]);
    for generation in [1, 2] {
        assert!(!machine.is_finished());
        handle(&mut machine, 30, generation, exited());
    }
    assert!(machine.is_finished());
}

#[test]
fn the_whole_state_survives_another_process_image() {
    let (machine, _) = on_probation();
    let mut taking_over = on_probation().0;
    handle(&mut taking_over, 10, 2, Event::TransferUnanswered);
    let mut superseded = on_probation().0;
    superseded.replace(at(10), request("1.2.0", By::Person), &mut Vec::new());
    for machine in [serving(), machine, taking_over, superseded] {
        let text = serde_json::to_string(&machine).unwrap();
        let again: Machine = serde_json::from_str(&text).unwrap();
        assert_eq!(format!("{machine:?}"), format!("{again:?}"));
    }
}
