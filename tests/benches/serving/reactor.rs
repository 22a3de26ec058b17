//! One epoll and one timer: all that upstream and load have by way of a runtime.

use std::net::SocketAddrV4;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// Somebody ended our standard input: time to go.
pub const INPUT: u64 = u64::MAX;
/// The timer fired.
pub const TIMER: u64 = u64::MAX - 1;

/// See the module.
pub struct Reactor {
    epoll: OwnedFd,
    timer: OwnedFd,
    ready: Vec<epoll::Event>,
}

impl Reactor {
    pub fn new() -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )
        .unwrap();
        let reactor = Self {
            epoll,
            timer,
            ready: Vec::with_capacity(512),
        };
        reactor.add(&reactor.timer, TIMER);
        reactor.add(&std::io::stdin(), INPUT);
        reactor
    }

    /// Tells of `socket` by `token` while something is there to be read.
    pub fn add(&self, socket: &impl AsFd, token: u64) {
        let flags = match token {
            // Nobody reads the timer.
            TIMER => EventFlags::IN | EventFlags::ET,
            _ => EventFlags::IN,
        };
        match epoll::add(&self.epoll, socket, EventData::new_u64(token), flags) {
            // A file or /dev/null for standard input never ends.
            Ok(()) | Err(Errno::PERM) => {}
            Err(error) => panic!("epoll: {error}"),
        }
    }

    /// The timer fires at that nanosecond of the monotonic clock.
    pub fn arm(&self, at: u64) {
        self.set(
            TimerfdTimerFlags::ABSTIME,
            Duration::from_nanos(at),
            Duration::ZERO,
        );
    }

    /// The timer fires again and again; never, if that is zero.
    pub fn arm_every(&self, interval: Duration) {
        self.set(TimerfdTimerFlags::empty(), interval, interval);
    }

    fn set(&self, flags: TimerfdTimerFlags, first: Duration, interval: Duration) {
        let spec = |time: Duration| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap(),
            tv_nsec: time.subsec_nanos().into(),
        };
        let spec = Itimerspec {
            it_interval: spec(interval),
            it_value: spec(first),
        };
        timerfd_settime(&self.timer, flags, &spec).unwrap();
    }

    /// Waits for something, 100 ms at most; the tokens.
    pub fn wait(&mut self, tokens: &mut Vec<u64>) {
        let patience = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        self.ready.clear();
        match epoll::wait(
            &self.epoll,
            spare_capacity(&mut self.ready),
            Some(&patience),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("epoll: {error}"),
        }
        tokens.clear();
        tokens.extend(self.ready.iter().map(|event| event.data.u64()));
    }
}

/// A connection; on loopback that takes no time, unless the backlog is full.
pub fn connect(address: SocketAddrV4) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

/// Sends without waiting; how much went.
pub fn send(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    match rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Err(Errno::AGAIN) => Ok(0),
        sent => sent,
    }
}

/// Receives without waiting; nothing if nothing is there, zero at the end.
pub fn receive(socket: &OwnedFd, into: &mut [u8]) -> Result<Option<usize>, Errno> {
    match rustix::net::recv(socket, into, RecvFlags::DONTWAIT) {
        Ok((taken, _)) => Ok(Some(taken)),
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error),
    }
}
