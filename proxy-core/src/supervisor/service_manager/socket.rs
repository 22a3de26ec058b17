//! The service manager's socket: one datagram after the other, none waited for.

use std::ffi::OsStr;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// Where messages go.
pub(super) struct Socket {
    socket: OwnedFd,
    address: SocketAddrUnix,
}

/// What became of a message.
pub(super) enum Said {
    Taken,
    /// It has too much to read already.
    NotNow,
    /// Saying it again would not help.
    Never(Errno),
}

impl Socket {
    /// The socket of that name: a path, or `@` and an abstract one.
    pub(super) fn to(name: &OsStr) -> std::io::Result<Self> {
        let address = match name.as_bytes() {
            [b'@', rest @ ..] if !rest.is_empty() => SocketAddrUnix::new_abstract_name(rest)?,
            [b'/', ..] => SocketAddrUnix::new(name)?,
            _ => {
                return Err(std::io::Error::new(
                    std::io::ErrorKind::InvalidInput,
                    "neither a path nor @ and a name",
                ));
            }
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        Ok(Self { socket, address })
    }

    pub(super) fn send(&self, message: &str, descriptor: Option<BorrowedFd<'_>>) -> Said {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.map(|descriptor| [descriptor]);
        if let Some(descriptors) = &descriptors {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        loop {
            let sent = rustix::net::sendmsg_addr(
                &self.socket,
                &self.address,
                &[IoSlice::new(message.as_bytes())],
                &mut control,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            );
            return match sent {
                Ok(_) => Said::Taken,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS) => {
                    Said::NotNow
                }
                Err(error) => Said::Never(error),
            };
        }
    }
}
