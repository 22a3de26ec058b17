use super::*;
use std::collections::{BTreeMap, BTreeSet};

fn settings() -> Settings {
    Settings {
        ready_timeout: Duration::from_secs(30),
        drain_deadline: Some(Duration::from_secs(4 * 3600)),
        drain_cap: 8,
        recovery_min: Duration::from_millis(250),
        recovery_max: Duration::from_secs(10),
        kill_grace: Duration::from_secs(5),
    }
}

fn target(version: &str) -> Target {
    Target {
        version: version.parse().unwrap(),
        config: "c0".into(),
    }
}

fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

fn request(version: &str, by: By) -> Request {
    Request {
        target: target(version),
        by,
    }
}

/// A machine whose first generation, of version 1.0.0, is active.
fn serving() -> Machine {
    let mut effects = Vec::new();
    let mut machine = Machine::start(at(0), settings(), target("1.0.0"), &mut effects);
    bring_up(&mut machine, at(1), 1, "1.0.0");
    assert_eq!(machine.active().unwrap().generation, 1);
    machine
}

fn bring_up(
    machine: &mut Machine,
    now: Moment,
    generation: Generation,
    version: &str,
) -> Vec<Effect> {
    let mut effects = Vec::new();
    machine.handle(now, generation, Event::Spawned { pid: 100 }, &mut effects);
    machine.handle(now, generation, ready(version), &mut effects);
    machine.handle(now, generation, Event::Activated, &mut effects);
    effects
}

fn ready(version: &str) -> Event {
    Event::Ready {
        version: version.into(),
        protocol: staging::protocol::CHANNEL_PROTOCOL,
    }
}

fn conclusions(effects: &[Effect]) -> Vec<&Conclusion> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Conclude(conclusion) => Some(conclusion),
            _ => None,
        })
        .collect()
}

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

/// xorshift64*: small, seeded, the same everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % sides
    }
}

/// What the simulated world knows that the machine does not.
#[derive(Default)]
struct World {
    alive: BTreeMap<Generation, Target>,
    said_activated: BTreeSet<Generation>,
    open: BTreeSet<RolloutId>,
    concluded: BTreeSet<RolloutId>,
    killed: BTreeSet<Generation>,
    drained: BTreeSet<Generation>,
}

impl World {
    fn apply(&mut self, effects: &mut Vec<Effect>, machine: &Machine) -> Vec<(Generation, Event)> {
        let mut answers = Vec::new();
        for effect in effects.drain(..) {
            match effect {
                Effect::Spawn { generation, target } => {
                    assert!(self.alive.insert(generation, target).is_none());
                    answers.push((
                        generation,
                        Event::Spawned {
                            pid: u32::try_from(generation).unwrap(),
                        },
                    ));
                }
                Effect::Conclude(conclusion) => {
                    assert!(
                        self.concluded.insert(conclusion.rollout),
                        "two verdicts for rollout {}",
                        conclusion.rollout
                    );
                    if conclusion.verdict == Outcome::Kept {
                        assert!(self.said_activated.contains(&conclusion.generation));
                    }
                }
                Effect::Kill(generation) | Effect::Shutdown(generation) => {
                    assert_ne!(
                        machine.active().map(|a| a.generation),
                        Some(generation),
                        "the active one is killed"
                    );
                    self.killed.insert(generation);
                }
                Effect::Drain(generation) => {
                    self.drained.insert(generation);
                }
                _ => {}
            }
        }
        answers
    }
}

