//! What benches ask the kernel: which processes belong together, what they used and hold, and whether others disturb.

use std::fs::read_to_string;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Work of others that disturbs nobody, in percent of the machine.
pub const CALM: f64 = 10.0;

/// `root`, and after it all that descend from it.
pub fn tree(root: i32) -> Vec<i32> {
    let parents: Vec<(i32, i32)> = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| Some((pid, stat(pid)?.get(1)?.parse().ok()?)))
        .collect();
    let mut found = vec![root];
    let mut looked_at = 0;
    while let Some(of) = found.get(looked_at).copied() {
        let children = parents.iter().filter(|(_, parent)| *parent == of);
        found.extend(children.map(|(pid, _)| *pid));
        looked_at += 1;
    }
    found
}

/// Nanoseconds of processor time, user and system, of all threads that still are.
pub fn processor_time(pid: i32) -> u64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    tasks
        .filter_map(|task| read_to_string(task.ok()?.path().join("schedstat")).ok())
        .filter_map(|text| text.split(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// Nanoseconds that all cores together were busy, for whomever; in steps of 10 ms.
pub fn machine_busy() -> u64 {
    let text = read_to_string("/proc/stat").unwrap();
    let line = text.lines().next().unwrap();
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal: stolen time is somebody else's, but ours is missing it.
    [0, 1, 2, 5, 6, 7].iter().map(|at| ticks[*at]).sum::<u64>() * 10_000_000
}

/// Waits until half a second in which the machine is all but idle; not beyond the deadline.
pub fn wait_for_calm(cores: usize, deadline: Instant) {
    const LOOK: Duration = Duration::from_millis(500);
    while Instant::now() < deadline {
        let before = machine_busy();
        std::thread::sleep(LOOK);
        let busy = Duration::from_nanos(machine_busy() - before);
        if busy.as_secs_f64() < LOOK.as_secs_f64() * cores as f64 * CALM / 100.0 {
            return;
        }
    }
}

/// KiB that a process holds: its own pages, and its share of those that it has in common with others.
pub fn memory_kib(pid: i32) -> u64 {
    let text = read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// The fields behind the name: state, parent, …
fn stat(pid: i32) -> Option<Vec<String>> {
    let text = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    Some(fields.split(' ').map(str::to_owned).collect())
}

/// Where a program is: ordinary users have no `sbin` in their path.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}
