//! Where the daemon of a user listens.

use std::path::PathBuf;

/// `FOREBAY_SOCKET`, else `forebay.sock` in the user's runtime directory: `XDG_RUNTIME_DIR`, `/run/user/UID`,
/// or a directory of the user's own under `/tmp`.
pub fn default_socket() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(socket) = set("FOREBAY_SOCKET") {
        return socket;
    }
    let uid = rustix::process::getuid().as_raw();
    let runtime = set("XDG_RUNTIME_DIR")
        .or_else(|| Some(PathBuf::from(format!("/run/user/{uid}"))).filter(|dir| dir.is_dir()));
    let dir = runtime.unwrap_or_else(|| PathBuf::from(format!("/tmp/forebay-{uid}")));
    dir.join("forebay.sock")
}
