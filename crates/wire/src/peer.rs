//! Who is at the other end of a socket: [`Peer`].
//!
//! rustix has this too, with a process number that is never 0. The kernel says 0 of a process that this one
//! cannot see, as from within a container.

#![expect(unsafe_code, reason = "a socket option of our own")]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd};

use rustix::process::Pid;

/// A process that connected or listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// `None` when it lives in another namespace.
    pub pid: Option<Pid>,
    /// Its user.
    pub uid: u32,
}

impl Peer {
    /// The process at the other end of a Unix socket, as it was when it connected or began to listen.
    pub fn of(socket: impl AsFd) -> io::Result<Peer> {
        let mut found = MaybeUninit::<libc::ucred>::zeroed();
        let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
        let fd = socket.as_fd().as_raw_fd();
        // SAFETY: `found` has room for the `bytes` that the kernel may write, and both outlive the call.
        let code = unsafe {
            libc::getsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                found.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        if code != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: three numbers, for which all bits are valid, zeroed before the kernel wrote them.
        let found = unsafe { found.assume_init() };
        Ok(Peer { pid: Pid::from_raw(found.pid), uid: found.uid })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn both_ends_of_a_pair_are_this_process() {
        let (one, other) = UnixStream::pair().unwrap();
        let me =
            Peer { pid: Pid::from_raw(std::process::id() as i32), uid: rustix::process::geteuid().as_raw() };
        assert_eq!((Peer::of(&one).unwrap(), Peer::of(&other).unwrap()), (me, me));
        assert!(Peer::of(std::fs::File::open("/proc/self/exe").unwrap()).is_err());
    }
}
