//! Clients that ask again once they have their answer.

use super::{Client, Clock, Faults, Outcome, Plan, Progress, Quantiles, Said, nanos, say};
use crate::answer::Fault;
use crate::reactor::{INPUT, Reactor};
use crate::wire::{self, Request, Want};

struct Load<'a> {
    plan: &'a Plan,
    reactor: Reactor,
    request: Request,
    again: bool,
    clients: Vec<Option<Client>>,
    asked: u32,
}

pub(super) fn run(plan: &Plan, clients: usize, want: Want) -> Outcome {
    let mut load = Load {
        plan,
        reactor: Reactor::new(),
        request: Request::new(&plan.address.to_string(), want),
        again: want == Want::Answer,
        clients: Vec::new(),
        asked: 0,
    };
    let mut faults = Faults::default();
    for key in 0..clients {
        load.clients.push(None);
        if let Err(fault) = load.ask_on_a_new_connection(key) {
            faults.note(fault);
        }
    }
    let clock = Clock::new(plan);
    let (mut all, mut times) = (0_u64, Vec::with_capacity(1 << 20));
    let mut begun = None;
    let mut buffer = vec![0; 64 * 1024];
    let mut tokens = Vec::new();
    let ended = loop {
        load.reactor.wait(&mut tokens);
        for token in &tokens {
            let Ok(key) = usize::try_from(*token) else {
                continue;
            };
            if *token == INPUT {
                std::process::exit(1);
            }
            match load.hear(key, &mut buffer) {
                Ok(Some(took)) => {
                    all += 1;
                    if begun.is_some() {
                        times.push(took);
                    }
                }
                Ok(None) => {}
                Err(fault) => {
                    faults.note(fault);
                    load.clients[key] = None;
                    // One client less, and an error that fails the whole; no endless attempts.
                }
            }
        }
        let now = wire::now();
        if begun.is_none() && now >= clock.begin {
            begun = Some(now);
            say(&Said::Begin);
        }
        if now >= clock.end {
            break now;
        }
    };
    say(&Said::End { all });
    let stuck = load.clients.iter().flatten();
    let stuck = stuck.filter(|client| client.since + nanos(plan.window) < ended);
    for _ in stuck {
        faults.note("a request that was not answered for a whole window".into());
    }
    Outcome {
        seconds: (ended - begun.unwrap_or(clock.begin)) as f64 / 1e9,
        counted: times.len() as u64,
        latency: Quantiles::of(times),
        errors: faults.many,
        first_error: faults.first,
        ..Outcome::default()
    }
}

impl Load<'_> {
    fn ask_on_a_new_connection(&mut self, key: usize) -> Result<(), Fault> {
        let since = wire::now();
        // The old one's descriptor is closed first: its number, and its place in epoll, are free again.
        self.clients[key] = None;
        let mut client = Client::connect(self.plan.address)?;
        self.reactor.add(&client.socket, key as u64);
        self.asked = self.asked.wrapping_add(1);
        client.ask(&mut self.request, self.asked, since)?;
        self.clients[key] = Some(client);
        Ok(())
    }

    /// How long the answer took, once it is here; the next request is on its way then.
    fn hear(&mut self, key: usize, buffer: &mut [u8]) -> Result<Option<u64>, Fault> {
        let Some(client) = &mut self.clients[key] else {
            return Ok(None);
        };
        match client.hear(buffer)? {
            Progress::Waiting => Ok(None),
            Progress::Answered if self.again => {
                let now = wire::now();
                let took = now - client.since;
                self.asked = self.asked.wrapping_add(1);
                client.ask(&mut self.request, self.asked, now)?;
                Ok(Some(took))
            }
            // The server is to close the connection, as it was asked to.
            Progress::Answered => Ok(None),
            Progress::Closed if self.again => Err("a kept connection was closed".into()),
            Progress::Closed => {
                let took = wire::now() - client.since;
                self.ask_on_a_new_connection(key)?;
                Ok(Some(took))
            }
        }
    }
}
