//! One rollout after the other, and what becomes of a worker that fails.

use super::*;

#[test]
fn a_rollout_is_kept_at_activated_and_the_previous_drains() {
    let mut machine = serving();
    let mut effects = Vec::new();
    let answer = machine.replace(at(10), request("1.1.0", By::Job), &mut effects);
    assert_eq!(answer, Answer::Started(1));
    let effects = bring_up(&mut machine, at(20), 2, "1.1.0");
    assert!(effects.contains(&Effect::Drain(1)));
    assert_eq!(conclusions(&effects)[0].verdict, Outcome::Kept);
    assert_eq!(machine.active().unwrap().generation, 2);
    assert_eq!(
        machine.draining().map(|w| w.generation).collect::<Vec<_>>(),
        [1]
    );
    assert_eq!(machine.fallback(), &target("1.1.0"));
    machine.handle(at(30), 1, Event::Drained, &mut Vec::new());
    machine.handle(
        at(31),
        1,
        Event::Exited { how: "0".into() },
        &mut Vec::new(),
    );
    assert_eq!(machine.draining().count(), 0);
}

#[test]
fn a_candidate_that_fails_in_any_way_leaves_the_active_untouched() {
    let cases: Vec<(Event, &str, Mark)> = vec![
        (ready("9.9.9"), "VERSION_MISMATCH", Mark::KnownBad),
        (
            Event::Ready {
                version: "1.1.0".into(),
                protocol: 99,
            },
            "PROTOCOL_MISMATCH",
            Mark::None,
        ),
        (
            Event::Exited {
                how: "exit code 1".into(),
            },
            "WORKER_EXITED",
            Mark::KnownBad,
        ),
        (
            Event::Fatal {
                reason: "x".into(),
                blame: crate::channel::Blame::Configuration,
            },
            "WORKER_FATAL",
            Mark::None,
        ),
        (
            Event::Fatal {
                reason: "x".into(),
                blame: crate::channel::Blame::Package,
            },
            "WORKER_FATAL",
            Mark::KnownBad,
        ),
        (
            Event::ChannelClosed,
            "WORKER_CHANNEL_CLOSED",
            Mark::KnownBad,
        ),
        (
            Event::SpawnFailed {
                reason: "ENOENT".into(),
            },
            "WORKER_NOT_STARTED",
            Mark::None,
        ),
        (Event::PingUnanswered, "WORKER_UNRESPONSIVE", Mark::Strike),
    ];
    for (event, code, mark) in cases {
        let mut machine = serving();
        let mut effects = Vec::new();
        machine.replace(at(10), request("1.1.0", By::Job), &mut effects);
        machine.handle(at(11), 2, Event::Spawned { pid: 2 }, &mut effects);
        effects.clear();
        machine.handle(at(20), 2, event, &mut effects);
        let concluded = conclusions(&effects);
        assert_eq!(concluded.len(), 1, "{code}");
        assert_eq!(concluded[0].verdict, Outcome::Failed);
        let why = concluded[0].why.as_ref().unwrap();
        assert_eq!((why.code(), why.mark()), (code, mark));
        assert_eq!(machine.active().unwrap().generation, 1);
        assert_eq!(machine.desired(), &target("1.0.0"));
        assert!(!effects.contains(&Effect::Drain(1)));
    }
}

#[test]
fn a_candidate_out_of_time_is_killed_before_and_after_ready() {
    let mut machine = serving();
    let mut effects = Vec::new();
    machine.replace(at(1_000), request("1.1.0", By::Job), &mut effects);
    machine.handle(at(1_000), 2, Event::Spawned { pid: 2 }, &mut effects);
    effects.clear();
    machine.tick(at(30_999), &mut effects);
    assert!(effects.is_empty());
    machine.tick(at(31_000), &mut effects);
    assert_eq!(
        conclusions(&effects)[0].why.as_ref().unwrap().code(),
        "WORKER_NOT_READY"
    );
    assert!(effects.contains(&Effect::Kill(2)));

    effects.clear();
    machine.replace(at(40_000), request("1.1.0", By::Job), &mut effects);
    machine.handle(at(40_000), 3, Event::Spawned { pid: 3 }, &mut effects);
    machine.handle(at(50_000), 3, ready("1.1.0"), &mut effects);
    effects.clear();
    machine.tick(at(79_999), &mut effects);
    assert!(effects.is_empty());
    machine.tick(at(80_000), &mut effects);
    assert!(matches!(
        conclusions(&effects)[0].why,
        Some(Failure::NotActivated(_))
    ));
    assert_eq!(machine.active().unwrap().generation, 1);
}

