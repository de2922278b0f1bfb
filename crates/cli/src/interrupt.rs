//! Ctrl-C while processes of ours run: what was started is ended before this program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use anyhow::{Result, bail};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

static WANTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From now on the first signal is left to [`check`]; a second one ends this program at once.
pub(crate) fn watch() -> Result<()> {
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 128 + signal, WANTED.clone())?;
        flag::register(signal, WANTED.clone())?;
    }
    Ok(())
}

/// An error when the user wants the end.
pub(crate) fn check() -> Result<()> {
    if WANTED.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}
