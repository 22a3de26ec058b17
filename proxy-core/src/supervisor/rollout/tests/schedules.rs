//! Random schedules: workers that die, hang, lie and answer late, people and jobs that ask at any time, SIGTERM,
//! and a supervisor that goes on in another process image. After every step all that must always hold is asserted.
//!
//! `ROLLPROXY_SEED=<n> cargo test -p rollproxy random_schedules` replays one schedule.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::dice::Dice;
use super::*;

const SCHEDULES: u64 = 1_000;
const STEPS: u64 = 1_050;

/// A worker as it really is.
struct Model {
    /// What it, or the kernel, will say of it, in order.
    says: VecDeque<Event>,
    /// When it became the active one.
    active_since: Option<u64>,
    /// Something happened to it that ends a probation.
    failed: bool,
}

/// What the machine was before a step.
struct Before {
    active: Option<(Generation, Serving)>,
    candidate: Option<Generation>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Serving {
    Kept,
    Probation,
    Unproven,
}

/// What is done to the machine in one step.
#[derive(Debug, Clone)]
enum Deed {
    Event(Generation, Event),
    Tick,
    Ask(Request),
    Stop,
}

struct World {
    machine: Machine,
    dice: Dice,
    now: u64,
    /// How bad this world is, in percent.
    trouble: u64,
    calm: bool,
    workers: BTreeMap<Generation, Model>,
    dead: Vec<Generation>,
    open: BTreeSet<RolloutId>,
    verdicts: BTreeSet<RolloutId>,
    /// What was last kept; at first what was started with.
    kept: Target,
    /// Anything ever served.
    proven: bool,
    counted: Counted,
}

/// That the schedules reach what they are there for.
#[derive(Debug, Default)]
struct Counted {
    steps: u64,
    verdicts: BTreeMap<&'static str, u64>,
    take_overs: u64,
    late_take_overs: u64,
    recoveries: u64,
    unproven: u64,
    carried: u64,
}

impl Counted {
    fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        for (word, count) in &other.verdicts {
            *self.verdicts.entry(word).or_default() += count;
        }
        self.take_overs += other.take_overs;
        self.late_take_overs += other.late_take_overs;
        self.recoveries += other.recoveries;
        self.unproven += other.unproven;
        self.carried += other.carried;
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let mut settings = settings();
        settings.probation =
            [0, 5_000, 30_000, 30_000, 30_000].map(Duration::from_millis)[dice.roll(5) as usize];
        settings.drain_cap = [1, 2, 8][dice.roll(3) as usize];
        let trouble = [2, 10, 30][dice.roll(3) as usize];
        let mut effects = Vec::new();
        let machine = Machine::start(at(0), settings, target("1.0.0"), &mut effects);
        let mut world = Self {
            machine,
            dice,
            now: 0,
            trouble,
            calm: false,
            workers: BTreeMap::new(),
            dead: vec![0],
            open: BTreeSet::new(),
            verdicts: BTreeSet::new(),
            kept: target("1.0.0"),
            proven: false,
            counted: Counted::default(),
        };
        world.settle(effects);
        world
    }

    fn trouble(&mut self) -> bool {
        !self.calm && self.dice.percent(self.trouble)
    }

    fn serving(&self) -> Option<(Generation, Serving)> {
        let active = self.machine.active.as_ref()?;
        let serving = match active.standing {
            Standing::Kept => Serving::Kept,
            Standing::Probation(_) => Serving::Probation,
            Standing::Unproven => Serving::Unproven,
        };
        Some((active.worker.generation, serving))
    }

    /// One deed and all that follows from it at once.
    fn step(&mut self, deed: Deed) {
        let before = Before {
            active: self.serving(),
            candidate: self.machine.candidate().map(|c| c.generation),
        };
        self.counted.steps += 1;
        let now = at(self.now);
        let mut effects = Vec::new();
        match deed.clone() {
            Deed::Event(generation, event) => {
                if let Some(model) = self.workers.get_mut(&generation)
                    && super::leaving::Departure::of(event.clone()).is_some()
                {
                    model.failed = true;
                }
                if matches!(event, Event::Exited { .. }) {
                    self.workers.remove(&generation);
                    self.dead.push(generation);
                }
                self.machine.handle(now, generation, event, &mut effects);
            }
            Deed::Tick => self.machine.tick(now, &mut effects),
            Deed::Ask(request) => {
                if let Answer::Started(id) = self.machine.replace(now, request, &mut effects) {
                    assert!(self.open.insert(id), "rollout {id} began twice");
                }
            }
            Deed::Stop => self
                .machine
                .stop(now, Duration::from_secs(90), &mut effects),
        }
        self.judge(&before, &deed, &effects);
        self.settle(effects);
        if !self.calm && self.dice.roll(2_000) == 0 {
            self.carry();
        }
    }

