//! What loading a dataset with a recipe costs on this machine: [`measure`].
//!
//! Storage is measured by the clock, work by the CPU time of the thread that does it, with all threads busy as
//! they are when jobs load. Reads are those of the engine, so they obey a throttle too. `storage` reads
//! files, `work` takes samples through the recipe, `copies` moves memory.

mod copies;
mod storage;
mod work;

use forebay_policy::plan::profile::{self as file, Profile};
use forebay_recipe::Recipe;

use crate::storage::Dataset;
use crate::{Config, Error, Result};

pub use storage::{Rate, Store};
pub use work::Work;

/// How much is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Samples that go through the recipe; a pass over storage reads at most four times as many files.
    pub samples: u64,
    /// Threads and budget that loading will have.
    pub config: Config,
    /// Which samples and which coins.
    pub seed: u64,
}

/// All that was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The dataset's folder.
    pub dataset: String,
    /// The recipe's steps by name.
    pub recipe: String,
    /// Samples of the dataset.
    pub samples: u64,
    /// Mean bytes of a file, of all of them.
    pub encoded_bytes: f64,
    /// After the pages of each file were dropped.
    pub cold: Store,
    /// With the files in the page cache.
    pub warm: Store,
    /// What the recipe costs.
    pub work: Work,
    /// Bytes per second that one thread copies in memory.
    pub copy_bytes_per_s: f64,
    /// Bytes per second that all threads together copy out of memory that is shared.
    pub link_bytes_per_s: f64,
    /// Threads and budget.
    pub config: Config,
}

/// Measures; `progress` is told what is being done and which part of all is behind it.
pub fn measure(
    dataset: &Dataset,
    recipe: &Recipe,
    options: &Options,
    progress: &(dyn Fn(&str, f64) + Sync),
) -> Result<Measured> {
    if options.samples == 0 || dataset.is_empty() {
        return Err(Error::Invalid("a profile needs at least one sample".into()));
    }
    let within = |from: f64, to: f64| move |what: &str, part: f64| progress(what, from + part * (to - from));
    let cold = storage::measure(dataset, options, false, &within(0.0, 0.4))?;
    let warm = storage::measure(dataset, options, true, &within(0.4, 0.6))?;
    let work = work::measure(dataset, recipe, options, &within(0.6, 0.95))?;
    progress("copying memory", 0.95);
    let (copy_bytes_per_s, link_bytes_per_s) = copies::measure(options.config.threads);
    progress("done", 1.0);
    let bytes: u64 = dataset.parts().iter().map(|part| part.bytes()).sum();
    Ok(Measured {
        dataset: dataset.root().display().to_string(),
        recipe: recipe.steps().iter().map(|step| step.name()).collect::<Vec<_>>().join(", "),
        samples: dataset.len(),
        encoded_bytes: bytes as f64 / dataset.len() as f64,
        cold,
        warm,
        work,
        copy_bytes_per_s,
        link_bytes_per_s,
        config: options.config.clone(),
    })
}

impl Measured {
    /// What a plan is made of. `demand` is samples per second that a job can use.
    pub fn profile(&self, name: String, demand: Option<f64>) -> Profile {
        let store = |store: &Store| file::Store {
            bytes_per_s: Some(store.best().bytes_per_s),
            requests_per_s: Some(store.best().requests_per_s),
        };
        let work = &self.work;
        let stream = file::Stream {
            dataset: self.dataset.clone(),
            recipe: self.recipe.clone(),
            samples: self.samples,
            encoded_bytes: self.encoded_bytes,
            decoded_bytes: work.decoded_bytes,
            augmented_bytes: work.augmented_bytes,
            read_s: work.read_s,
            decode_s: work.decode_s,
            steps: work.steps.clone(),
            finish_s: work.finish_s,
            mixing: 0.1,
            demand,
        };
        Profile {
            version: file::VERSION,
            machine: file::Facts {
                name,
                cores: self.config.threads as f64,
                memory: self.config.memory,
                memory_bytes_per_s: Some(self.copy_bytes_per_s),
                link_bytes_per_s: Some(self.link_bytes_per_s),
            },
            storage: file::Storage { cold: store(&self.cold), warm: store(&self.warm) },
            streams: vec![stream],
        }
    }
}

