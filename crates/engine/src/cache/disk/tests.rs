//! What is written is read or forgotten, and never wrong; the limit holds.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::*;

const SAMPLES: u64 = 40;
/// Of the segment's header and of a record's.
const START: u64 = segment::START;
const HEADER: u64 = segment::HEADER;

fn name(at: u8) -> String {
    format!("{at:032x}")
}

fn bytes(set: u8, sample: u64) -> Vec<u8> {
    (0..200 + 3 * sample).map(|i| (i * 7 + sample * 31) as u8 ^ set).collect()
}

fn open(dir: &Path, limit: u64) -> Disk {
    Disk::open(&DiskConfig { dir: dir.into(), bytes: limit }).expect("a disk")
}

fn get(disk: &Disk, set: u8, sample: u64) -> io::Result<Option<Vec<u8>>> {
    let mut into = vec![9; 3];
    let size = bytes(set, sample).len() as u64;
    disk.get(&name(set), sample, size, &mut into).map(|held| held.then_some(into))
}

fn put_all(disk: &Disk, set: u8) {
    (0..SAMPLES).for_each(|sample| disk.put(&name(set), sample, &bytes(set, sample)).expect("written"));
}

/// How many samples are held; those that are must be right.
fn held(disk: &Disk, set: u8) -> u64 {
    let right = |sample: &u64| match get(disk, set, *sample) {
        Ok(Some(read)) => {
            assert_eq!(read, bytes(set, *sample), "sample {sample}");
            true
        }
        _ => false,
    };
    (0..SAMPLES).filter(right).count() as u64
}

fn segments(dir: &Path, set: u8) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir.join(name(set))).into_iter().flatten().flatten();
    let mut paths: Vec<_> =
        entries.map(|entry| entry.path()).filter(|path| !path.ends_with("used")).collect();
    paths.sort();
    paths
}

fn on_disk(dir: &Path) -> u64 {
    let sets = fs::read_dir(dir).expect("a folder").flatten().filter(|entry| entry.path().is_dir());
    let files = sets.flat_map(|set| fs::read_dir(set.path()).expect("a folder").flatten());
    files.map(|file| file.metadata().expect("a file").len()).sum()
}

/// A directory with all samples of set 1, and its only segment.
fn full() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let disk = open(dir.path(), 1 << 20);
    let _present = disk.enter(&name(1), SAMPLES).expect("entered");
    put_all(&disk, 1);
    let path = segments(dir.path(), 1).pop().expect("a segment");
    (dir, path)
}

#[test]
fn what_is_kept_survives_reopening() {
    let (dir, path) = full();
    let length = fs::metadata(&path).expect("a file").len();
    for _ in 0..3 {
        let disk = open(dir.path(), 1 << 20);
        let _present = disk.enter(&name(1), SAMPLES).expect("entered");
        assert_eq!(held(&disk, 1), SAMPLES);
        put_all(&disk, 1);
        let facts = DiskFacts { bytes: length, limit: 1 << 20, errors: 0, stopped: false };
        assert_eq!((disk.facts(), on_disk(dir.path())), (facts, length), "nothing is written twice");
    }
}

#[test]
fn a_torn_tail_is_cut_off_and_written_anew() {
    let (dir, path) = full();
    let length = fs::metadata(&path).expect("a file").len();
    File::options().write(true).open(&path).expect("a file").set_len(length - 1).expect("cut");
    let disk = open(dir.path(), 1 << 20);
    let _present = disk.enter(&name(1), SAMPLES).expect("entered");
    assert_eq!(held(&disk, 1), SAMPLES - 1);
    assert_eq!(disk.facts().bytes, length - HEADER - bytes(1, SAMPLES - 1).len() as u64);
    put_all(&disk, 1);
    assert_eq!((held(&disk, 1), disk.facts().errors, disk.facts().bytes), (SAMPLES, 0, length));
}

fn flip(path: &Path, at: u64) {
    let mut all = fs::read(path).expect("bytes");
    all[at as usize] ^= 0x10;
    fs::write(path, all).expect("written");
}

#[test]
fn a_damaged_record_is_forgotten_counted_and_heals() {
    let (dir, path) = full();
    flip(&path, START + HEADER + 5);
    {
        let disk = open(dir.path(), 1 << 20);
        let _present = disk.enter(&name(1), SAMPLES).expect("entered");
        assert!(get(&disk, 1, 0).is_err(), "told");
        assert_eq!(get(&disk, 1, 0).expect("told once"), None);
        put_all(&disk, 1);
        assert_eq!((held(&disk, 1), disk.facts().errors), (SAMPLES, 1));
    }
    let disk = open(dir.path(), 1 << 20);
    let _present = disk.enter(&name(1), SAMPLES).expect("entered");
    assert_eq!((held(&disk, 1), disk.facts().errors), (SAMPLES, 0), "the later record is the one");
}

