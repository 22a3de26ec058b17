//! Calls that change files, as a tracer sees them: which they are, and what they are about.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::libc;
use nix::unistd::Pid;

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A file comes to be.
    Create,
    /// Bytes into a file, from anywhere.
    Write,
    /// A file is shortened, lengthened, or emptied at its opening.
    Truncate,
    /// All of another file's blocks are shared.
    Clone,
    /// fsync or fdatasync.
    Sync,
    /// A name is moved; what it replaces is gone.
    Rename,
    /// Two names are exchanged.
    Exchange,
    /// A second name.
    Link,
    /// A symbolic link.
    Symlink,
    Unlink,
    MakeFolder,
    RemoveFolder,
    Mode,
}

/// One call. Times are a count over all events of one trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub kind: Kind,
    pub path: PathBuf,
    /// Where to, of a rename or a link.
    pub to: Option<PathBuf>,
    pub entered: u64,
    /// None if it never came back.
    pub left: Option<u64>,
    /// Whether it did what it was to do.
    pub ok: bool,
    /// Whether a walk stops here: of the writes to a file only the first counts.
    pub is_point: bool,
}

/// The arguments of a call as the processor holds them.
pub struct Registers {
    pub number: i64,
    pub args: [u64; 6],
    pub result: i64,
}

/// Reads a stopped thread's registers.
pub fn registers(thread: Pid) -> nix::Result<Registers> {
    let regs = nix::sys::ptrace::getregs(thread)?;
    #[cfg(target_arch = "x86_64")]
    return Ok(Registers {
        number: regs.orig_rax as i64,
        args: [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9],
        result: regs.rax as i64,
    });
    #[cfg(target_arch = "aarch64")]
    return Ok(Registers {
        number: regs.regs[8] as i64,
        args: std::array::from_fn(|at| regs.regs[at]),
        result: regs.regs[0] as i64,
    });
}

/// Understands the calls of one trace.
#[derive(Default)]
pub struct Reader {
    written: HashSet<PathBuf>,
}

impl Reader {
    /// The call that a thread is about to make, if it changes files below `within`.
    pub fn read(
        &mut self,
        thread: Pid,
        registers: &Registers,
        within: &Path,
        now: u64,
    ) -> Option<Call> {
        let (kind, path, to) = understand(thread, registers)?;
        let is_within = |path: &PathBuf| path.starts_with(within);
        if !is_within(&path) && !to.as_ref().is_some_and(is_within) {
            return None;
        }
        let is_point = match kind {
            Kind::Write => self.written.insert(path.clone()),
            Kind::Create | Kind::Truncate => {
                self.written.remove(&path);
                true
            }
            _ => true,
        };
        Some(Call {
            kind,
            path,
            to,
            entered: now,
            left: None,
            ok: false,
            is_point,
        })
    }
}

fn understand(thread: Pid, registers: &Registers) -> Option<(Kind, PathBuf, Option<PathBuf>)> {
    let a = registers.args;
    let here = libc::AT_FDCWD as u64;
    let at = |folder: u64, text: u64| path_at(thread, folder, text);
    let fd = |number: u64| descriptor(thread, number);
    let one = |kind, path: Option<PathBuf>| path.map(|path| (kind, path, None));
    let two = |kind, from: Option<PathBuf>, to| from.map(|from| (kind, from, to));
    match registers.number {
        libc::SYS_openat => opened(at(a[0], a[1])?, a[2] as i32),
        libc::SYS_openat2 => opened(at(a[0], a[1])?, word_at(thread, a[2])? as i32),
        libc::SYS_write
        | libc::SYS_pwrite64
        | libc::SYS_writev
        | libc::SYS_pwritev
        | libc::SYS_pwritev2
        | libc::SYS_sendfile => one(Kind::Write, fd(a[0])),
        libc::SYS_copy_file_range | libc::SYS_splice => one(Kind::Write, fd(a[2])),
        libc::SYS_fallocate | libc::SYS_ftruncate => one(Kind::Truncate, fd(a[0])),
        libc::SYS_truncate => one(Kind::Truncate, at(here, a[0])),
        libc::SYS_ioctl if a[1] == FICLONE || a[1] == FICLONERANGE => one(Kind::Clone, fd(a[0])),
        libc::SYS_fsync | libc::SYS_fdatasync => one(Kind::Sync, fd(a[0])),
        libc::SYS_renameat => two(Kind::Rename, at(a[0], a[1]), at(a[2], a[3])),
        libc::SYS_renameat2 if a[4] & u64::from(libc::RENAME_EXCHANGE) != 0 => {
            two(Kind::Exchange, at(a[0], a[1]), at(a[2], a[3]))
        }
        libc::SYS_renameat2 => two(Kind::Rename, at(a[0], a[1]), at(a[2], a[3])),
        libc::SYS_linkat => two(Kind::Link, at(a[0], a[1]), at(a[2], a[3])),
        libc::SYS_symlinkat => one(Kind::Symlink, at(a[1], a[2])),
        libc::SYS_mkdirat => one(Kind::MakeFolder, at(a[0], a[1])),
        libc::SYS_unlinkat if a[2] & libc::AT_REMOVEDIR as u64 != 0 => {
            one(Kind::RemoveFolder, at(a[0], a[1]))
        }
        libc::SYS_unlinkat => one(Kind::Unlink, at(a[0], a[1])),
        libc::SYS_fchmod => one(Kind::Mode, fd(a[0])),
        libc::SYS_fchmodat => one(Kind::Mode, at(a[0], a[1])),
        number => older(thread, number, a),
    }
}

