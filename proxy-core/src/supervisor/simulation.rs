//! The rollout machine and the switchboard together, on model workers: rollouts, take-overs and returns while workers
//! die, hang and go deaf between any two messages. Wherever that happens, each socket is in exactly one place, each
//! request is read by one worker only, and each socket ends answered, or refused or lost and counted.
//!
//! `ROLLPROXY_SEED=<n> cargo test -p rollproxy random_sockets` replays one schedule.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use control::types::By;

use crate::channel::Id;
use crate::clock::Moment;

use super::rollout::dice::Dice;
use super::rollout::{Effect, Event, Generation, Machine, Request, Settings, Target};
use super::switchboard::{Switchboard, Touched};

const SCHEDULES: u64 = 400;
const STEPS: u64 = 600;
const CREDITS: usize = 3;
const RETURNS: u32 = 2;
const DEATH_FOLLOWS: u64 = 200;

/// A client's connection as it really is.
#[derive(Debug, Default)]
struct Socket {
    /// The kernel can say nothing about it.
    unix: bool,
    requests: u32,
    answers: u32,
    /// Who has read the request that is not answered yet; it stays so when that worker dies.
    reader: Option<Generation>,
    /// What the kernel counts: bytes read and written.
    progress: u32,
    /// That when it came to the supervisor.
    came: u32,
    end: Option<End>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// Reset by the supervisor, counted: no room, no time, nobody to serve it.
    Rejected,
    /// Closed by the supervisor, counted: its worker died and may have touched it.
    Closed,
    /// Its worker died with it.
    Lost,
    /// Idle, and nobody is there to take it.
    Idle,
}

#[derive(Debug)]
enum Down {
    Activate,
    Standby,
    Drain { close: bool },
    Credit(u32),
    Socket(Id, u64),
    Commit(Id),
    Cancel(Id),
    Shutdown,
}

