//! Upstream and load as processes: this program again, with a role.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::load::{Outcome, Plan, Said};

/// A child that ends when its standard input does.
pub struct Role {
    child: Child,
    input: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
}

impl Role {
    pub fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: child.stdin.take(),
            lines: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The upstream.
pub struct Upstream {
    role: Role,
    pub address: SocketAddrV4,
}

impl Upstream {
    pub fn start() -> Self {
        let mut role = Role::start(&["upstream"]);
        let port = role.line().trim().parse().expect("the upstream's port");
        Self {
            role,
            address: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port),
        }
    }

    pub fn pid(&self) -> i32 {
        self.role.pid()
    }
}

/// A load under way.
pub struct Load {
    role: Role,
}

impl Load {
    pub fn start(plan: &Plan) -> Self {
        let plan = serde_json::to_string(plan).unwrap();
        Self {
            role: Role::start(&["load", &plan]),
        }
    }

    pub fn pid(&self) -> i32 {
        self.role.pid()
    }

    /// What it says next; nothing once it has ended.
    pub fn hear(&mut self) -> Option<Said> {
        serde_json::from_str(&self.role.line()).ok()
    }

    /// Tells it to begin, where it waits for that.
    pub fn begin(&mut self) {
        let input = self.role.input.as_mut().unwrap();
        // If it has ended, it will not be heard either.
        let _ = input.write_all(b"\n");
    }

    /// Tells it to let go of what it holds; what it saw.
    pub fn finish(mut self) -> Outcome {
        self.role.input = None;
        match self.hear() {
            Some(Said::Result(outcome)) => outcome,
            other => Outcome {
                errors: 1,
                first_error: Some(format!("the load broke off: {other:?}")),
                ..Outcome::default()
            },
        }
    }
}
