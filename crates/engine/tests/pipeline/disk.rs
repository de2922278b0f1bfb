//! Files on the local disk: the same pixels, read from their device once.
//!
//! Files are dropped from the system's memory before they are read. Where a file system does not do that nothing goes
//! through the disk, and what is said here holds still.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::pictures::{epoch, rows, spec, write_image};
use forebay_engine::pipeline::{Engine, Job, OnError, Spec};
use forebay_engine::storage::Folder;
use forebay_engine::{CacheMode, Config, DiskConfig};
use forebay_policy::Received;
use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;

const SAMPLES: usize = 60;

fn images() -> (TempDir, Arc<Folder>) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    (0..SAMPLES).for_each(|i| write_image(dir.path(), i));
    let folder = Folder::open(dir.path(), 1, &|_| ()).expect("a dataset");
    (dir, Arc::new(folder))
}

/// Lets the system forget the files of a dataset.
fn forget(folder: &Folder) {
    for sample in 0..folder.len() {
        let file = File::open(folder.path(sample)).expect("a file");
        file.sync_all().expect("on the device");
        fadvise(&file, 0, None, Advice::DontNeed).expect("advised");
    }
}

fn engine(dir: &Path, bytes: u64) -> Arc<Engine> {
    let disk = Some(DiskConfig { dir: dir.into(), bytes });
    let config = Config { cache: CacheMode::Off, disk, ..Config::new(64 << 20, 2) };
    Arc::new(Engine::open(config).expect("a disk"))
}

fn counted(job: &Job, name: &str) -> u64 {
    job.counters().list().into_iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| value)
}

#[test]
fn a_restart_finds_what_was_read_from_the_device() {
    let (_images, folder) = images();
    let plain = Arc::new(Engine::new(Config { cache: CacheMode::Off, ..Config::new(64 << 20, 2) }));
    let mut plain = plain.join(spec(folder.clone(), 8)).expect("joined");
    let expected = rows(&epoch(&mut plain, 0, &Received::default()));
    let (disk, mut all) = (tempfile::tempdir().expect("a temporary folder"), false);
    for start in 0..3 {
        let engine = engine(disk.path(), 1 << 30);
        let mut job = engine.join(spec(folder.clone(), 8)).expect("joined");
        forget(&folder);
        assert_eq!(rows(&epoch(&mut job, 0, &Received::default())), expected, "start {start}");
        let [hits, device, reads, errors] =
            ["disk_hits", "device_reads", "reads", "disk_errors"].map(|name| counted(&job, name));
        assert!(errors == 0 && hits + device <= reads, "{hits} hits, {device} of the device, {reads} in all");
        if all {
            assert!(device == 0 && hits > 0, "start {start}: {hits} hits, {device} of the device");
        }
        let bytes = engine.disk().bytes;
        assert!(bytes >= device * 40, "{bytes} bytes of {device} files");
        all = bytes >= folder.bytes() + 40 * folder.len();
    }
}

#[test]
fn a_full_disk_keeps_to_its_limit_and_serves() {
    let (_images, folder) = images();
    let disk = tempfile::tempdir().expect("a temporary folder");
    let limit = folder.bytes() / 2;
    let engine = engine(disk.path(), limit);
    let mut job = engine.join(spec(folder.clone(), 8)).expect("joined");
    for number in 0..3 {
        forget(&folder);
        assert_eq!(rows(&epoch(&mut job, number, &Received::default())).len(), SAMPLES);
    }
    assert!(engine.disk().bytes <= limit);
    assert_eq!(engine.disk().errors, 0);
}

#[test]
fn a_file_that_changed_is_not_served_from_the_disk() {
    let (_images, folder) = images();
    let disk = tempfile::tempdir().expect("a temporary folder");
    let engine = engine(disk.path(), 1 << 30);
    let spec = Spec { on_error: OnError::Skip, ..spec(folder.clone(), 8) };
    {
        let mut job = engine.join(spec.clone()).expect("joined");
        forget(&folder);
        assert_eq!(rows(&epoch(&mut job, 0, &Received::default())).len(), SAMPLES);
    }
    let path = folder.path(7);
    let other = std::fs::read(folder.path(8)).expect("bytes");
    std::fs::write(&path, other).expect("written");
    forget(&folder);
    let mut job = engine.join(spec).expect("joined");
    assert_eq!(rows(&epoch(&mut job, 0, &Received::default())).len(), SAMPLES - 1);
    let bad = job.quarantine().expect("open");
    assert!(bad.len() == 1 && bad[0].sample == 7 && bad[0].cause.contains("changed"), "{bad:?}");
}

#[test]
fn a_disk_that_fails_costs_no_sample() {
    let (_images, folder) = images();
    let disk = tempfile::tempdir().expect("a temporary folder");
    let engine = engine(disk.path(), 1 << 30);
    let mut job = engine.join(spec(folder.clone(), 8)).expect("joined");
    std::fs::remove_dir_all(disk.path().join(folder.identity())).expect("removed");
    forget(&folder);
    assert_eq!(rows(&epoch(&mut job, 0, &Received::default())).len(), SAMPLES);
    let facts = engine.disk();
    assert!(facts.stopped || counted(&job, "device_reads") == 0, "{facts:?}");
    assert!(counted(&job, "disk_errors") == facts.errors && facts.stopped == (facts.errors > 0), "{facts:?}");
}