#[test]
fn a_damaged_header_ends_its_segment() {
    for at in [0, 8, 16, 32] {
        let (dir, path) = full();
        flip(&path, START + HEADER + bytes(1, 0).len() as u64 + at);
        let disk = open(dir.path(), 1 << 20);
        let _present = disk.enter(&name(1), SAMPLES).expect("entered");
        assert_eq!(held(&disk, 1), 1, "byte {at}");
        put_all(&disk, 1);
        assert_eq!(held(&disk, 1), SAMPLES, "byte {at}");
    }
}

#[test]
fn empty_and_foreign_files_do_no_harm() {
    let (dir, path) = full();
    fs::write(path.with_file_name("000001.segment"), b"").expect("written");
    fs::write(path.with_file_name("000002.segment"), [7; 500]).expect("written");
    let note = path.with_file_name("note.txt");
    fs::write(&note, b"mine").expect("written");
    let other = dir.path().join("photos");
    fs::create_dir(&other).expect("made");
    fs::write(other.join("000000.segment"), b"mine too").expect("written");
    let disk = open(dir.path(), 1 << 20);
    let present = disk.enter(&name(1), SAMPLES).expect("entered");
    assert_eq!(held(&disk, 1), SAMPLES);
    assert_eq!(disk.facts().bytes, fs::metadata(&path).expect("a file").len());
    drop((present, disk));
    drop(open(dir.path(), 1));
    assert!(!path.exists() && note.exists() && other.join("000000.segment").exists(), "only ours goes");
}

#[test]
fn a_segment_of_another_dataset_is_not_believed() {
    let (dir, path) = full();
    fs::create_dir(dir.path().join(name(2))).expect("made");
    fs::copy(&path, dir.path().join(name(2)).join("000000.segment")).expect("copied");
    let disk = open(dir.path(), 1 << 20);
    let _present = disk.enter(&name(2), SAMPLES).expect("entered");
    assert_eq!((held(&disk, 2), disk.facts().errors), (0, SAMPLES));
}

#[test]
fn a_newer_version_is_named() {
    let (dir, path) = full();
    let mut all = fs::read(&path).expect("bytes");
    all[..START as usize].copy_from_slice(&segment::start(9));
    fs::write(&path, all).expect("written");
    let disk = open(dir.path(), 1 << 20);
    let error = disk.enter(&name(1), SAMPLES).expect_err("too new");
    assert!(matches!(error, Error::Newer { found: 9, known: 1, .. }), "{error}");
    assert!(error.to_string().contains("upgrade Forebay or delete the file"));
}

#[test]
fn the_limit_holds_and_what_is_present_stays() {
    for limit in [0, 1, START + HEADER + 199, START + HEADER + 200, 3000, 7000] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let disk = open(dir.path(), limit);
        let _present = [1, 2].map(|set| disk.enter(&name(set), SAMPLES).expect("entered"));
        put_all(&disk, 1);
        let first = held(&disk, 1);
        put_all(&disk, 2);
        assert_eq!(held(&disk, 1), first, "nothing goes for another");
        assert_eq!(first > 0, limit >= START + HEADER + 200);
        assert!(disk.facts().bytes <= limit && on_disk(dir.path()) == disk.facts().bytes);
        assert_eq!(disk.facts().errors, 0, "to be full is no error");
    }
}

