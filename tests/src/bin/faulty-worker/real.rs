//! A real worker that ends when a test says so.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rollproxy::channel::{Addressee, Blame, ToSupervisor, encode};
use rollproxy::descriptors::WorkerDescriptors;

use crate::CRASHED;
use crate::faults::Faults;

/// The real worker in this process, and beside it whatever is to end it.
pub fn real_worker(faults: &Faults, descriptors: WorkerDescriptors, generation: u64) -> ExitCode {
    let Ok(home) = staging::home::Home::from_env(&|name| std::env::var_os(name)) else {
        return ExitCode::from(2);
    };
    let us = Addressee {
        generation,
        pid: std::process::id(),
    };
    type End = fn(&OwnedFd, Addressee);
    let ends: [(&str, End); 3] = [
        ("exit-when", |_, _| std::process::exit(CRASHED.into())),
        ("fatal-when", |channel, us| {
            let fatal = ToSupervisor::Fatal {
                reason: "this worker is faulty on purpose".into(),
                blame: Blame::Package,
            };
            // If it cannot be said, the test does not hear it.
            let _ = rustix::io::write(channel, &encode(&fatal, us));
            std::process::exit(1);
        }),
        ("deaf-when", |channel, _| {
            let _ = rustix::net::shutdown(channel, rustix::net::Shutdown::Both);
        }),
    ];
    for (word, end) in ends {
        let (Some(file), Ok(channel)) = (faults.value(word), descriptors.channel.try_clone())
        else {
            continue;
        };
        let file = Path::new(file).to_owned();
        std::thread::spawn(move || {
            while !file.exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            end(&channel, us);
        });
    }
    match rollproxy::worker::run_on(descriptors, generation, home) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
