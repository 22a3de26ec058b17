//! Requests in every place of a rollout: who joins, who waits, who ends it.

use super::*;

fn with_probation() -> Settings {
    Settings {
        probation: Duration::from_secs(30),
        ..settings()
    }
}

/// Generation 1 (1.0.0) stands by, generation 2 (1.1.0) is on probation for rollout 1.
fn on_probation() -> Machine {
    let mut machine = serving();
    machine.configure(with_probation());
    machine.replace(at(0), request("1.1.0", By::Job), &mut Vec::new());
    bring_up(&mut machine, at(0), 2, "1.1.0");
    machine
}

/// The same after a person asked for 1.2.0: generation 3 is the candidate of rollout 2.
fn superseded() -> Machine {
    let mut machine = on_probation();
    let mut effects = Vec::new();
    let answer = machine.replace(at(10), request("1.2.0", By::Person), &mut effects);
    assert_eq!(answer, Answer::Started(2));
    let concluded = conclusions(&effects);
    assert_eq!(concluded.len(), 1);
    assert_eq!((concluded[0].rollout, concluded[0].generation), (1, 2));
    assert_eq!(
        (concluded[0].verdict, concluded[0].mark),
        (Outcome::Superseded, Mark::None)
    );
    // Who serves goes on serving, who stands by goes on standing by.
    assert!(!effects.iter().any(|effect| matches!(
        effect,
        Effect::Drain(_) | Effect::Kill(_) | Effect::Activate(_)
    )));
    machine.handle(at(10), 3, Event::Spawned { pid: 3 }, &mut Vec::new());
    assert_eq!(numbers(&machine), [Some(2), Some(1), None, Some(3)]);
    machine
}

fn numbers(machine: &Machine) -> [Option<Generation>; 4] {
    [
        machine.active(),
        machine.standby(),
        machine.taking_over(),
        machine.candidate(),
    ]
    .map(|worker| worker.map(|worker| worker.generation))
}

#[test]
fn every_request_in_every_place_of_a_rollout() {
    let candidate = || {
        let mut machine = serving();
        machine.configure(with_probation());
        machine.replace(at(0), request("1.1.0", By::Job), &mut Vec::new());
        machine
    };
    let busy = |id| Answer::Refused(Refusal::Busy(id));
    for (by, ends) in [
        (By::Person, true),
        (By::Signal, true),
        (By::Job, false),
        (By::Pending, false),
    ] {
        let other = |started, open| match ends {
            true => Answer::Started(started),
            false => busy(open),
        };
        let ask = |mut machine: Machine, version| {
            machine.replace(at(20), request(version, by), &mut Vec::new())
        };
        assert_eq!(ask(serving(), "1.1.0"), Answer::Started(1));
        assert_eq!(ask(candidate(), "1.1.0"), Answer::Joined(1));
        assert_eq!(ask(candidate(), "1.2.0"), other(2, 1));
        assert_eq!(ask(on_probation(), "1.1.0"), Answer::Joined(1));
        assert_eq!(ask(on_probation(), "1.2.0"), other(2, 1));
        assert_eq!(ask(on_probation(), "1.0.0"), other(2, 1));
        assert_eq!(ask(superseded(), "1.2.0"), Answer::Joined(2));
        assert_eq!(ask(superseded(), "1.1.0"), other(3, 2));
        let mut taking_over = on_probation();
        taking_over.handle(at(5), 2, exited(), &mut Vec::new());
        assert_eq!(ask(taking_over, "1.2.0"), Answer::Started(2));
        let mut stopping = on_probation();
        stopping.stop(at(5), Duration::from_secs(90), &mut Vec::new());
        assert_eq!(ask(stopping, "1.2.0"), Answer::Refused(Refusal::Stopping));
    }
}

#[test]
fn the_later_requests_candidate_takes_the_unproven_ones_place_and_the_standby_stays() {
    let mut machine = superseded();
    let effects = bring_up(&mut machine, at(20), 3, "1.2.0");
    assert!(effects.contains(&Effect::Drain(2)));
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::Standby(_)))
    );
    assert!(conclusions(&effects).is_empty());
    assert_eq!(numbers(&machine), [Some(3), Some(1), None, None]);
    let mut effects = Vec::new();
    machine.tick(at(30_020), &mut effects);
    assert_eq!(conclusions(&effects)[0].rollout, 2);
    assert_eq!(conclusions(&effects)[0].verdict, Outcome::Kept);
    assert!(effects.contains(&Effect::Drain(1)));
}

