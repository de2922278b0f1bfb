//! Reads that take as long as those of the simulated device in the file that `FOREBAY_THROTTLE` names.
//!
//! A tool of the benches: the bytes still come from the real file. The variable is looked at once; without
//! it, or without the feature `throttle`, a read waits for nothing.

use std::fs::File;
use std::io;

use crate::Result;

/// An error where a throttle is named that cannot be used: nothing shall run fast by accident.
#[cfg(feature = "throttle")]
pub(crate) fn check() -> Result<()> {
    match named() {
        Ok(_) => Ok(()),
        Err(why) => Err(crate::Error::Invalid(why.clone())),
    }
}

/// Whether reads wait for one.
#[cfg(feature = "throttle")]
pub(crate) fn is_set() -> bool {
    !matches!(named(), Ok(None))
}

/// Waits as long as a read of the whole file takes; says whether there is a throttle.
#[cfg(feature = "throttle")]
pub(crate) fn wait(file: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;

    match named() {
        Ok(None) => Ok(false),
        Ok(Some(throttle)) => {
            let meta = file.metadata()?;
            throttle.read((meta.dev(), meta.ino()), 0, meta.len())?;
            Ok(true)
        }
        Err(why) => Err(io::Error::other(why.clone())),
    }
}

#[cfg(feature = "throttle")]
fn named() -> &'static Result<Option<forebay_arena::throttle::Throttle>, String> {
    use std::path::Path;
    use std::sync::OnceLock;

    use forebay_arena::throttle::Throttle;

    static NAMED: OnceLock<Result<Option<Throttle>, String>> = OnceLock::new();
    NAMED.get_or_init(|| {
        let Some(path) = std::env::var_os("FOREBAY_THROTTLE").filter(|path| !path.is_empty()) else {
            return Ok(None);
        };
        let path = Path::new(&path);
        Throttle::open(path).map(Some).map_err(|e| format!("FOREBAY_THROTTLE={}: {e}", path.display()))
    })
}

#[cfg(not(feature = "throttle"))]
pub(crate) fn check() -> Result<()> {
    Ok(())
}

#[cfg(not(feature = "throttle"))]
pub(crate) fn is_set() -> bool {
    false
}

#[cfg(not(feature = "throttle"))]
pub(crate) fn wait(_: &File) -> io::Result<bool> {
    Ok(false)
}