    /// The supervisor goes on in another process image.
    fn carry(&mut self) {
        let text = serde_json::to_string(&self.machine).unwrap();
        self.machine = serde_json::from_str(&text).unwrap();
        self.counted.carried += 1;
    }

    /// Whether what one deed did is allowed.
    fn judge(&mut self, before: &Before, deed: &Deed, effects: &[Effect]) {
        let after = self.serving();
        let candidate_failed = effects.iter().any(|effect| match effect {
            Effect::Conclude(conclusion) => {
                conclusion.verdict == Outcome::Failed
                    && Some(conclusion.generation) == before.candidate
            }
            Effect::Lost { generation, .. } => Some(*generation) == before.candidate,
            _ => false,
        });
        if let Some((generation, serving)) = before.active
            && after.map(|(now, _)| now) != Some(generation)
        {
            let why = match deed {
                // It failed itself.
                Deed::Event(about, event) if *about == generation => {
                    matches!(event, Event::Load { .. })
                        || super::leaving::Departure::of(event.clone()).is_some()
                }
                // Its successor is activated.
                Deed::Event(about, Event::Activated) => {
                    Some(*about) == before.candidate && after.map(|(now, _)| now) == Some(*about)
                }
                Deed::Stop => true,
                _ => false,
            };
            // It only served until its successor would, and that one failed.
            let let_go = serving == Serving::Unproven && candidate_failed;
            assert!(
                why || let_go,
                "{generation} ({serving:?}) lost its place by {deed:?}: {effects:?}"
            );
        }
        if let (Some((new, _)), true) = (after, after != before.active)
            && before.active.map(|(old, _)| old) != Some(new)
        {
            assert!(
                matches!(deed, Deed::Event(about, Event::Activated) if *about == new),
                "{new} is active by {deed:?}"
            );
            if let Some(model) = self.workers.get_mut(&new) {
                model.active_since = Some(self.now);
                model.failed = false;
            }
        }
        for effect in effects {
            self.judge_effect(before, effect);
        }
        self.judge_places();
    }

    fn judge_effect(&mut self, before: &Before, effect: &Effect) {
        let is = |worker: Option<&Worker>, generation: &Generation| {
            worker.is_some_and(|worker| worker.generation == *generation)
        };
        let machine = &self.machine;
        match effect {
            Effect::Kill(generation) | Effect::Shutdown(generation) | Effect::Drain(generation) => {
                for place in [
                    machine.active(),
                    machine.candidate(),
                    machine.standby(),
                    machine.taking_over(),
                ] {
                    assert!(!is(place, generation), "{effect:?}");
                }
            }
            Effect::Standby(generation) => {
                assert!(is(machine.standby(), generation));
                if Some(*generation) != before.active.map(|(active, _)| active) {
                    self.counted.late_take_overs += 1;
                }
            }
            Effect::Activate(generation) => {
                let takes_over = is(machine.taking_over(), generation);
                assert!(takes_over || is(machine.candidate(), generation));
                self.counted.take_overs += u64::from(takes_over);
            }
            Effect::Recovered { generation, target } => {
                assert!(is(machine.active(), generation));
                assert_eq!(
                    *target, self.kept,
                    "something else than the last kept serves"
                );
                self.proven = true;
            }
            Effect::Conclude(conclusion) => self.judge_verdict(before, conclusion),
            Effect::Spawn { .. } | Effect::Step { .. } | Effect::Lost { .. } => {}
        }
    }

    fn judge_verdict(&mut self, before: &Before, conclusion: &Conclusion) {
        let Conclusion {
            rollout,
            generation,
            verdict,
            ..
        } = conclusion;
        // The request that begins a rollout is answered before the effects are judged, so it is open by now.
        assert!(self.open.remove(rollout), "rollout {rollout} is not open");
        assert!(self.verdicts.insert(*rollout), "two verdicts: {rollout}");
        *self.counted.verdicts.entry(verdict.word()).or_default() += 1;
        let was_active = before
            .active
            .is_some_and(|(active, _)| active == *generation);
        match verdict {
            Outcome::Kept => {
                let model = &self.workers[generation];
                let probation = self.machine.settings.probation;
                let served = Duration::from_millis(self.now - model.active_since.unwrap());
                assert!(!model.failed, "{generation} failed and is kept");
                assert!(
                    served >= probation || !self.proven,
                    "{generation} is kept after {served:?}"
                );
                assert_eq!(self.serving(), Some((*generation, Serving::Kept)));
                self.kept = conclusion.target.clone();
                self.proven = true;
            }
            Outcome::RolledBack => {
                assert_eq!(before.active, Some((*generation, Serving::Probation)));
                assert_ne!(self.serving().map(|(active, _)| active), Some(*generation));
            }
            Outcome::Failed => {
                assert_eq!(before.candidate, Some(*generation));
                if !matches!(before.active, Some((_, Serving::Unproven))) {
                    assert_eq!(self.serving(), before.active, "the active was touched");
                }
            }
            Outcome::Superseded | Outcome::Deferred => {
                assert!(was_active || before.candidate == Some(*generation));
            }
        }
        let blames = matches!(verdict, Outcome::RolledBack | Outcome::Failed);
        assert_eq!(conclusion.why.is_some(), blames);
        assert!(blames || conclusion.mark == Mark::None);
        let same = conclusion.target.version == self.kept.version && self.proven;
        assert!(!same || conclusion.mark == Mark::None, "the kept is marked");
    }

