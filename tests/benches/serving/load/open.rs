//! Requests at a rate, due at times that were drawn beforehand; the time counts from when a request was due, so that a
//! slow answer cannot hide by holding back the next request.

use std::collections::VecDeque;

use super::{Client, Clock, Faults, Outcome, Plan, Progress, Quantiles, Said, say};
use crate::answer::Fault;
use crate::reactor::{INPUT, Reactor, TIMER};
use crate::wire::{self, Request, Want};

/// How many connections there are at most; what is due beyond waits for one.
const CONNECTIONS: usize = 256;

struct Load<'a> {
    plan: &'a Plan,
    reactor: Reactor,
    request: Request,
    clients: Vec<Option<Client>>,
    idle: Vec<usize>,
    waiting: VecDeque<u64>,
    asked: u32,
}

pub(super) fn run(plan: &Plan, rate: u32) -> Outcome {
    let mut load = Load {
        plan,
        reactor: Reactor::new(),
        request: Request::new(&plan.address.to_string(), Want::Answer),
        clients: Vec::new(),
        idle: Vec::new(),
        waiting: VecDeque::new(),
        asked: 0,
    };
    let clock = Clock::new(plan);
    let mut arrivals = Arrivals::new(wire::now(), rate);
    let (mut all, mut times) = (0_u64, Vec::with_capacity(1 << 18));
    let (mut counted_due, mut begun) = (0_u64, false);
    let mut faults = Faults::default();
    let mut buffer = vec![0; 64 * 1024];
    let mut tokens = Vec::new();
    let mut ended = false;
    load.reactor.arm(arrivals.next);
    loop {
        load.reactor.wait(&mut tokens);
        for token in &tokens {
            match *token {
                // Whoever waits for the outcome has no more to say.
                INPUT if ended => {}
                INPUT => std::process::exit(1),
                TIMER => {}
                token => match load.hear(usize::try_from(token).unwrap(), &mut buffer) {
                    Ok(Some(due)) => {
                        all += 1;
                        if (clock.begin..clock.end).contains(&due) {
                            times.push(wire::now() - due);
                        }
                    }
                    Ok(None) => {}
                    Err(fault) => faults.note(fault),
                },
            }
        }
        let now = wire::now();
        if !begun && now >= clock.begin {
            begun = true;
            say(&Said::Begin);
        }
        if !ended && now >= clock.end {
            ended = true;
            say(&Said::End { all });
        }
        if arrivals.next < clock.end {
            while arrivals.next <= now.min(clock.end) {
                counted_due += u64::from((clock.begin..clock.end).contains(&arrivals.next));
                load.waiting.push_back(arrivals.next);
                arrivals.draw();
            }
            load.reactor.arm(arrivals.next);
        }
        if let Err(fault) = load.ask_what_is_due() {
            faults.note(fault);
        }
        let all_here = times.len() as u64 + faults.many >= counted_due;
        if ended && (all_here || now >= clock.late) {
            break;
        }
    }
    for _ in times.len() as u64 + faults.many..counted_due {
        faults.note("a request that was never answered".into());
    }
    Outcome {
        seconds: plan.window.as_secs_f64(),
        counted: times.len() as u64,
        latency: Quantiles::of(times),
        errors: faults.many,
        first_error: faults.first,
        ..Outcome::default()
    }
}

impl Load<'_> {
    fn ask_what_is_due(&mut self) -> Result<(), Fault> {
        while let Some(due) = self.waiting.front().copied() {
            let key = match self.idle.pop() {
                Some(key) => key,
                None if self.clients.len() < CONNECTIONS => {
                    let client = Client::connect(self.plan.address)?;
                    let key = self.clients.len();
                    self.reactor.add(&client.socket, key as u64);
                    self.clients.push(Some(client));
                    key
                }
                None => return Ok(()),
            };
            self.waiting.pop_front();
            self.asked += 1;
            if let Some(client) = &mut self.clients[key] {
                client.ask(&mut self.request, self.asked, due)?;
            }
        }
        Ok(())
    }

    /// When the request was due whose answer is here.
    fn hear(&mut self, key: usize, buffer: &mut [u8]) -> Result<Option<u64>, Fault> {
        let Some(client) = &mut self.clients[key] else {
            return Ok(None);
        };
        match client.hear(buffer) {
            Ok(Progress::Waiting) => Ok(None),
            Ok(Progress::Answered) => {
                self.idle.push(key);
                Ok(Some(client.since))
            }
            Ok(Progress::Closed) => {
                self.clients[key] = None;
                Err("a kept connection was closed".into())
            }
            Err(fault) => {
                self.clients[key] = None;
                Err(fault)
            }
        }
    }
}

/// Times of arrival: independent of each other (exponential pauses), and the same in every run.
struct Arrivals {
    next: u64,
    mean: f64,
    state: u64,
}

impl Arrivals {
    fn new(start: u64, rate: u32) -> Self {
        Self {
            next: start,
            mean: 1e9 / f64::from(rate),
            state: 0x9e37_79b9_7f4a_7c15,
        }
    }

    fn draw(&mut self) {
        // xorshift64*
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let random = self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        let share = (random as f64 + 1.0) / (1_u64 << 53) as f64;
        self.next += (-share.ln() * self.mean) as u64;
    }
}