#[test]
fn the_later_requests_candidate_fails_and_the_standby_takes_over_from_the_unproven_one() {
    let mut machine = superseded();
    let mut effects = Vec::new();
    machine.handle(at(20), 3, exited(), &mut effects);
    assert_eq!(conclusions(&effects)[0].verdict, Outcome::Failed);
    assert!(effects.contains(&Effect::Drain(2)) && effects.contains(&Effect::Activate(1)));
    assert_eq!(numbers(&machine), [None, None, Some(1), None]);
    assert_eq!(machine.desired(), &target("1.0.0"));
    machine.handle(at(21), 1, Event::Activated, &mut Vec::new());
    assert!(machine.is_settled());
}

#[test]
fn without_a_standby_the_unproven_one_serves_until_the_last_kept_does_again() {
    let mut machine = superseded();
    machine.handle(at(15), 1, exited(), &mut Vec::new());
    machine.handle(at(20), 3, exited(), &mut Vec::new());
    assert_eq!(numbers(&machine), [Some(2), None, None, None]);
    assert!(!machine.is_settled());
    let mut effects = Vec::new();
    machine.tick(at(270), &mut effects);
    assert_eq!(
        effects,
        [Effect::Spawn {
            generation: 4,
            target: target("1.0.0")
        }]
    );
    let effects = bring_up(&mut machine, at(300), 4, "1.0.0");
    assert!(effects.contains(&Effect::Drain(2)) && conclusions(&effects).is_empty());
    assert_eq!(numbers(&machine), [Some(4), None, None, None]);
    assert!(machine.is_settled());
}

#[test]
fn an_unproven_one_that_fails_leaves_no_verdict_and_the_standby_serves_until_the_candidate_does() {
    let mut machine = superseded();
    let mut effects = Vec::new();
    machine.handle(at(15), 2, exited(), &mut effects);
    assert!(conclusions(&effects).is_empty());
    assert!(effects.contains(&Effect::Activate(1)));
    assert_eq!(numbers(&machine), [None, None, Some(1), Some(3)]);
    assert_eq!(machine.desired(), &target("1.2.0"));

    // The candidate is first: the standby goes on standing by, and is told so.
    let mut late = machine.clone();
    let effects = bring_up(&mut late, at(20), 3, "1.2.0");
    assert!(effects.contains(&Effect::Standby(1)));
    assert_eq!(numbers(&late), [Some(3), Some(1), None, None]);
    late.handle(at(21), 1, Event::Activated, &mut Vec::new());
    assert_eq!(numbers(&late), [Some(3), Some(1), None, None]);

    // The standby is first: it is the one that stands by again.
    machine.handle(at(16), 1, Event::Activated, &mut Vec::new());
    assert_eq!(numbers(&machine), [Some(1), None, None, Some(3)]);
    bring_up(&mut machine, at(20), 3, "1.2.0");
    assert_eq!(numbers(&machine), [Some(3), Some(1), None, None]);
}

#[test]
fn a_candidate_that_fails_during_a_take_over_does_not_disturb_it() {
    let mut machine = superseded();
    machine.handle(at(15), 2, exited(), &mut Vec::new());
    let mut effects = Vec::new();
    machine.handle(at(16), 3, exited(), &mut effects);
    assert_eq!(conclusions(&effects)[0].verdict, Outcome::Failed);
    assert_eq!(numbers(&machine), [None, None, Some(1), None]);
    assert_eq!(machine.recovery_due, None);
}

#[test]
fn a_standby_counts_as_one_that_will_drain() {
    let mut machine = serving();
    machine.configure(Settings {
        drain_cap: 1,
        ..with_probation()
    });
    let mut effects = Vec::new();
    assert_eq!(
        machine.replace(at(0), request("1.1.0", By::Job), &mut effects),
        Answer::Started(1)
    );
    bring_up(&mut machine, at(0), 2, "1.1.0");
    effects.clear();
    assert_eq!(
        machine.replace(at(1), request("1.2.0", By::Person), &mut effects),
        Answer::Refused(Refusal::TooManyDraining(1))
    );
    assert!(effects.is_empty());
    assert_eq!(machine.probation().unwrap().rollout, 1);
}
