//! Where generated data and converted copies live: `FOREBAY_CACHE_DIR`, else the user's cache.

use std::env;
use std::path::PathBuf;

use anyhow::Result;

use crate::hint::Hinted;

/// A folder of ours; not created.
pub(crate) fn folder(name: &str) -> Result<PathBuf> {
    let set = |variable| env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let root = set("FOREBAY_CACHE_DIR")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("forebay")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/forebay")))
        .ok_or_else(|| Hinted::new("there is no cache directory", "set FOREBAY_CACHE_DIR or HOME"))?;
    Ok(root.join(name))
}
