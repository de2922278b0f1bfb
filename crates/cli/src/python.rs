//! Which Python runs the loaders.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The first of: the flag or `FOREBAY_PYTHON` (`named`), the environments in `folders` that exist,
/// the active virtual environment, `python3`.
pub(crate) fn find(named: Option<&Path>, folders: &[&Path]) -> PathBuf {
    choose(named, folders, env::var_os("VIRTUAL_ENV"))
}

fn choose(named: Option<&Path>, folders: &[&Path], active: Option<OsString>) -> PathBuf {
    if let Some(named) = named {
        return named.to_owned();
    }
    let made = folders.iter().map(|folder| folder.join("bin/python")).find(|python| python.exists());
    made.or_else(|| active.map(|folder| Path::new(&folder).join("bin/python")))
        .unwrap_or_else(|| PathBuf::from("python3"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_wins_then_what_exists_then_what_is_active() {
        let folder = tempfile::tempdir().unwrap();
        let absent = Path::new("/nonexistent");
        let active = Some(OsString::from("/venv"));
        assert_eq!(choose(Some(Path::new("py")), &[folder.path()], active.clone()), Path::new("py"));
        assert_eq!(choose(None, &[absent], active.clone()), Path::new("/venv/bin/python"));
        assert_eq!(choose(None, &[absent], None), Path::new("python3"));
        std::fs::create_dir(folder.path().join("bin")).unwrap();
        std::fs::write(folder.path().join("bin/python"), "").unwrap();
        assert_eq!(choose(None, &[folder.path()], active), folder.path().join("bin/python"));
    }
}
