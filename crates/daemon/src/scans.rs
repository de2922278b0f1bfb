//! Folders that are being opened: each by one thread at a time, the others find its index.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use forebay_engine::Error;
use forebay_engine::storage::Folder;

#[derive(Debug, Default)]
pub(crate) struct Scans(Mutex<HashMap<PathBuf, Arc<Mutex<()>>>>);

impl Scans {
    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Arc<Mutex<()>>>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Whether one is being opened.
    pub(crate) fn any(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Opens a folder, after whoever is doing so. A scan goes on when its client is gone: the next one asks
    /// for the same.
    pub(crate) fn open(&self, root: &Path, threads: usize) -> Result<Folder, Error> {
        let turn = Some(self.lock().entry(root.to_path_buf()).or_default().clone());
        let place = Place { scans: self, root, turn };
        let _turn = place.turn.as_ref().map(|turn| turn.lock().unwrap_or_else(|e| e.into_inner()));
        Folder::open(root, threads, &|_| ())
    }
}

/// Who opens a folder or waits for it; the last takes it off the list, however it ends.
struct Place<'a> {
    scans: &'a Scans,
    root: &'a Path,
    turn: Option<Arc<Mutex<()>>>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut all = self.scans.lock();
        drop(self.turn.take());
        if all.get(self.root).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            all.remove(self.root);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_on_the_list_while_somebody_opens_it() {
        let scans = Scans::default();
        let (folder, other) = (Path::new("/nonexistent/a"), Path::new("/nonexistent/b"));
        assert!(scans.open(folder, 1).is_err() && !scans.any());
        let turn = Arc::new(Mutex::new(()));
        scans.lock().insert(folder.to_path_buf(), turn.clone());
        let held = turn.lock().unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| scans.open(folder, 1).is_err());
            while Arc::strong_count(&turn) < 3 {
                std::thread::yield_now();
            }
            // Another folder does not wait.
            assert!(scans.open(other, 1).is_err() && scans.any());
            assert!(!second.is_finished());
            drop(held);
            assert!(second.join().unwrap());
        });
        drop(turn);
        assert!(scans.open(folder, 1).is_err() && !scans.any());
    }
}
