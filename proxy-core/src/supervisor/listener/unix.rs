//! Unix sockets that listen, and their files.

use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::config::ListenAddress;

use super::{BACKLOG, ListenError};

/// The file by which a Unix socket is found: exactly the one that was seen, not another of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// The socket's file at `path`, if that is one.
    pub(super) fn at(path: &Path) -> Option<Self> {
        let found = std::fs::symlink_metadata(path).ok()?;
        found.file_type().is_socket().then(|| Self {
            path: path.to_owned(),
            device: found.dev(),
            inode: found.ino(),
        })
    }

    /// Gives it these permissions.
    pub(super) fn permit(&self, mode: u32) {
        if Self::at(&self.path).as_ref() != Some(self) {
            return;
        }
        let permissions = std::fs::Permissions::from_mode(mode);
        if let Err(error) = std::fs::set_permissions(&self.path, permissions) {
            tracing::warn!(%error, file = %self.path.display(), "cannot set the socket's permissions");
        }
    }

    /// Removes it, unless somebody else has put another one in its place.
    pub(super) fn remove(&self) {
        if Self::at(&self.path).as_ref() != Some(self) {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, file = %self.path.display(), "cannot remove the socket's file");
        }
    }
}

/// Binds and listens. A file that a dead process left is replaced; one that answers is in use.
pub(super) fn bind(path: &Path, mode: u32) -> Result<(OwnedFd, SocketFile), ListenError> {
    let name = || ListenAddress::Unix(path.to_owned());
    let failed = |error: std::io::Error| ListenError::Listen(name(), error);
    let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
    make_way(path, &address)?;
    let socket = stream_socket().map_err(|error| failed(error.into()))?;
    // The file gets these permissions less the umask when it is made: at no time more than was asked for.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(mode))
        .map_err(|error| failed(error.into()))?;
    match rustix::net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => return Err(ListenError::InUse(name())),
        bound => bound.map_err(|error| failed(error.into()))?,
    }
    let file = SocketFile::at(path).ok_or_else(|| {
        failed(std::io::Error::other(
            "its file went away while it was made",
        ))
    })?;
    let ready = std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .and_then(|()| Ok(rustix::net::listen(&socket, BACKLOG)?));
    match ready {
        Ok(()) => Ok((socket, file)),
        Err(error) => {
            file.remove();
            Err(failed(error))
        }
    }
}

fn stream_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Removes what a dead process left at `path`; anything else there is an error.
fn make_way(path: &Path, address: &SocketAddrUnix) -> Result<(), ListenError> {
    let Some(file) = SocketFile::at(path) else {
        return match path.symlink_metadata() {
            Ok(_) => Err(ListenError::NotASocket(path.to_owned())),
            Err(_) => Ok(()),
        };
    };
    let name = || ListenAddress::Unix(path.to_owned());
    let asked = stream_socket().and_then(|socket| rustix::net::connect(&socket, address));
    match asked {
        Err(Errno::CONNREFUSED) => {
            file.remove();
            Ok(())
        }
        // Gone meanwhile.
        Err(Errno::NOENT) => Ok(()),
        // It answers, or its backlog is full: somebody listens.
        Ok(()) | Err(Errno::AGAIN) => Err(ListenError::InUse(name())),
        Err(error) => Err(ListenError::Listen(name(), error.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_socket_has_the_permissions_that_were_asked_for_and_takes_connections() {
        let folder = tempfile::tempdir().unwrap();
        for asked in [0o600, 0o660, 0o666] {
            let path = folder.path().join(format!("{asked:o}.sock"));
            let (_socket, file) = bind(&path, asked).unwrap();
            assert_eq!(mode(&path), asked);
            UnixStream::connect(&path).unwrap();
            file.permit(0o640);
            assert_eq!(mode(&path), 0o640);
            file.remove();
            assert!(!path.exists());
        }
    }

    #[test]
    fn what_a_dead_process_left_is_replaced_and_what_answers_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let (_socket, _file) = bind(&path, 0o600).unwrap();
        let refusal = bind(&path, 0o600).unwrap_err();
        assert!(matches!(refusal, ListenError::InUse(_)), "{refusal}");
        assert!(refusal.to_string().contains("x.sock"));
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        let refusal = bind(&path, 0o600).unwrap_err();
        assert!(matches!(refusal, ListenError::NotASocket(_)), "{refusal}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
    }

    #[test]
    fn the_file_of_another_socket_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.sock");
        let (_socket, file) = bind(&path, 0o600).unwrap();
        let elsewhere = folder.path().join("y.sock");
        std::fs::rename(&path, &elsewhere).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        file.remove();
        assert!(path.exists());
    }
}
