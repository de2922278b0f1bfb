//! Folders of real JPEGs, and what the tests of the pipeline do with them.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_engine::Error;
use forebay_engine::batch::Batch;
use forebay_engine::decode::jpeg::{Subsampling, encode};
use forebay_engine::pipeline::{Job, Next, OnError, Remainder, Spec};
use forebay_engine::storage::{Dataset, Folder};
use forebay_policy::{Picks, Received};
use forebay_recipe::{Output, Recipe};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

const RECIPE: &str = r#"{"steps": [
    {"op": "random_resized_crop", "height": 16, "width": 16, "scale": [0.2, 1.0], "ratio": [0.75, 1.3]},
    {"op": "random_horizontal_flip", "p": 0.5},
    {"op": "to_float", "scale": true}]}"#;
const LONGEST: Duration = Duration::from_secs(60);

/// A job of its own: keyed order, failures told.
pub(crate) fn spec(folder: Arc<Folder>, batch: u64) -> Spec {
    Spec {
        dataset: dataset(folder),
        picks: Picks::All,
        recipe: Recipe::from_json(RECIPE).expect("a recipe"),
        output: Output::default(),
        batch,
        remainder: Remainder::Pad,
        rank: 0,
        ranks: 1,
        group: String::new(),
        late: 0,
        seed: 5,
        shuffle: true,
        on_error: OnError::Raise,
        ragged: false,
        lend: false,
        share: None,
    }
}

/// One folder as a dataset.
pub(crate) fn dataset(folder: Arc<Folder>) -> Arc<Dataset> {
    Arc::new(Dataset::build(vec![folder]).expect("one folder"))
}

/// What `drop_last` means.
pub(crate) fn remainder(drop_last: bool) -> Remainder {
    if drop_last { Remainder::Drop } else { Remainder::Pad }
}

/// A folder of `n` small JPEGs in two classes; folders of one size are made once.
pub(crate) fn folder(n: usize) -> Arc<Folder> {
    made(&format!("{n}"), |dir| (0..n).for_each(|i| write_image(dir, i)))
}

/// A folder of pictures with so many crops that two copies of one are never equal by chance: of
/// [`folder`]'s, one pair in some thousand is.
pub(crate) fn detailed(n: usize) -> Arc<Folder> {
    made(&format!("detailed{n}"), |dir| (0..n).for_each(|i| write_sized(dir, i, 160 + i % 13, 120 + i % 7)))
}

fn made(name: &str, fill: impl Fn(&Path)) -> Arc<Folder> {
    static ROOT: OnceLock<tempfile::TempDir> = OnceLock::new();
    let root = ROOT.get_or_init(|| tempfile::tempdir().expect("a temporary folder")).path();
    let dir = root.join(name);
    if !dir.exists() {
        let fresh = root.join(format!("{name}.{:?}", std::thread::current().id()));
        fill(&fresh);
        // Another test may have been faster.
        let _ = std::fs::rename(&fresh, &dir);
    }
    open(&dir)
}

pub(crate) fn write_image(dir: &Path, i: usize) {
    write_sized(dir, i, 20 + i % 13, 18 + i % 7);
}

fn write_sized(dir: &Path, i: usize, w: usize, h: usize) {
    let class = dir.join(format!("class{}", i % 2));
    std::fs::create_dir_all(&class).expect("a folder");
    let rgb: Vec<u8> = (0..w * h * 3).map(|b| (b * 7 + b * b / 97 + i * 31) as u8).collect();
    let bytes = encode(&rgb, w, h, 80, Subsampling::S420).expect("a JPEG");
    std::fs::write(class.join(format!("{i:04}.jpg")), bytes).expect("written");
}

pub(crate) fn open(dir: &Path) -> Arc<Folder> {
    Arc::new(Folder::open(dir, 2, &|_| ()).expect("a dataset"))
}

/// The next batch; `None` at the end; a test that waits a minute has hung.
pub(crate) fn next(job: &mut Job) -> Result<Option<Batch>, Error> {
    match job.next(LONGEST)? {
        Next::Batch(batch) => Ok(Some(*batch)),
        Next::End => Ok(None),
        Next::Waiting => panic!("nothing arrived in {LONGEST:?}"),
        Next::Hungry => panic!("nothing was fed"),
    }
}

pub(crate) fn epoch(job: &mut Job, number: u64, received: &Received) -> Vec<Batch> {
    job.start(number, received).expect("started");
    std::iter::from_fn(|| next(job).expect("a batch")).collect()
}

/// Sample and finished bytes of every row.
pub(crate) fn rows(batches: &[Batch]) -> Vec<(u64, Vec<u8>)> {
    let row = 16 * 16 * 3 * 4;
    let rows = |b: &Batch| {
        let bytes = b.lease.bytes().chunks_exact(row).map(<[u8]>::to_vec);
        b.samples.iter().copied().zip(bytes).collect::<Vec<_>>()
    };
    batches.iter().flat_map(rows).collect()
}

/// Checks a property `often` times, ten times as often in the long tests. A case takes milliseconds, so
/// that `PROPTEST_CASES`, made for cheaper ones, does not count here.
pub(crate) fn check<S: Strategy>(
    often: u32,
    values: S,
    property: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    let long = std::env::var("FOREBAY_TEST_LONG").is_ok_and(|value| value == "1");
    let cases = if long { 10 * often } else { often };
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    if let Err(error) = runner.run(&values, property) {
        panic!("{error}");
    }
}
