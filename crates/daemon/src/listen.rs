//! The socket, and the lock that says whose it is.
//!
//! The lock file beside the socket is held for the daemon's life by `flock`, which ends with the process
//! however that ends. Whoever gets it may remove a socket that a dead daemon left.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use forebay_wire::Peer;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::{Error, log};

#[derive(Debug)]
pub(crate) struct Listener {
    listener: UnixListener,
    path: PathBuf,
    _lock: File,
}

impl Listener {
    pub(crate) fn bind(path: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io { path: path.to_path_buf(), source };
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        own_dir(dir)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(lock_path(path))
            .map_err(io)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(Error::Taken(path.to_path_buf())),
            Err(errno) => return Err(io(errno.into())),
        }
        match fs::symlink_metadata(path) {
            Ok(meta) if meta.file_type().is_socket() => fs::remove_file(path).map_err(io)?,
            Ok(_) => {
                let why = "there is something else than a socket; choose another path with --socket";
                return Err(Error::Place { path: path.to_path_buf(), why: why.into() });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io(error)),
        }
        let listener = UnixListener::bind(path).map_err(io)?;
        fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(io)?;
        listener.set_nonblocking(true).map_err(io)?;
        Ok(Listener { listener, path: path.to_path_buf(), _lock: lock })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// A connection of the same user; `None` for another's.
    pub(crate) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        let socket = match self.listener.accept() {
            Ok((socket, _)) => OwnedFd::from(socket),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        let peer = Peer::of(&socket)?;
        if peer.uid != geteuid().as_raw() {
            log(format!("refused a connection of user {}", peer.uid));
            return Ok(None);
        }
        Ok(Some(socket))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The lock is still held: nobody else's socket can be there. The lock file stays, because removing
        // it would let two processes lock two files of one name.
        let _ = fs::remove_file(&self.path);
    }
}

fn lock_path(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// Makes the directory, for this user alone; one that others may write in is refused, unless they cannot
/// replace what is not theirs.
fn own_dir(dir: &Path) -> Result<(), Error> {
    let wrong = |why: String| Error::Place { path: dir.to_path_buf(), why };
    match fs::DirBuilder::new().recursive(true).mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(wrong(error.to_string())),
        _ => {}
    }
    let meta = fs::metadata(dir).map_err(|e| wrong(e.to_string()))?;
    let (mode, owner) = (meta.mode(), meta.uid());
    let mine = owner == geteuid().as_raw() || owner == 0;
    if !mine || mode & 0o022 != 0 && mode & 0o1000 == 0 {
        return Err(wrong(format!(
            "it belongs to user {owner} with mode {:o}, so that others could replace the socket; choose another with --socket or FOREBAY_SOCKET",
            mode & 0o7777
        )));
    }
    Ok(())
}