#[derive(Debug)]
enum Up {
    Ready,
    Activated,
    Drained,
    Accepted(Id),
    Refused(Id),
    /// And which socket that is, for the judge alone.
    Owned(Id, u64),
    Returned(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stance {
    Waits,
    Serves,
    StandsBy,
    Drains { close: bool },
}

/// A worker as it really is, and the two directions of its channel.
#[derive(Debug)]
struct Worker {
    version: String,
    inbox: VecDeque<Down>,
    outbox: VecDeque<Up>,
    stance: Stance,
    held: BTreeMap<Id, u64>,
    owned: Vec<u64>,
    unanswered: u32,
    said_drained: bool,
    frozen: bool,
    /// Its own end of the channel is closed.
    deaf: bool,
    dead: bool,
    /// The supervisor has read the channel to its end, and when.
    end_heard: Option<u64>,
    told_deaf: bool,
}

impl Worker {
    fn says(&mut self, up: Up) -> bool {
        let can = !self.deaf && !self.dead;
        if can {
            self.outbox.push_back(up);
        }
        can
    }
}

#[derive(Debug, Default)]
struct Counted {
    steps: u64,
    sockets: u64,
    answers: u64,
    returned: u64,
    again: u64,
    take_overs: u64,
    ends: BTreeMap<End, u64>,
}

struct World {
    machine: Machine,
    board: Switchboard<u64>,
    dice: Dice,
    now: u64,
    calm: bool,
    trouble: u64,
    workers: BTreeMap<Generation, Worker>,
    sockets: Vec<Socket>,
    effects: Vec<Effect>,
    counted: Counted,
}

fn settings() -> Settings {
    Settings {
        probation: Duration::from_secs(3),
        ready_timeout: Duration::from_secs(5),
        drain_deadline: Some(Duration::from_secs(600)),
        drain_cap: 3,
        ..Settings::default()
    }
}

fn target(version: &str) -> Target {
    Target {
        version: version.parse().unwrap(),
        config: "c0".into(),
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let mut effects = Vec::new();
        let trouble = [1, 4, 10][dice.roll(3) as usize];
        Self {
            machine: Machine::start(
                Moment::from_millis(0),
                settings(),
                target("1.0.0"),
                &mut effects,
            ),
            board: Switchboard::new(16, Duration::from_secs(30)),
            dice,
            now: 0,
            calm: false,
            trouble,
            workers: BTreeMap::new(),
            sockets: Vec::new(),
            effects,
            counted: Counted::default(),
        }
    }

    fn moment(&self) -> Moment {
        Moment::from_millis(self.now)
    }

    fn happened(&mut self, generation: Generation, event: Event) {
        let now = self.moment();
        self.machine
            .handle(now, generation, event, &mut self.effects);
    }

    fn end(&mut self, socket: u64, how: End) {
        let of = &mut self.sockets[socket as usize];
        assert_eq!(of.end, None, "socket {socket} ends twice");
        of.end = Some(how);
        *self.counted.ends.entry(how).or_default() += 1;
    }

    // The supervisor's shell, as `act` and `handoff` are it.

    fn carry_out(&mut self) {
        while !self.effects.is_empty() {
            for effect in std::mem::take(&mut self.effects) {
                match effect {
                    Effect::Spawn { generation, target } => self.spawn(generation, &target),
                    Effect::Activate(generation) => {
                        if self.machine.taking_over().is_some() {
                            self.counted.take_overs += 1;
                        }
                        self.say(generation, Down::Activate);
                    }
                    Effect::Standby(generation) => self.say(generation, Down::Standby),
                    Effect::Drain(generation) => {
                        let close = self.machine.is_stopping();
                        self.say(generation, Down::Drain { close });
                    }
                    Effect::Shutdown(generation) => self.say(generation, Down::Shutdown),
                    Effect::Kill(generation) => self.die(generation),
                    Effect::Step { .. }
                    | Effect::Conclude(_)
                    | Effect::Recovered { .. }
                    | Effect::Lost { .. } => {}
                }
            }
        }
    }

    fn spawn(&mut self, generation: Generation, target: &Target) {
        let mut worker = Worker {
            version: target.version.to_string(),
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            stance: Stance::Waits,
            held: BTreeMap::new(),
            owned: Vec::new(),
            unanswered: 0,
            said_drained: false,
            frozen: false,
            deaf: false,
            dead: false,
            end_heard: None,
            told_deaf: false,
        };
        worker.says(Up::Ready);
        self.workers.insert(generation, worker);
        self.board.open(generation, CREDITS, Duration::from_secs(5));
        self.happened(generation, Event::Spawned { pid: 7 });
    }

    fn say(&mut self, generation: Generation, down: Down) {
        if let Some(worker) = self.workers.get_mut(&generation)
            && worker.end_heard.is_none()
            && !worker.deaf
        {
            worker.inbox.push_back(down);
        }
    }

    fn hear(&mut self, generation: Generation) -> bool {
        let Some(worker) = self.workers.get_mut(&generation) else {
            return false;
        };
        let Some(up) = worker.outbox.pop_front() else {
            if (worker.dead || worker.deaf) && worker.end_heard.is_none() {
                worker.end_heard = Some(self.now);
            }
            return false;
        };
        let (gone, version) = (worker.dead, worker.version.clone());
        let now = self.moment();
        match up {
            Up::Ready => {
                let protocol = staging::protocol::CHANNEL_PROTOCOL;
                self.happened(generation, Event::Ready { version, protocol });
            }
            Up::Activated => self.happened(generation, Event::Activated),
            Up::Drained => self.happened(generation, Event::Drained),
            Up::Accepted(id) => {
                if self.board.accepted(now, generation, id) {
                    self.say(generation, Down::Commit(id));
                }
            }
            Up::Refused(id) => {
                if let Some(socket) = self.board.refused(now, generation, id) {
                    self.end(socket, End::Rejected);
                }
            }
            Up::Owned(id, socket) => {
                let copy = self.board.owned(generation, id);
                assert!(copy.is_none_or(|copy| copy == socket));
                // Our copy was the last one, unless a later message brings it back.
                let comes_back = self.is_coming_back(socket);
                if copy.is_some() && gone && !comes_back {
                    self.end(socket, End::Lost);
                }
            }
            Up::Returned(socket) if self.machine.is_stopping() => self.end(socket, End::Idle),
            Up::Returned(socket) => {
                let of = &mut self.sockets[socket as usize];
                of.came = of.progress;
                self.counted.returned += 1;
                self.board.returned(now, generation, socket);
            }
        }
        true
    }

    fn is_coming_back(&self, socket: u64) -> bool {
        self.workers.values().any(|worker| {
            worker
                .outbox
                .iter()
                .any(|up| matches!(up, Up::Returned(returned) if *returned == socket))
        })
    }

    fn hear_rest(&mut self, generation: Generation) {
        while self.hear(generation) {}
    }

    fn settle_lost(&mut self, generation: Generation) {
        let before = self.board.counters().failed_transfers;
        let sockets = &self.sockets;
        let closed = self.board.lost(generation, |socket| {
            let of = &sockets[*socket as usize];
            match (of.unix, of.progress == of.came) {
                (true, _) => Touched::Unknown,
                (false, true) => Touched::No,
                (false, false) => Touched::Yes,
            }
        });
        for socket in closed {
            self.end(socket, End::Closed);
        }
        self.counted.again += self.board.counters().failed_transfers - before;
    }

    fn bury(&mut self, generation: Generation) {
        self.hear_rest(generation);
        self.settle_lost(generation);
        self.board.close(generation);
        self.workers.remove(&generation);
        let how = "signal 9".into();
        self.happened(generation, Event::Exited { how });
    }

    /// What every turn of the main loop ends with.
    fn turn(&mut self) {
        let now = self.moment();
        self.board.tick(now);
        let generations: Vec<Generation> = self.workers.keys().copied().collect();
        for generation in &generations {
            let worker = self.workers.get_mut(generation).unwrap();
            if worker
                .end_heard
                .is_some_and(|at| at + DEATH_FOLLOWS <= self.now)
                && !worker.told_deaf
            {
                worker.told_deaf = true;
                self.settle_lost(*generation);
                self.happened(*generation, Event::ChannelClosed);
            }
            if self.board.is_overdue(now, *generation) {
                self.hear_rest(*generation);
                if self.board.is_overdue(now, *generation) {
                    for id in self.board.stall(*generation) {
                        self.say(*generation, Down::Cancel(id));
                    }
                    self.happened(*generation, Event::TransferUnanswered);
                }
            }
        }
        if self.machine.next_deadline().is_some_and(|at| at <= now) {
            for generation in &generations {
                self.hear_rest(*generation);
            }
        }
        self.machine.tick(now, &mut self.effects);
        self.carry_out();
        self.offer(now);
        for generation in &generations {
            let count = self.board.credit(*generation);
            if count > 0 {
                self.say(*generation, Down::Credit(count));
            }
        }
        let over = match self.machine.is_stopping() {
            true => self.board.turn_all_away(),
            false if self.machine.active().is_none() => self.board.expired(now),
            false => Vec::new(),
        };
        for socket in over {
            self.end(socket, End::Rejected);
        }
        self.carry_out();
    }

    fn offer(&mut self, now: Moment) {
        let Some(generation) = self.machine.active().map(|active| active.generation) else {
            return;
        };
        while let Some((id, socket)) = self.board.next_offer(generation) {
            let socket = *socket;
            let Some(worker) = self.workers.get_mut(&generation) else {
                return;
            };
            // A channel that is full, or at its end.
            if worker.end_heard.is_some() || worker.deaf || self.dice.percent(10) {
                return;
            }
            worker.inbox.push_back(Down::Socket(id, socket));
            self.board.offered(now, generation);
        }
    }

    // The workers.

    fn die(&mut self, generation: Generation) {
        let Some(worker) = self.workers.get_mut(&generation) else {
            return;
        };
        if std::mem::replace(&mut worker.dead, true) {
            return;
        }
        worker.inbox.clear();
        worker.held.clear();
        let owned = std::mem::take(&mut worker.owned);
        for socket in owned {
            // The supervisor has its copy until it hears `socket-owned`.
            if !self.in_board(socket) {
                self.end(socket, End::Lost);
            }
        }
    }

    fn go_deaf(&mut self, generation: Generation) {
        if let Some(worker) = self.workers.get_mut(&generation) {
            worker.deaf = true;
            worker.inbox.clear();
            worker.held.clear();
        }
    }

    /// One thing that a worker does by itself.
    fn act(&mut self, generation: Generation) {
        let obeys = self.dice.percent(60) || self.calm;
        let Some(worker) = self.workers.get_mut(&generation) else {
            return;
        };
        if worker.dead || worker.frozen {
            return;
        }
        if obeys && let Some(down) = worker.inbox.pop_front() {
            return self.obey(generation, down);
        }
        let leaves = matches!(worker.stance, Stance::Drains { .. }) || worker.deaf;
        if leaves && worker.owned.is_empty() && worker.held.is_empty() && worker.inbox.is_empty() {
            if worker.said_drained || worker.deaf {
                self.die(generation);
            } else {
                worker.said_drained = worker.says(Up::Drained);
            }
            return;
        }
        if !worker.owned.is_empty() {
            let nth = self.dice.roll(worker.owned.len() as u64) as usize;
            let socket = worker.owned[nth];
            self.serve(generation, nth, socket);
        }
    }

    fn obey(&mut self, generation: Generation, down: Down) {
        let refuses = !self.calm && self.dice.percent(5);
        let Some(worker) = self.workers.get_mut(&generation) else {
            return;
        };
        match down {
            Down::Activate => {
                if !matches!(worker.stance, Stance::Drains { .. }) {
                    worker.stance = Stance::Serves;
                    worker.says(Up::Activated);
                }
            }
            Down::Standby => worker.stance = Stance::StandsBy,
            Down::Drain { close } => worker.stance = Stance::Drains { close },
            Down::Credit(count) => worker.unanswered = worker.unanswered.saturating_sub(count),
            Down::Socket(id, socket) => {
                if worker.stance == Stance::Serves && !refuses {
                    worker.held.insert(id, socket);
                    worker.says(Up::Accepted(id));
                } else {
                    worker.says(Up::Refused(id));
                }
            }
            Down::Commit(id) => {
                if let Some(socket) = worker.held.remove(&id)
                    && worker.says(Up::Owned(id, socket))
                {
                    worker.owned.push(socket);
                }
            }
            Down::Cancel(id) => drop(worker.held.remove(&id)),
            Down::Shutdown => self.die(generation),
        }
    }

    /// One step of one connection: a request is read, or answered, or the connection goes back.
    fn serve(&mut self, generation: Generation, nth: usize, socket: u64) {
        let gives_back = self.dice.percent(50);
        let worker = self.workers.get_mut(&generation).unwrap();
        let of = &mut self.sockets[socket as usize];
        assert_eq!(of.end, None, "socket {socket} is served after its end");
        if of.reader == Some(generation) {
            of.reader = None;
            of.answers += 1;
            of.progress += 1;
            self.counted.answers += 1;
            assert!(of.answers <= of.requests, "socket {socket}: two answers");
            return;
        }
        assert_eq!(
            of.reader, None,
            "socket {socket}: two workers read a request"
        );
        let returns = matches!(
            worker.stance,
            Stance::StandsBy | Stance::Drains { close: false }
        );
        let closes = worker.deaf || worker.stance == Stance::Drains { close: true };
        let waits = of.requests > of.answers;
        if returns && !worker.deaf && worker.unanswered < RETURNS && (gives_back || !waits) {
            worker.unanswered += 1;
            worker.owned.swap_remove(nth);
            worker.says(Up::Returned(socket));
        } else if waits {
            of.reader = Some(generation);
            of.progress += 1;
        } else if closes && !self.in_board(socket) {
            // Not before the supervisor's copy is closed, too.
            self.workers
                .get_mut(&generation)
                .unwrap()
                .owned
                .swap_remove(nth);
            self.end(socket, End::Idle);
        }
    }

    // What happens.

    fn arrives(&mut self) {
        // While somebody serves a full queue is left to the kernel's backlog.
        let no_room = self.machine.active().is_some() && self.board.room() == 0;
        if self.machine.is_stopping() || no_room {
            return;
        }
        let socket = self.sockets.len() as u64;
        self.counted.sockets += 1;
        self.sockets.push(Socket {
            unix: self.dice.percent(20),
            requests: 1,
            ..Socket::default()
        });
        let now = self.moment();
        if self.board.arrived(now, socket).is_err() {
            self.end(socket, End::Rejected);
        }
    }

    /// A client that has its answer asks for more, wherever its connection is just now.
    fn asks_again(&mut self) {
        if self.sockets.is_empty() {
            return;
        }
        let nth = self.dice.roll(self.sockets.len() as u64) as usize;
        let of = &mut self.sockets[nth];
        if of.end.is_none() && of.requests == of.answers {
            of.requests += 1;
        }
    }

    fn somebody(&mut self) -> Option<Generation> {
        let count = self.workers.len() as u64;
        let nth = self.dice.roll(count.max(1)) as usize;
        self.workers.keys().nth(nth).copied()
    }

    fn happens(&mut self) {
        let Some(somebody) = self.somebody() else {
            self.now += self.dice.roll(500);
            return self.turn();
        };
        if self.dice.percent(self.trouble) {
            match self.dice.roll(6) {
                0 | 1 => self.die(somebody),
                2 => self.go_deaf(somebody),
                3 => self.happened(somebody, Event::PingUnanswered),
                _ => {
                    let worker = self.workers.get_mut(&somebody).unwrap();
                    worker.frozen = !worker.frozen;
                }
            }
            return self.carry_out();
        }
        match self.dice.roll(32) {
            0..=2 => self.arrives(),
            3 | 4 => self.asks_again(),
            5 => {
                let by = [By::Person, By::Job][self.dice.roll(2) as usize];
                let target = target(["1.0.0", "1.1.0"][self.dice.roll(2) as usize]);
                let now = self.moment();
                let request = Request { target, by };
                self.machine.replace(now, request, &mut self.effects);
            }
            6 if self.workers[&somebody].dead => self.bury(somebody),
            7 => self.now += self.dice.roll(2_000),
            8..=13 => self.turn(),
            14..=21 => drop(self.hear(somebody)),
            _ => self.act(somebody),
        }
        self.carry_out();
    }

    fn in_board(&self, socket: u64) -> bool {
        let mut found = false;
        self.board.carry(|held| found |= *held == socket);
        found
    }

    /// What holds between any two steps.
    fn judge(&self) {
        let mut places = vec![[0_u32; 3]; self.sockets.len()];
        self.board.carry(|socket| places[*socket as usize][0] += 1);
        for worker in self.workers.values() {
            for socket in &worker.owned {
                places[*socket as usize][1] += 1;
            }
            for up in &worker.outbox {
                if let Up::Returned(socket) = up {
                    places[*socket as usize][2] += 1;
                }
            }
        }
        for (socket, [board, owned, back]) in places.into_iter().enumerate() {
            let of = &self.sockets[socket];
            if of.end.is_some() {
                assert_eq!([board, owned, back], [0; 3], "socket {socket} has ended");
                continue;
            }
            assert!(board <= 1, "socket {socket} is twice on the switchboard");
            assert!(owned + back <= 1, "socket {socket} has two owners");
            assert!(board + owned + back > 0, "socket {socket} is nowhere");
            if board == 1 && owned + back == 1 {
                // Only while the supervisor has not heard that it is owned.
                let unheard = self.workers.values().any(|worker| {
                    let mut outbox = worker.outbox.iter();
                    outbox.any(|up| matches!(up, Up::Owned(_, s) if *s == socket as u64))
                });
                assert!(unheard, "socket {socket} is in two places");
            }
        }
        let counters = self.board.counters();
        let ended = |how| self.counted.ends.get(&how).copied().unwrap_or(0);
        assert_eq!(counters.rejected_sockets, ended(End::Rejected));
        assert_eq!(counters.closed_sockets, ended(End::Closed));
        assert_eq!(counters.returned_sockets, self.counted.returned);
    }

    /// Nothing goes wrong from now on: every request that still waits is answered.
    fn calm_down(&mut self, mut done: impl FnMut(&Self) -> bool) {
        self.calm = true;
        for _ in 0..2_000 {
            self.now += 100;
            self.turn();
            for generation in self.workers.keys().copied().collect::<Vec<_>>() {
                self.workers.get_mut(&generation).unwrap().frozen = false;
                for _ in 0..40 {
                    self.act(generation);
                }
                self.hear_rest(generation);
                if self.workers[&generation].dead {
                    self.bury(generation);
                }
                self.carry_out();
            }
            self.judge();
            if done(self) {
                return;
            }
        }
        panic!("it does not come to rest: {:?}", self.machine);
    }
}

fn simulate(seed: u64) -> Counted {
    let mut world = World::new(seed);
    world.carry_out();
    for _ in 0..STEPS {
        world.happens();
        world.judge();
        world.counted.steps += 1;
    }
    world.calm_down(|world| {
        let mut open = world.sockets.iter().filter(|of| of.end.is_none());
        world.machine.is_settled() && open.all(|of| of.answers == of.requests)
    });
    let now = world.moment();
    world
        .machine
        .stop(now, Duration::from_secs(90), &mut world.effects);
    world.calm_down(|world| world.machine.is_finished());
    for (number, of) in world.sockets.iter().enumerate() {
        assert!(of.end.is_some(), "socket {number} is left: {of:?}");
        // Whoever was not refused, and whose worker lived, has every answer once.
        if of.end == Some(End::Idle) {
            assert_eq!(of.answers, of.requests, "socket {number}: {of:?}");
        }
    }
    world.counted
}

#[test]
fn random_sockets_are_in_one_place_and_answered_once() {
    if let Ok(seed) = std::env::var("ROLLPROXY_SEED") {
        println!("{:?}", simulate(seed.parse().unwrap()));
        return;
    }
    let mut all = Counted::default();
    for seed in 1..=SCHEDULES {
        let Ok(one) = std::panic::catch_unwind(|| simulate(seed)) else {
            panic!("replay it with ROLLPROXY_SEED={seed} cargo test -p rollproxy random_sockets");
        };
        all.steps += one.steps;
        all.sockets += one.sockets;
        all.answers += one.answers;
        all.returned += one.returned;
        all.again += one.again;
        all.take_overs += one.take_overs;
        for (how, count) in one.ends {
            *all.ends.entry(how).or_default() += count;
        }
    }
    // Schedules that never come to the interesting places prove nothing.
    println!("{all:?}");
    assert!(all.steps >= 200_000);
    assert!(all.answers > 1_000 && all.returned > 500 && all.again > 100 && all.take_overs > 50);
    assert_eq!(all.ends.len(), 4, "{all:?}");
    assert_eq!(all.ends.values().sum::<u64>(), all.sockets);
}
