//! `rollproxy-launcher --version`, from spawn to reaped, beside a program that only exits and a default Rust hello; then
//! what starting a package's program through the launcher costs over starting it directly.
//!
//! `cargo bench -p rollproxy-tests --bench launcher`. One start of each in turn, 1,000 times; medians and ratios.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use harness::{TestHome, binaries};

const STARTS: usize = 1_000;

/// Exits by a system call, without libc and without a single instruction besides.
const ONLY_EXITS: &str = r#"
#![no_std]
#![no_main]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(".globl _start", "_start:", "mov edi, 0", "mov eax, 60", "syscall");
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(".globl _start", "_start:", "mov x0, 0", "mov x8, 93", "svc 0");
"#;

const HELLO: &str = r#"fn main() { println!("hello"); }"#;

struct Program {
    name: &'static str,
    path: PathBuf,
    arguments: &'static [&'static str],
    times: Vec<Duration>,
}

fn main() {
    let home = TestHome::new();
    home.install("1.0.0");
    home.select("1.0.0");
    let mut programs = vec![
        program(
            "only exits",
            compile(home.folder(), "exits", ONLY_EXITS, true),
            &[],
        ),
        program(
            "Rust hello",
            compile(home.folder(), "hello", HELLO, false),
            &[],
        ),
        program(
            "launcher",
            binaries().path("rollproxy-launcher"),
            &["--version"],
        ),
    ];
    let own = staging::TARGET;
    match build_launcher(home.folder(), own, Some("-Ctarget-feature=+crt-static")) {
        Ok(path) => programs.push(program("launcher, static glibc", path, &["--version"])),
        Err(why) => println!("launcher, static glibc: not measured ({why})"),
    }
    let musl = own.replace("-gnu", "-musl");
    match build_launcher(home.folder(), &musl, None) {
        Ok(path) => programs.push(program("launcher, static musl", path, &["--version"])),
        Err(why) => println!("launcher, static musl: not measured ({why})"),
    }

    let mut through = through(&home, &programs);
    run(&mut programs, &home);
    let base = median(&mut programs[0].times.clone());
    let hello = median(&mut programs[1].times.clone());
    println!(
        "{:<24} {:>10} {:>14} {:>14}",
        "", "median", "x only exits", "x Rust hello"
    );
    for program in &mut programs {
        let median = median(&mut program.times);
        println!(
            "{:<24} {:>7.0} µs {:>14.2} {:>14.2}",
            program.name,
            median.as_secs_f64() * 1e6,
            median.as_secs_f64() / base.as_secs_f64(),
            median.as_secs_f64() / hello.as_secs_f64()
        );
    }

    run(&mut through, &home);
    let direct = median(&mut through[0].times.clone());
    println!(
        "\n{:<24} {:>10} {:>14}",
        "a program's --help", "median", "added"
    );
    for program in &mut through {
        let median = median(&mut program.times);
        println!(
            "{:<24} {:>7.0} µs {:>11.0} µs",
            program.name,
            median.as_secs_f64() * 1e6,
            (median.as_secs_f64() - direct.as_secs_f64()) * 1e6
        );
    }
}

/// A program of the package, directly and through each launcher that was built.
fn through(home: &TestHome, launchers: &[Program]) -> Vec<Program> {
    let package = home.home.package(&"1.0.0".parse().unwrap());
    let mut programs = vec![program(
        "directly",
        package.join("bin/rollproxy-updater"),
        &["--help"],
    )];
    for launcher in launchers.iter().skip(2) {
        let folder = home.folder().join(launcher.name.replace([' ', ','], "-"));
        std::fs::create_dir(&folder).unwrap();
        let name = folder.join("rollproxy-updater");
        std::os::unix::fs::symlink(&launcher.path, &name).unwrap();
        programs.push(program(launcher.name, name, &["--help"]));
    }
    programs
}

/// One start of each in turn, so that whatever else the machine does meets all of them.
fn run(programs: &mut [Program], home: &TestHome) {
    for round in 0..STARTS + 20 {
        for program in &mut *programs {
            let took = start(program, home);
            // The first rounds fill the page cache.
            if round >= 20 {
                program.times.push(took);
            }
        }
    }
}

fn program(name: &'static str, path: PathBuf, arguments: &'static [&'static str]) -> Program {
    Program {
        name,
        path,
        arguments,
        times: Vec::new(),
    }
}

fn start(program: &Program, home: &TestHome) -> Duration {
    let mut command = Command::new(&program.path);
    command
        .args(program.arguments)
        .env_clear()
        .env("ROLLPROXY_HOME", home.home.root())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let begun = Instant::now();
    let status = command.status().unwrap();
    let took = begun.elapsed();
    assert!(status.success(), "{}: {status}", program.name);
    took
}

fn compile(folder: &Path, name: &str, source: &str, bare: bool) -> PathBuf {
    let (file, out) = (folder.join(name).with_extension("rs"), folder.join(name));
    std::fs::write(&file, source).unwrap();
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc
        .args(["--edition", "2024", "-O", "-o"])
        .arg(&out)
        .arg(&file);
    if bare {
        rustc.args([
            "-Cpanic=abort",
            "-Clink-args=-nostartfiles -nostdlib -static",
        ]);
    }
    assert!(rustc.status().unwrap().success(), "{name} does not compile");
    out
}

/// The launcher for another target or with other flags, in a target folder of its own.
fn build_launcher(folder: &Path, target: &str, flags: Option<&str>) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let into = folder.join(format!("target-{target}"));
    let output = Command::new(cargo)
        .args([
            "build",
            "--release",
            "--locked",
            "--package",
            "rollproxy-launcher",
            "--target",
            target,
            "--target-dir",
        ])
        .arg(&into)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("RUSTFLAGS", flags.unwrap_or_default())
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(words
            .lines()
            .find(|line| line.starts_with("error"))
            .unwrap_or("cargo failed")
            .to_owned());
    }
    Ok(into.join(target).join("release/rollproxy-launcher"))
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
