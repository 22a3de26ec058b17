mod probation;
mod rollouts;
mod schedules;
mod superseding;

use control::types::By;

use super::*;

fn settings() -> Settings {
    Settings {
        ready_timeout: Duration::from_secs(30),
        drain_deadline: Some(Duration::from_secs(4 * 3600)),
        drain_cap: 8,
        recovery_min: Duration::from_millis(250),
        recovery_max: Duration::from_secs(10),
        kill_grace: Duration::from_secs(5),
        // Most tables are about other things.
        probation: Duration::ZERO,
        probation_error_percent: 5,
        probation_min_requests: 20,
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

fn exited() -> Event {
    Event::Exited {
        how: "exit code 1".into(),
    }
}