/// Gives each of `0..count` to one of `threads` threads, each with what `open` makes, until one fails or
/// `go` says no; the results of all threads.
fn share<T: Send>(
    threads: usize,
    count: u64,
    go: impl Fn() -> bool + Sync,
    open: impl Fn() -> Result<T> + Sync,
    each: impl Fn(&mut T, u64) -> Result<()> + Sync,
) -> Result<Vec<T>> {
    use std::sync::atomic::{AtomicU64, Ordering};

    let next = AtomicU64::new(0);
    let run = || {
        let mut own = open()?;
        while go() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            each(&mut own, index)?;
        }
        Ok(own)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<T>>| {
            thread.join().unwrap_or_else(|_| Err(Error::Panic("a thread of the profile".into())))
        };
        // All are joined before the first failure is told.
        threads.into_iter().map(join).collect::<Vec<_>>().into_iter().collect()
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use forebay_policy::plan::profile::Form;

    use super::*;
    use crate::decode::jpeg::{Subsampling, encode};
    use crate::storage::Folder;

    const COUNT: usize = 12;

    fn pictures(root: &Path) -> (Dataset, u64) {
        let mut sum = 0;
        for i in 0..COUNT {
            let class = root.join(format!("class{}", i % 2));
            std::fs::create_dir_all(&class).expect("a folder");
            let (w, h) = (80, 60);
            let rgb: Vec<u8> = (0..w * h * 3).map(|b| (b * 7 + b * b / 97 + i * 31) as u8).collect();
            let bytes = encode(&rgb, w, h, 80, Subsampling::S420).expect("a JPEG");
            sum += bytes.len() as u64;
            std::fs::write(class.join(format!("{i}.jpg")), bytes).expect("written");
        }
        (Dataset::from(Folder::open(root, 1, &|_| ()).expect("a dataset")), sum)
    }

    fn run(dataset: &Dataset, steps: &str, decode: &str) -> Measured {
        let text = format!(r#"{{"steps": [{steps}], "decode": "{decode}"}}"#);
        let recipe = Recipe::from_json(&text).expect("a recipe");
        let options = Options { samples: 10, config: Config::new(64 << 20, 2), seed: 4 };
        measure(dataset, &recipe, &options, &|_, _| ()).expect("measured")
    }

    const RESIZE: &str = r#"{"op": "resize", "to": {"height": 30, "width": 40}, "filter": "bilinear"}"#;
    const RANDOM: &str = r#"{"op": "random_crop", "height": 16, "width": 20},
        {"op": "random_horizontal_flip", "p": 0.5}, {"op": "to_float", "scale": true}"#;

    #[test]
    fn sizes_are_right_and_all_costs_positive() {
        let dir = tempfile::tempdir().expect("a folder");
        let (dataset, bytes) = pictures(dir.path());
        let measured = run(&dataset, &format!("{RESIZE}, {RANDOM}"), "exact");
        assert_eq!(measured.samples, COUNT as u64);
        assert_eq!(measured.encoded_bytes, bytes as f64 / COUNT as f64);
        let work = &measured.work;
        assert_eq!((work.samples, work.decoded_bytes, work.augmented_bytes), (10, 3600.0, 960.0));
        let rates = measured.cold.rates.iter().chain(&measured.warm.rates);
        assert!(rates.into_iter().all(|rate| rate.bytes_per_s > 0.0 && rate.requests_per_s > 0.0));
        for seconds in [work.read_s, work.decode_s, work.decode_whole_s, work.finish_s] {
            assert!(seconds > 0.0, "{work:?}");
        }
        let forms: Vec<_> = work.steps.iter().map(|step| (step.name.as_str(), step.form)).collect();
        let expected = [
            ("resize", Form::Decoded),
            ("random_crop", Form::Augmented),
            ("random_horizontal_flip", Form::Augmented),
        ];
        assert_eq!(forms, expected);
        for form in [Form::Decoded, Form::Augmented] {
            let sum: f64 = work.steps.iter().filter(|step| step.form == form).map(|step| step.seconds).sum();
            assert!(sum > 0.0, "{work:?}");
        }
        assert!(measured.copy_bytes_per_s > 0.0 && measured.link_bytes_per_s > 0.0);
        let profile = measured.profile("here".into(), Some(5.0));
        let text = profile.to_json().expect("JSON");
        let again = Profile::from_json(&text).expect("its own");
        assert_eq!((again.streams[0].samples, again.streams[0].demand), (COUNT as u64, Some(5.0)));
    }

    #[test]
    fn forms_that_are_not_there_have_no_bytes() {
        let dir = tempfile::tempdir().expect("a folder");
        let (dataset, _) = pictures(dir.path());
        // A scaled decode depends on the copy, so that there is nothing to keep.
        let scaled = run(&dataset, RANDOM, "scaled").work;
        assert_eq!((scaled.decoded_bytes, scaled.augmented_bytes), (0.0, 960.0));
        assert_eq!(scaled.steps.len(), 2);
        let fixed = run(&dataset, RESIZE, "exact").work;
        assert_eq!((fixed.decoded_bytes, fixed.augmented_bytes), (3600.0, 0.0));
        assert!(fixed.steps[0].seconds > 0.0);
    }

    #[test]
    fn a_broken_file_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let (_, _) = pictures(dir.path());
        for i in 0..COUNT {
            std::fs::write(dir.path().join(format!("class{}/{i}.jpg", i % 2)), b"nothing").expect("written");
        }
        let dataset = Dataset::from(Folder::open(dir.path(), 1, &|_| ()).expect("a dataset"));
        let options = Options { samples: 3, config: Config::new(64 << 20, 1), seed: 4 };
        let recipe = Recipe::from_json(&format!(r#"{{"steps": [{RANDOM}]}}"#)).expect("a recipe");
        let failed = measure(&dataset, &recipe, &options, &|_, _| ());
        let said = failed.expect_err("nothing to decode").to_string();
        assert!(said.contains(".jpg") && said.contains("failed to"), "{said}");
        let none = Options { samples: 0, ..options };
        assert!(measure(&dataset, &recipe, &none, &|_, _| ()).is_err());
    }
}