fn simulate(seed: u64, steps: u32) {
    let mut dice = Dice(seed | 1);
    let mut effects = Vec::new();
    let mut now = 0_u64;
    let mut machine = Machine::start(at(0), settings(), target("1.0.0"), &mut effects);
    let mut world = World::default();
    for _ in 0..steps {
        for (generation, event) in world.apply(&mut effects, &machine) {
            machine.handle(at(now), generation, event, &mut effects);
        }
        now += dice.roll(3_000);
        let active_before = machine.active().cloned();
        let candidate_before = machine.candidate().map(|c| c.generation);
        let mut about = None;
        match dice.roll(10) {
            0 => {
                let by = [By::Job, By::Person, By::Signal, By::Pending][dice.roll(4) as usize];
                let version = format!("1.{}.0", dice.roll(4));
                if let Answer::Started(id) =
                    machine.replace(at(now), request(&version, by), &mut effects)
                {
                    assert!(world.open.insert(id));
                }
            }
            1 => machine.tick(at(now), &mut effects),
            _ if world.alive.is_empty() => machine.tick(at(now), &mut effects),
            _ => {
                let nth = dice.roll(world.alive.len() as u64) as usize;
                let (&generation, of) = world.alive.iter().nth(nth).unwrap();
                about = Some(generation);
                let event = match dice.roll(14) {
                    0..=3 => ready(&of.version.to_string()),
                    4..=7 => {
                        world.said_activated.insert(generation);
                        Event::Activated
                    }
                    8 => ready("6.6.6"),
                    9 => Event::Drained,
                    10 => Event::TransferUnanswered,
                    11 => Event::PingUnanswered,
                    12 => Event::ChannelClosed,
                    _ => {
                        world.alive.remove(&generation);
                        Event::Exited { how: "1".into() }
                    }
                };
                machine.handle(at(now), generation, event, &mut effects);
            }
        }
        if world.killed.iter().any(|g| world.alive.contains_key(g)) && dice.roll(3) == 0 {
            let generation = *world
                .killed
                .iter()
                .find(|g| world.alive.contains_key(g))
                .unwrap();
            world.alive.remove(&generation);
            machine.handle(
                at(now),
                generation,
                Event::Exited { how: "9".into() },
                &mut effects,
            );
        }
        // A failed candidate never touches the active one.
        if let (Some(before), Some(about)) = (&active_before, about)
            && Some(about) == candidate_before
            && machine
                .active()
                .is_none_or(|a| a.generation != before.generation)
        {
            assert_eq!(
                machine.active().map(|a| a.generation),
                Some(about),
                "seed {seed}"
            );
        }
        // Somebody serves, is about to, or a recovery is due: never nobody for ever.
        assert!(
            machine.active().is_some()
                || machine.candidate().is_some()
                || machine.next_deadline().is_some(),
            "seed {seed}: nobody serves and nothing is due"
        );
        assert!(machine.draining().count() <= settings().drain_cap + 1 + steps as usize);
    }
    // From any state it converges: let everything that starts be good.
    for _ in 0..200 {
        now += 40_000;
        for (generation, event) in world.apply(&mut effects, &machine) {
            machine.handle(at(now), generation, event, &mut effects);
        }
        machine.tick(at(now), &mut effects);
        for (generation, event) in world.apply(&mut effects, &machine) {
            machine.handle(at(now), generation, event, &mut effects);
        }
        if let Some(candidate) = machine.candidate().cloned() {
            world.said_activated.insert(candidate.generation);
            machine.handle(
                at(now),
                candidate.generation,
                ready(&candidate.target.version.to_string()),
                &mut effects,
            );
            machine.handle(
                at(now),
                candidate.generation,
                Event::Activated,
                &mut effects,
            );
        }
    }
    world.apply(&mut effects, &machine);
    assert!(machine.active().is_some(), "seed {seed}: did not converge");
    assert_eq!(
        world.open, world.concluded,
        "seed {seed}: a rollout without a verdict"
    );
}

/// `ROLLPROXY_SEED=<n> cargo test -p rollproxy random_schedules` replays one schedule.
#[test]
fn random_schedules_keep_the_invariants() {
    if let Ok(seed) = std::env::var("ROLLPROXY_SEED") {
        simulate(seed.parse().unwrap(), 2_000);
        return;
    }
    for seed in 1..=200 {
        simulate(seed * 0x9E37_79B9, 1_000);
    }
}
