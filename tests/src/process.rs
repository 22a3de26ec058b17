//! Other processes, as `/proc` shows them.

use std::net::SocketAddr;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::until;

/// Whether a process runs: a zombie does not.
pub fn is_alive(pid: i32) -> bool {
    state(pid).is_some_and(|state| state != 'Z' && state != 'X')
}

/// Whether a process is stopped by SIGSTOP.
pub fn is_stopped(pid: i32) -> bool {
    state(pid) == Some('T')
}

/// Sends a signal to a process that is there.
#[track_caller]
pub fn send(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}

/// Whether a process holds `signal` back to read it as a value: before it does, the signal would end it.
pub fn blocks(pid: i32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigBlk:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    mask & (1 << (signal as i32 - 1)) != 0
}

/// Seconds of processor time that a process has used.
pub fn processor_seconds(pid: i32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<i64> = after_name(&stat)
        .split(' ')
        .filter_map(|field| field.parse().ok())
        .collect();
    // After the state come numbers only, some below zero: utime and stime are the 11th and 12th. A
    // tick is 10 ms everywhere on Linux.
    (fields[10] + fields[11]) as f64 / 100.0
}

/// The resident memory of a process, in bytes.
pub fn resident(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib * 1024
}

/// The open descriptors of a process: number and what it is.
pub fn descriptors(pid: i32) -> Vec<(i32, String)> {
    let mut found: Vec<(i32, String)> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let number = entry.file_name().to_str()?.parse().ok()?;
            let target = std::fs::read_link(entry.path()).ok()?;
            Some((number, target.to_string_lossy().into_owned()))
        })
        .collect();
    found.sort();
    found
}

/// How many connections wait in the kernel for whoever listens on this port of 127.0.0.1.
pub fn backlog(address: SocketAddr) -> usize {
    let port = format!(":{:04X}", address.port());
    let listening = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // 0A is LISTEN; then what waits stands behind the colon of the next field.
        let waiting = fields.get(4)?.split_once(':')?.1;
        (fields[1].ends_with(&port) && fields[3] == "0A")
            .then(|| usize::from_str_radix(waiting, 16).unwrap())
    };
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    sockets.lines().filter_map(listening).sum()
}

/// The open descriptors of a process at rest: the same twenty times in a row, so that none belongs
/// to a connection that just ends.
pub async fn descriptors_at_rest(pid: i32) -> Vec<(i32, String)> {
    let (mut open, mut looks) = (Vec::new(), 0);
    until("its descriptors are at rest", || {
        let now = descriptors(pid);
        looks = if now == open { looks + 1 } else { 0 };
        open = now;
        looks == 20
    })
    .await;
    open
}

fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    after_name(&stat).chars().next()
}

/// What stands behind the name, which may itself hold spaces and brackets.
fn after_name(stat: &str) -> &str {
    stat.rsplit_once(") ").map_or("", |(_, rest)| rest)
}