#[test]
fn datasets_used_longest_ago_go_first_and_whole() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let size = {
        let disk = open(dir.path(), 1 << 20);
        for set in [1, 2, 3] {
            let _present = disk.enter(&name(set), SAMPLES).expect("entered");
            put_all(&disk, set);
        }
        disk.facts().bytes / 3
    };
    // By the times that are noted, not by names.
    for (set, days) in [(1, 1), (2, 3), (3, 2)] {
        let used = File::options().write(true).open(dir.path().join(name(set)).join("used")).expect("noted");
        used.set_modified(SystemTime::now() - Duration::from_secs(86400 * days)).expect("set");
    }
    let disk = open(dir.path(), 3 * size);
    let has = |set| !segments(dir.path(), set).is_empty();
    let present = disk.enter(&name(4), SAMPLES).expect("entered");
    disk.put(&name(4), 0, &bytes(4, 0)).expect("written");
    assert_eq!([1, 2, 3].map(has), [true, false, true]);
    put_all(&disk, 4);
    assert_eq!(([1, 2, 3].map(has), held(&disk, 4)), ([true, false, true], SAMPLES));
    let three = disk.enter(&name(3), SAMPLES).expect("entered");
    let five = disk.enter(&name(5), SAMPLES).expect("entered");
    put_all(&disk, 5);
    assert_eq!([1, 3, 4, 5].map(has), [false, true, true, true]);
    // A job that leaves makes room; a dataset that went can come back.
    drop((three, present, five));
    let _again = disk.enter(&name(2), SAMPLES).expect("entered");
    put_all(&disk, 2);
    assert_eq!((held(&disk, 2), [3, 4, 5].map(has)), (SAMPLES, [false, true, true]));
    assert!(disk.facts().bytes <= 3 * size && on_disk(dir.path()) == disk.facts().bytes);
}

#[test]
fn a_second_process_is_refused_until_the_first_has_gone() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let config = DiskConfig { dir: dir.path().into(), bytes: 1 << 20 };
    // A lock belongs to an open file, so that one process can stand for two.
    let first = Disk::open(&config).expect("a disk");
    let error = Disk::open(&config).expect_err("taken");
    assert!(matches!(&error, Error::Taken { path } if path == dir.path()), "{error}");
    drop(first);
    Disk::open(&config).expect("free again");
}

#[test]
fn a_disk_that_cannot_be_written_stops_and_still_reads() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let disk = open(dir.path(), 1 << 20);
    let _present = [1, 2].map(|set| disk.enter(&name(set), SAMPLES).expect("entered"));
    put_all(&disk, 1);
    fs::remove_dir_all(dir.path().join(name(2))).expect("removed");
    assert!(disk.put(&name(2), 0, &bytes(2, 0)).is_err(), "told");
    put_all(&disk, 2);
    assert_eq!((held(&disk, 1), held(&disk, 2)), (SAMPLES, 0));
    let facts = disk.facts();
    assert!(facts.errors == 1 && facts.stopped, "{facts:?}");
    // A place that can be no directory is an error at once.
    let file = dir.path().join("file");
    fs::write(&file, b"").expect("written");
    let error = Disk::open(&DiskConfig { dir: file, bytes: 5 }).expect_err("no directory");
    assert!(matches!(error, Error::Io { .. }), "{error}");
}

#[test]
fn threads_may_write_at_once() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    {
        let disk = open(dir.path(), 1 << 20);
        let _present = disk.enter(&name(1), SAMPLES).expect("entered");
        std::thread::scope(|scope| (0..8).for_each(|_| _ = scope.spawn(|| put_all(&disk, 1))));
        assert_eq!(held(&disk, 1), SAMPLES);
    }
    let disk = open(dir.path(), 1 << 20);
    let _present = disk.enter(&name(1), SAMPLES).expect("entered");
    let sum: u64 = (0..SAMPLES).map(|sample| HEADER + bytes(1, sample).len() as u64).sum();
    assert_eq!((held(&disk, 1), disk.facts().bytes), (SAMPLES, START + sum), "each once");
}

proptest! {
    #[test]
    fn damage_anywhere_gives_the_right_bytes_or_none(
        hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
        late in any::<bool>(),
    ) {
        let (dir, path) = full();
        let damage = || {
            let mut all = fs::read(&path).expect("bytes");
            for (at, byte) in &hits {
                let at = at.index(all.len());
                all[at] = *byte;
            }
            if let Some(cut) = &cut {
                all.truncate(cut.index(all.len()));
            }
            fs::write(&path, &all).expect("written");
        };
        if !late {
            damage();
        }
        {
            let disk = open(dir.path(), 1 << 20);
            let _present = disk.enter(&name(1), SAMPLES).expect("entered");
            if late {
                // Under a process that has found its records already.
                damage();
            }
            // What is held is right: `held` looks.
            held(&disk, 1);
            put_all(&disk, 1);
            prop_assert_eq!(held(&disk, 1), SAMPLES, "it heals");
            prop_assert!(!disk.facts().stopped);
        }
        let disk = open(dir.path(), 1 << 20);
        let _present = disk.enter(&name(1), SAMPLES).expect("entered");
        held(&disk, 1);
        put_all(&disk, 1);
        prop_assert_eq!(held(&disk, 1), SAMPLES, "after a restart too");
        prop_assert!(on_disk(dir.path()) <= disk.facts().bytes);
    }
}