#[test]
fn the_same_request_joins_a_job_waits_and_a_person_supersedes() {
    let mut machine = serving();
    let mut effects = Vec::new();
    assert_eq!(
        machine.replace(at(10), request("1.1.0", By::Job), &mut effects),
        Answer::Started(1)
    );
    assert_eq!(
        machine.replace(at(11), request("1.1.0", By::Person), &mut effects),
        Answer::Joined(1)
    );
    assert_eq!(
        machine.replace(at(12), request("1.2.0", By::Job), &mut effects),
        Answer::Refused(Refusal::Busy(1))
    );
    assert!(conclusions(&effects).is_empty());
    machine.handle(at(12), 2, Event::Spawned { pid: 2 }, &mut effects);
    assert_eq!(
        machine.replace(at(13), request("1.2.0", By::Person), &mut effects),
        Answer::Started(2)
    );
    assert_eq!(conclusions(&effects)[0].verdict, Outcome::Superseded);
    assert!(effects.contains(&Effect::Kill(2)));
    let effects = bring_up(&mut machine, at(20), 3, "1.2.0");
    assert_eq!(conclusions(&effects)[0].verdict, Outcome::Kept);
}

#[test]
fn the_first_worker_failing_is_recovered_with_a_doubling_wait() {
    let mut effects = Vec::new();
    let mut machine = Machine::start(at(0), settings(), target("1.0.0"), &mut effects);
    let mut now = 0;
    let mut generation = 1;
    for wait in [500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000] {
        effects.clear();
        machine.handle(
            at(now),
            generation,
            Event::Exited { how: "1".into() },
            &mut effects,
        );
        assert!(matches!(effects[..], [Effect::Lost { .. }]));
        assert_eq!(machine.next_deadline(), Some(at(now + wait)));
        now += wait;
        effects.clear();
        machine.tick(at(now), &mut effects);
        generation += 1;
        assert!(
            matches!(&effects[..], [Effect::Spawn { generation: g, .. }] if *g == generation),
            "{effects:?}"
        );
    }
    let effects = bring_up(&mut machine, at(now), generation, "1.0.0");
    assert!(matches!(effects.last(), Some(Effect::Recovered { .. })));
}

#[test]
fn an_active_that_dies_is_replaced_by_the_last_kept_after_250_ms() {
    let mut machine = serving();
    machine.replace(at(10), request("1.1.0", By::Job), &mut Vec::new());
    machine.handle(
        at(11),
        2,
        Event::Exited { how: "1".into() },
        &mut Vec::new(),
    );
    let mut effects = Vec::new();
    machine.handle(
        at(20),
        1,
        Event::Exited {
            how: "signal 9".into(),
        },
        &mut effects,
    );
    machine.tick(at(270), &mut effects);
    assert!(effects.contains(&Effect::Spawn {
        generation: 3,
        target: target("1.0.0")
    }));
}

#[test]
fn one_that_dies_right_after_it_was_activated_is_started_less_and_less_often() {
    let mut machine = serving();
    let mut now = 10;
    for (generation, wait) in (1..).zip([250, 500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000]) {
        let exited = Event::Exited { how: "1".into() };
        machine.handle(at(now), generation, exited, &mut Vec::new());
        assert_eq!(machine.next_deadline(), Some(at(now + wait)));
        now += wait;
        machine.tick(at(now), &mut Vec::new());
        bring_up(&mut machine, at(now), generation + 1, "1.0.0");
        now += 1;
    }
    // One that served for a while is no part of such a series.
    now += 10_000;
    let exited = Event::Exited { how: "1".into() };
    machine.handle(at(now), 9, exited, &mut Vec::new());
    assert_eq!(machine.next_deadline(), Some(at(now + 250)));
}