    /// What holds between any two steps.
    fn judge_places(&mut self) {
        let machine = &self.machine;
        let mut numbers: Vec<Generation> = machine
            .leaving
            .iter()
            .map(|leaving| &leaving.worker)
            .chain(machine.active())
            .chain(machine.candidate())
            .chain(machine.standby())
            .chain(machine.taking_over())
            .map(|worker| worker.generation)
            .collect();
        numbers.sort_unstable();
        assert!(
            numbers.windows(2).all(|pair| pair[0] != pair[1]),
            "a generation in two places: {numbers:?}"
        );
        for generation in self.workers.keys() {
            assert!(
                numbers.binary_search(generation).is_ok(),
                "{generation} runs and has no place"
            );
        }
        let serving = self.serving();
        assert!(
            serving.is_some()
                || machine.candidate.is_some()
                || machine.taking_over.is_some()
                || machine.recovery_due.is_some()
                || machine.stopping,
            "nobody serves, and nobody ever will"
        );
        assert!(machine.active.is_none() || machine.taking_over.is_none());
        for worker in machine.standby().into_iter().chain(machine.taking_over()) {
            assert_eq!(worker.target, self.kept, "something unproven stands by");
        }
        match serving {
            Some((_, Serving::Kept)) => {
                assert_eq!(machine.active().unwrap().target, self.kept);
                assert!(machine.standby.is_none(), "a standby without a probation");
            }
            Some((_, Serving::Unproven)) => {
                self.counted.unproven += 1;
                assert!(machine.candidate.is_some() || machine.recovery_due.is_some());
            }
            Some((_, Serving::Probation)) => assert!(machine.candidate.is_none()),
            None => assert!(machine.standby.is_none(), "it could take over"),
        }
        match machine.candidate.as_ref().map(|candidate| candidate.errand) {
            Some(Errand::Recovery) => {
                assert_eq!(machine.candidate().unwrap().target, self.kept);
            }
            Some(Errand::Rollout(rollout)) => assert!(self.open.contains(&rollout)),
            None => {}
        }
        assert_eq!(
            self.open.iter().next(),
            machine.under_way().as_ref(),
            "open rollouts and the one under way"
        );
        assert!(self.open.len() <= 1);
    }

