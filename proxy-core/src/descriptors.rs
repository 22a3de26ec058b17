//! Descriptors whose ownership the compiler cannot see: the one place with `unsafe` code.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signalfd::SignalFd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Where a worker finds its channel to the supervisor.
pub const CHANNEL_FD: i32 = 3;
/// Where a worker finds its configuration, a sealed memfd.
pub const CONFIG_FD: i32 = 4;

/// The two descriptors of a worker, owned.
pub struct WorkerDescriptors {
    /// One end of the `SOCK_SEQPACKET` pair.
    pub channel: OwnedFd,
    /// The configuration snapshot.
    pub config: OwnedFd,
}

/// Takes over descriptors 3 and 4, once in the life of a process.
///
/// # Errors
/// When they were taken before, are not open, or are not a socket and a regular (memory) file:
/// the process was not started by a supervisor.
pub fn take_worker_descriptors() -> std::io::Result<WorkerDescriptors> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let not_started_by_supervisor = |what: &str| {
        std::io::Error::new(
            std::io::ErrorKind::InvalidInput,
            format!(
                "{what}: a worker is started by the supervisor (`rollproxy serve`), not by hand"
            ),
        )
    };
    for (number, kind) in [(CHANNEL_FD, "socket:"), (CONFIG_FD, "/memfd:")] {
        let link = std::fs::read_link(format!("/proc/self/fd/{number}"))
            .map_err(|_| not_started_by_supervisor(&format!("descriptor {number} is not open")))?;
        if !link.to_string_lossy().starts_with(kind) {
            return Err(not_started_by_supervisor(&format!(
                "descriptor {number} is {}, not {kind}",
                link.display()
            )));
        }
    }
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Err(not_started_by_supervisor(
            "the descriptors were already taken",
        ));
    }
    // SAFETY: both numbers were just seen open and of the expected kind; nothing in this process
    // opened them (it is the first thing a worker does) and TAKEN makes us their only owner.
    let (channel, config) = unsafe {
        (
            OwnedFd::from_raw_fd(CHANNEL_FD),
            OwnedFd::from_raw_fd(CONFIG_FD),
        )
    };
    for fd in [&channel, &config] {
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)?;
    }
    Ok(WorkerDescriptors { channel, config })
}

/// Takes over what a service manager has given: of `count` descriptors from number `first` on those that are open, each
/// with its number, once in the life of a process.
///
/// # Errors
/// When they were taken before, or `/proc` cannot be read.
pub fn take_given_descriptors(first: i32, count: usize) -> std::io::Result<Vec<(i32, OwnedFd)>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if count == 0 {
        return Ok(Vec::new());
    }
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Err(std::io::Error::other("the descriptors were already taken"));
    }
    let mut taken = Vec::new();
    for number in (first..).take(count) {
        if std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_err() {
            continue;
        }
        // SAFETY: the number was just seen open; it was given to this process by who started it, nothing in this
        // process opened it (it is the first thing a supervisor does), and TAKEN makes us its only owner.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC)?;
        taken.push((number, descriptor));
    }
    Ok(taken)
}

/// Closes, in every process that is started from now on, whatever this one inherited besides its
/// standard descriptors: a worker gets what it is given, nothing else.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn keep_inherited_from_workers() -> std::io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if number > 2 {
            // SAFETY: borrowed for one call that sets a flag; were the descriptor closed meanwhile, it would fail.
            let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
            rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::CLOEXEC)?;
        }
    }
    Ok(())
}

/// Types that own one descriptor, and return the same number for as long as they live.
pub trait Steady: AsRawFd + sealed::Sealed {}

impl Steady for OwnedFd {}
impl Steady for SignalFd {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for std::os::fd::OwnedFd {}
    impl Sealed for nix::sys::signalfd::SignalFd {}
}

/// Lets the current runtime watch a descriptor for input.
///
/// # Errors
/// When the system cannot watch it.
pub fn watch<T: Steady>(descriptor: T) -> std::io::Result<AsyncFd<T>> {
    // SAFETY: a `Steady` type owns its descriptor, gives the same number every time, and closes it
    // only when it is dropped, which the `AsyncFd` that takes it does after it has deregistered it.
    unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }.map_err(Into::into)
}

/// What the kernel counted on a TCP connection (`TCP_INFO`), as far as we ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpCounts {
    /// The state, as `include/net/tcp_states.h` numbers it.
    pub state: u8,
    /// Bytes received in order; a FIN counts as one.
    pub received: u64,
    /// Bytes written: sent at least once, or waiting to be.
    pub written: u64,
}

/// `TCP_INFO` of a connection; nothing for what is no TCP socket, or on a kernel that does not count (before 4.19).
///
/// Neither rustix nor nix has these fields: the layout is that of `struct tcp_info` in `include/uapi/linux/tcp.h`,
/// which only ever grows at its end.
pub fn tcp_counts(socket: BorrowedFd<'_>) -> Option<TcpCounts> {
    use nix::libc;
    const LENGTH: usize = 216;
    let mut info = [0_u8; LENGTH];
    let mut length = libc::socklen_t::try_from(LENGTH).ok()?;
    // SAFETY: the pointer and the length describe `info`, which outlives the call; the kernel writes at
    // most `length` bytes and says how many.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if answer != 0 || usize::try_from(length).ok()? < LENGTH {
        return None;
    }
    let u32_at = |at: usize| Some(u32::from_ne_bytes(info.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_ne_bytes(info.get(at..at + 8)?.try_into().ok()?));
    let (received, not_sent) = (u64_at(128)?, u32_at(144)?);
    let (sent, sent_again) = (u64_at(200)?, u64_at(208)?);
    Some(TcpCounts {
        state: info[0],
        received,
        written: sent
            .saturating_sub(sent_again)
            .saturating_add(u64::from(not_sent)),
    })
}

/// Takes over a descriptor that an earlier image of this process, or whoever started it, left open for us. It is closed
/// in every process that is started from now on.
///
/// # Errors
/// When it is not open.
pub fn inherited(number: i32) -> std::io::Result<OwnedFd> {
    if number <= 2 || looked_at(number, |_| ()).is_none() {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidInput,
            format!("descriptor {number} is not one that was left open for us"),
        ));
    }
    // SAFETY: it was open when this image began, for its number came from outside, and what this image opens gets
    // another number; the callers take each number once, before anything else could own it.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC)?;
    Ok(descriptor)
}

/// Looks at a descriptor by its number, without taking it over; nothing when it is not open.
pub fn looked_at<T>(number: i32, look: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
    if number < 0 {
        return None;
    }
    // SAFETY: borrowed for the length of this call only; the first thing that is done with it tells whether it is open.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(descriptor).ok()?;
    Some(look(descriptor))
}