const FICLONE: u64 = 0x4004_9409;
const FICLONERANGE: u64 = 0x4020_940d;

/// The calls of the same kind that only older processors have.
#[cfg(target_arch = "x86_64")]
fn older(thread: Pid, number: i64, a: [u64; 6]) -> Option<(Kind, PathBuf, Option<PathBuf>)> {
    let at = |text: u64| path_at(thread, libc::AT_FDCWD as u64, text);
    let (kind, to) = match number {
        libc::SYS_open => return opened(at(a[0])?, a[1] as i32),
        libc::SYS_creat => return opened(at(a[0])?, libc::O_CREAT | libc::O_TRUNC),
        libc::SYS_symlink => return Some((Kind::Symlink, at(a[1])?, None)),
        libc::SYS_rename => (Kind::Rename, at(a[1])),
        libc::SYS_link => (Kind::Link, at(a[1])),
        libc::SYS_mkdir => (Kind::MakeFolder, None),
        libc::SYS_rmdir => (Kind::RemoveFolder, None),
        libc::SYS_unlink => (Kind::Unlink, None),
        libc::SYS_chmod => (Kind::Mode, None),
        _ => return None,
    };
    Some((kind, at(a[0])?, to))
}

#[cfg(not(target_arch = "x86_64"))]
fn older(_: Pid, _: i64, _: [u64; 6]) -> Option<(Kind, PathBuf, Option<PathBuf>)> {
    None
}

/// An opening counts if it makes the file or empties it.
fn opened(path: PathBuf, flags: i32) -> Option<(Kind, PathBuf, Option<PathBuf>)> {
    let is_there = fs::symlink_metadata(&path).is_ok();
    match (
        is_there,
        flags & libc::O_CREAT != 0,
        flags & libc::O_TRUNC != 0,
    ) {
        (false, true, _) => Some((Kind::Create, path, None)),
        (true, _, true) => Some((Kind::Truncate, path, None)),
        _ => None,
    }
}

/// The file that a descriptor stands for; none for pipes and sockets.
fn descriptor(thread: Pid, number: u64) -> Option<PathBuf> {
    let number = number as i32;
    let path = fs::read_link(format!("/proc/{thread}/fd/{number}")).ok()?;
    path.is_absolute().then_some(path)
}

fn path_at(thread: Pid, folder: u64, text: u64) -> Option<PathBuf> {
    let path = PathBuf::from(std::ffi::OsString::from_vec(text_at(thread, text)?));
    if path.is_absolute() {
        return Some(path);
    }
    let folder = if folder as i32 == libc::AT_FDCWD {
        fs::read_link(format!("/proc/{thread}/cwd")).ok()?
    } else {
        descriptor(thread, folder)?
    };
    // An empty path means the descriptor itself.
    Some(if path.as_os_str().is_empty() {
        folder
    } else {
        folder.join(path)
    })
}

/// The text at an address, up to its zero byte.
fn text_at(thread: Pid, address: u64) -> Option<Vec<u8>> {
    const PAGE: u64 = 4096;
    let mut memory = fs::File::open(format!("/proc/{thread}/mem")).ok()?;
    memory.seek(SeekFrom::Start(address)).ok()?;
    let mut text = Vec::new();
    // Not beyond a page at a time: the next one may not be there.
    let mut room = PAGE - address % PAGE;
    while text.len() < 2 * PAGE as usize {
        let mut piece = vec![0; room as usize];
        memory.read_exact(&mut piece).ok()?;
        if let Some(end) = piece.iter().position(|byte| *byte == 0) {
            text.extend(&piece[..end]);
            return Some(text);
        }
        text.extend(piece);
        room = PAGE;
    }
    None
}

fn word_at(thread: Pid, address: u64) -> Option<u64> {
    let mut memory = fs::File::open(format!("/proc/{thread}/mem")).ok()?;
    memory.seek(SeekFrom::Start(address)).ok()?;
    let mut word = [0; 8];
    memory.read_exact(&mut word).ok()?;
    Some(u64::from_le_bytes(word))
}