#[test]
fn a_request_that_fails_before_anything_was_kept_goes_back_to_what_we_started_with() {
    let mut effects = Vec::new();
    let mut machine = Machine::start(at(0), settings(), target("1.0.0"), &mut effects);
    machine.handle(at(1), 1, Event::Spawned { pid: 1 }, &mut effects);
    machine.replace(at(2), request("1.1.0", By::Signal), &mut effects);
    machine.handle(at(3), 2, Event::Spawned { pid: 2 }, &mut effects);
    effects.clear();
    machine.handle(at(4), 2, Event::Exited { how: "1".into() }, &mut effects);
    assert_eq!(conclusions(&effects)[0].verdict, Outcome::Failed);
    machine.tick(at(10_000), &mut effects);
    assert!(effects.contains(&Effect::Spawn {
        generation: 3,
        target: target("1.0.0")
    }));
}

#[test]
fn a_stalled_active_gets_no_sockets_but_keeps_its_streams_until_its_ping_fails() {
    let mut machine = serving();
    let mut effects = Vec::new();
    machine.handle(at(6_000), 1, Event::TransferUnanswered, &mut effects);
    assert!(machine.active().is_none());
    assert!(effects.contains(&Effect::Drain(1)));
    assert!(!effects.contains(&Effect::Kill(1)));
    machine.tick(at(6_000), &mut effects);
    assert!(effects.contains(&Effect::Spawn {
        generation: 2,
        target: target("1.0.0")
    }));
    machine.handle(at(11_000), 1, Event::PingUnanswered, &mut effects);
    assert!(effects.contains(&Effect::Kill(1)));
}

#[test]
fn at_the_drain_cap_a_rollout_is_refused_and_nothing_is_killed() {
    let mut machine = serving();
    for n in 0..8 {
        machine.replace(
            at(10 + n),
            request(&format!("1.{}.0", n + 1), By::Job),
            &mut Vec::new(),
        );
        bring_up(&mut machine, at(10 + n), n + 2, &format!("1.{}.0", n + 1));
    }
    assert_eq!(machine.draining().count(), 8);
    let mut effects = Vec::new();
    assert_eq!(
        machine.replace(at(100), request("2.0.0", By::Person), &mut effects),
        Answer::Refused(Refusal::TooManyDraining(8))
    );
    assert!(effects.is_empty());
}

#[test]
fn a_drain_deadline_shuts_down_and_then_kills() {
    let mut machine = serving();
    machine.replace(at(10), request("1.1.0", By::Job), &mut Vec::new());
    bring_up(&mut machine, at(1_000), 2, "1.1.0");
    let mut effects = Vec::new();
    let deadline = 1_000 + 4 * 3_600_000;
    machine.tick(at(deadline - 1), &mut effects);
    assert!(effects.is_empty());
    machine.tick(at(deadline), &mut effects);
    assert_eq!(effects, [Effect::Shutdown(1)]);
    machine.tick(at(deadline + 5_000), &mut effects);
    assert_eq!(effects, [Effect::Shutdown(1), Effect::Kill(1)]);
}

#[test]
fn stopping_lets_streams_finish_within_the_time_out_and_twice_ends_them() {
    let mut machine = serving();
    let mut effects = Vec::new();
    machine.replace(at(10), request("1.1.0", By::Job), &mut effects);
    machine.handle(at(10), 2, Event::Spawned { pid: 2 }, &mut effects);
    effects.clear();
    machine.stop(at(20), Duration::from_secs(90), &mut effects);
    assert_eq!(conclusions(&effects)[0].verdict, Outcome::Deferred);
    assert!(effects.contains(&Effect::Kill(2)) && effects.contains(&Effect::Drain(1)));
    assert_eq!(machine.next_deadline(), Some(at(90_020)));
    effects.clear();
    machine.stop(at(30), Duration::from_secs(90), &mut effects);
    assert!(effects.contains(&Effect::Kill(1)));
    for generation in [1, 2] {
        machine.handle(
            at(31),
            generation,
            Event::Exited { how: "9".into() },
            &mut effects,
        );
    }
    assert!(machine.is_finished());
}

#[test]
fn stopping_does_not_wait_for_one_that_cannot_hear_it_until_its_drain_deadline() {
    let mut machine = serving();
    machine.handle(at(10), 1, Event::ChannelClosed, &mut Vec::new());
    machine.stop(at(20), Duration::from_secs(90), &mut Vec::new());
    assert_eq!(machine.next_deadline(), Some(at(90_020)));
    let mut effects = Vec::new();
    machine.tick(at(90_020), &mut effects);
    assert_eq!(effects, [Effect::Kill(1)]);
}