    /// Carries out effects as the shell does, on model workers.
    fn settle(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Spawn { generation, target } => self.spawn(generation, target),
                // An answer may be lost, or never given.
                Effect::Activate(_) if self.trouble() => {}
                Effect::Activate(generation) => self.will_say(generation, Event::Activated),
                Effect::Drain(generation) => {
                    self.will_say(generation, Event::Drained);
                    self.will_say(generation, exited());
                }
                Effect::Kill(generation) | Effect::Shutdown(generation) => {
                    self.will_say(generation, exited());
                }
                Effect::Recovered { .. } => self.counted.recoveries += 1,
                _ => {}
            }
        }
    }

    fn spawn(&mut self, generation: Generation, target: Target) {
        if self.trouble() {
            let reason = "ENOENT".into();
            return self.step(Deed::Event(generation, Event::SpawnFailed { reason }));
        }
        let mut says = VecDeque::new();
        if !self.trouble() {
            let version = match self.trouble() {
                true => "6.6.6".to_owned(),
                false => target.version.to_string(),
            };
            says.push_back(ready(&version));
        }
        self.workers.insert(
            generation,
            Model {
                says,
                active_since: None,
                failed: false,
            },
        );
        self.step(Deed::Event(generation, Event::Spawned { pid: 7 }));
    }

    fn will_say(&mut self, generation: Generation, event: Event) {
        if let Some(model) = self.workers.get_mut(&generation) {
            model.says.push_back(event);
        }
    }

    /// Something that may happen at any time.
    fn happens(&mut self) -> Deed {
        match self.dice.roll(20) {
            0 => self.ask(),
            1..=3 => {
                self.now += self.dice.roll(3_000);
                Deed::Tick
            }
            4..=5 => {
                // Just before, at, or after the next deadline.
                let due = self.machine.next_deadline().unwrap_or_default();
                let due = due.since(Moment::default()).as_millis() as u64;
                self.now = self.now.max((due + self.dice.roll(3)).saturating_sub(1));
                Deed::Tick
            }
            6 => Deed::Event(self.somebody_dead(), self.anything()),
            _ => self.worker_acts(),
        }
    }

    fn ask(&mut self) -> Deed {
        let by = [By::Job, By::Person, By::Signal, By::Pending][self.dice.roll(4) as usize];
        let mut request = request(["1.0.0", "1.1.0", "1.2.0"][self.dice.roll(3) as usize], by);
        if self.dice.percent(20) {
            request.target.config = "c1".into();
        }
        Deed::Ask(request)
    }

    fn somebody_dead(&mut self) -> Generation {
        let nth = self.dice.roll(self.dead.len() as u64) as usize;
        self.dead[nth]
    }

    fn worker_acts(&mut self) -> Deed {
        if self.workers.is_empty() {
            return Deed::Tick;
        }
        let nth = self.dice.roll(self.workers.len() as u64) as usize;
        let generation = *self.workers.keys().nth(nth).unwrap();
        if self.trouble() {
            return Deed::Event(generation, self.anything());
        }
        let Some(model) = self.workers.get_mut(&generation) else {
            return Deed::Tick;
        };
        match model.says.pop_front() {
            Some(event) => Deed::Event(generation, event),
            None => Deed::Event(
                generation,
                Event::Load {
                    answered: 1_000,
                    local_5xx: 0,
                },
            ),
        }
    }

    /// What a worker may say or do, in turn or not.
    fn anything(&mut self) -> Event {
        match self.dice.roll(12) {
            0..=2 => exited(),
            3 => Event::Fatal {
                reason: "x".into(),
                blame: crate::channel::Blame::Package,
            },
            4 => Event::ChannelClosed,
            5 => Event::Drained,
            6 => Event::TransferUnanswered,
            7 => Event::PingUnanswered,
            8 => Event::Load {
                answered: 1_000,
                local_5xx: 500,
            },
            9 => Event::Activated,
            10 => ready("1.1.0"),
            _ => ready("6.6.6"),
        }
    }

    /// Nothing goes wrong from now on, and nobody asks for anything: in the end what was last kept serves.
    fn calm_down(&mut self) {
        self.calm = true;
        for _ in 0..400 {
            self.now += 1_000;
            self.step(Deed::Tick);
            for generation in self.workers.keys().copied().collect::<Vec<_>>() {
                while let Some(event) = self
                    .workers
                    .get_mut(&generation)
                    .and_then(|model| model.says.pop_front())
                {
                    self.step(Deed::Event(generation, event));
                }
            }
            if self.machine.is_settled() || self.machine.is_finished() {
                return;
            }
        }
        panic!("it does not come to rest: {:?}", self.machine);
    }
}

fn simulate(seed: u64) -> Counted {
    let mut world = World::new(seed);
    let stops = world.dice.percent(20);
    while world.counted.steps < STEPS {
        let deed = world.happens();
        world.step(deed);
    }
    if !stops {
        world.calm_down();
        let active = world.machine.active().unwrap();
        assert_eq!(active.target, world.kept);
        assert!(
            world.workers.contains_key(&active.generation),
            "a ghost serves"
        );
        assert!(world.open.is_empty(), "without a verdict: {:?}", world.open);
        world.calm = false;
    }
    world.step(Deed::Stop);
    assert!(world.open.is_empty(), "without a verdict: {:?}", world.open);
    if world.dice.percent(50) {
        for _ in 0..50 {
            let deed = world.happens();
            world.step(deed);
        }
        world.step(Deed::Stop);
    }
    world.calm_down();
    assert!(world.machine.is_finished() && world.workers.is_empty());
    world.counted
}

#[test]
fn random_schedules_keep_the_invariants() {
    if let Ok(seed) = std::env::var("ROLLPROXY_SEED") {
        println!("{:?}", simulate(seed.parse().unwrap()));
        return;
    }
    let mut counted = Counted::default();
    for seed in 1..=SCHEDULES {
        let result = std::panic::catch_unwind(|| simulate(seed));
        match result {
            Ok(one) => counted.add(&one),
            Err(_) => panic!(
                "replay it with ROLLPROXY_SEED={seed} cargo test -p rollproxy random_schedules"
            ),
        }
    }
    // Schedules that never come to the interesting places prove nothing.
    println!("{counted:?}");
    assert!(counted.steps >= 1_000_000);
    for verdict in ["kept", "rolledBack", "failed", "superseded"] {
        assert!(counted.verdicts[verdict] > 1_000, "{counted:?}");
    }
    // One at most in a schedule.
    assert!(counted.verdicts["deferred"] > 20, "{counted:?}");
    assert!(counted.take_overs > 500 && counted.late_take_overs > 5);
    assert!(counted.recoveries > 1_000 && counted.unproven > 1_000 && counted.carried > 100);
}
