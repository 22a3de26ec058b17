//! The step from one image to the next: freeze, write down, keep exactly what is named, execute.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::FdFlags;

use crate::descriptors::inherited;

/// What the next image is told by its arguments. The same for every version, for ever.
#[derive(Debug, Clone, Copy)]
pub struct Inheritance<'a> {
    /// The sealed state.
    pub state: BorrowedFd<'a>,
    /// The executable of the image that wrote it: who cannot load the state executes that again.
    pub back: BorrowedFd<'a>,
}

impl<'a> Inheritance<'a> {
    /// All that has to stay open.
    fn and(&self, keep: &[BorrowedFd<'a>]) -> Vec<BorrowedFd<'a>> {
        keep.iter()
            .copied()
            .chain([self.state, self.back])
            .collect()
    }
}

/// Executes `program` in place as the next image. The mask of blocked signals, the environment and the descriptors in
/// `keep` go on; everything else closes.
///
/// # Errors
/// Returns only when it could not be done; then every descriptor is as it was.
pub fn become_image(
    program: &Path,
    inheritance: Inheritance<'_>,
    keep: &[BorrowedFd<'_>],
) -> std::io::Error {
    let arguments = [
        c"rollproxy".to_owned(),
        c"serve".to_owned(),
        c"--resume".to_owned(),
        number(inheritance.state),
        c"--back".to_owned(),
        number(inheritance.back),
    ];
    execute(program, &arguments, &inheritance.and(keep))
}

/// Executes `program` in place as one that knows nothing of us but the sockets that are named here.
///
/// # Errors
/// Returns only when it could not be done; then every descriptor is as it was.
pub fn start_anew(program: &Path, keep: &[(&str, BorrowedFd<'_>)]) -> std::io::Error {
    let mut arguments = vec![c"rollproxy".to_owned(), c"serve".to_owned()];
    for (name, descriptor) in keep {
        arguments.push(c"--given".to_owned());
        let given = format!("{name}={}", descriptor.as_raw_fd());
        arguments.push(CString::new(given).unwrap_or_default());
    }
    let keep: Vec<_> = keep.iter().map(|(_, descriptor)| *descriptor).collect();
    execute(program, &arguments, &keep)
}

/// Executes the image that wrote the state again: this one cannot load it.
///
/// # Errors
/// Returns only when it could not be done.
pub fn go_back(inheritance: Inheritance<'_>, keep: &[BorrowedFd<'_>], why: &str) -> std::io::Error {
    let program = format!("/proc/self/fd/{}", inheritance.back.as_raw_fd());
    let why: Vec<u8> = why.bytes().filter(|byte| *byte != 0).take(1_000).collect();
    let arguments = [
        c"rollproxy".to_owned(),
        c"serve".to_owned(),
        c"--resume".to_owned(),
        number(inheritance.state),
        c"--came-back".to_owned(),
        // Zero bytes were taken out.
        CString::new(why).unwrap_or_default(),
    ];
    execute(Path::new(&program), &arguments, &inheritance.and(keep))
}

fn execute(program: &Path, arguments: &[CString], keep: &[BorrowedFd<'_>]) -> std::io::Error {
    let Ok(path) = CString::new(program.as_os_str().as_bytes()) else {
        return std::io::ErrorKind::InvalidInput.into();
    };
    let mut result = Ok(());
    for descriptor in keep {
        result = result.and(rustix::io::fcntl_setfd(descriptor, FdFlags::empty()));
    }
    // Not by the standard library: its `exec` unblocks every signal, and one that comes in between would be lost, or
    // end us.
    let error = match result {
        Ok(()) => match nix::unistd::execv(&path, arguments) {
            Err(errno) => errno.into(),
        },
        Err(errno) => errno.into(),
    };
    for descriptor in keep {
        // They are open, so this does not fail; were one left inheritable, a worker's start would close it all the same.
        let _ = rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC);
    }
    error
}

/// The same for a program that has nothing but what it was told by its arguments.
///
/// # Errors
/// Returns only when it could not be done.
pub fn give_back(state: i32, back: i32, why: &str) -> std::io::Error {
    match (inherited(state), inherited(back)) {
        (Ok(state), Ok(back)) => {
            let inheritance = Inheritance {
                state: state.as_fd(),
                back: back.as_fd(),
            };
            go_back(inheritance, &[], why)
        }
        (Err(error), _) | (_, Err(error)) => error,
    }
}

/// The executable of this process, by descriptor: the file may go.
///
/// # Errors
/// When the system does not let us have it.
pub fn own_executable() -> std::io::Result<OwnedFd> {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    Ok(rustix::fs::open(
        "/proc/self/exe",
        flags,
        rustix::fs::Mode::empty(),
    )?)
}

fn number(descriptor: impl AsFd) -> CString {
    CString::new(descriptor.as_fd().as_raw_fd().to_string()).unwrap_or_default()
}
