//! What was measured of a machine, its storage and its streams: a readable file with a version.
//!
//! [`Profile`] is plain data in JSON. `forebay profile` writes it, `forebay plan` reads it. A figure that was not
//! measured is absent and does not bind. Times are core-seconds for one sample, sizes are mean bytes.

use serde::{Deserialize, Serialize};

use super::{Job, Load, Machine};

/// The version that this code writes; it reads no newer one.
pub const VERSION: u32 = 1;

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Of this format.
    pub version: u32,
    /// The machine.
    pub machine: Facts,
    /// Storage when the page cache has nothing, and when it has everything.
    pub storage: Storage,
    /// Each dataset with a recipe.
    pub streams: Vec<Stream>,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// What to call it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Cores that loading may use.
    pub cores: f64,
    /// Bytes that loading may use: the budget in force when it was measured.
    pub memory: u64,
    /// Bytes per second that one core copies in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes_per_s: Option<f64>,
    /// Bytes per second to and from what is kept, by all cores together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_bytes_per_s: Option<f64>,
}

/// The same storage in two states.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Storage {
    /// Nothing in the page cache.
    pub cold: Store,
    /// All that is read in the page cache.
    pub warm: Store,
}

/// What storage gives.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Store {
    /// Bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
    /// Reads per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_s: Option<f64>,
}

/// A dataset with a recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Its path or name.
    pub dataset: String,
    /// The recipe in words or as its fingerprint.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub recipe: String,
    /// Samples of the dataset, not only those measured.
    pub samples: u64,
    /// Mean bytes as stored.
    pub encoded_bytes: f64,
    /// Mean bytes of the decoded form; 0: there is none to keep.
    pub decoded_bytes: f64,
    /// Mean bytes of a copy; 0: no random steps.
    pub augmented_bytes: f64,
    /// Core-seconds of a read from storage.
    pub read_s: f64,
    /// Core-seconds of the decoder.
    pub decode_s: f64,
    /// Steps between decoder and finish, in their order.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// Core-seconds of finish and hand-over.
    pub finish_s: f64,
    /// Part of the draws that follow each job's own order.
    #[serde(default = "default_mixing")]
    pub mixing: f64,
    /// Samples per second that a job can use; absent: as many as there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand: Option<f64>,
}

/// One step of a recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// As the recipe calls it.
    pub name: String,
    /// The form it belongs to.
    pub form: Form,
    /// Core-seconds.
    pub seconds: f64,
}

/// The form that a step works towards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// A deterministic step before any random one.
    Decoded,
    /// A random step, or one behind it.
    Augmented,
}

/// Why a file is no profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// It was written by a newer program.
    #[error(
        "the profile has version {found}, this program reads up to {VERSION}: use a newer forebay, or make the \
         profile again with `forebay profile`"
    )]
    Version {
        /// In the file.
        found: u32,
    },
    /// It is not JSON of this shape.
    #[error("not a profile: make one with `forebay profile`")]
    Json(#[from] serde_json::Error),
    /// There is no stream in it.
    #[error("the profile has no streams: name a dataset when you run `forebay profile`")]
    Empty,
}

impl Profile {
    /// Reads a file's text. The version is looked at first, so that a newer file is called newer, not broken.
    pub fn from_json(text: &str) -> Result<Self, ProfileError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = serde_json::from_str(text)?;
        if version > VERSION {
            return Err(ProfileError::Version { found: version });
        }
        let profile: Profile = serde_json::from_str(text)?;
        if profile.streams.is_empty() { Err(ProfileError::Empty) } else { Ok(profile) }
    }

    /// A file's text.
    pub fn to_json(&self) -> Result<String, ProfileError> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// What the machine has with so many bytes, before or after the page cache is full.
    pub fn machine(&self, memory: u64, cold: bool) -> Machine {
        let store = if cold { self.storage.cold } else { self.storage.warm };
        let open = |value: Option<f64>| value.unwrap_or(f64::INFINITY);
        Machine {
            cores: self.machine.cores,
            memory,
            storage_bytes: open(store.bytes_per_s),
            storage_requests: open(store.requests_per_s),
            link_bytes: open(self.machine.link_bytes_per_s),
        }
    }

    /// The first stream with these jobs.
    pub fn load(&self, jobs: Vec<Job>) -> Result<Load, ProfileError> {
        self.streams.first().map(|stream| stream.load(jobs)).ok_or(ProfileError::Empty)
    }

    /// Every stream with so many equal jobs of its own.
    pub fn loads(&self, jobs: usize) -> Vec<Load> {
        self.streams.iter().map(|stream| stream.load(vec![stream.job(); jobs])).collect()
    }
}

impl Stream {
    /// What it costs, with these jobs.
    pub fn load(&self, jobs: Vec<Job>) -> Load {
        let steps = |form| self.steps.iter().filter(move |step| step.form == form).map(|step| step.seconds);
        Load {
            samples: self.samples,
            encoded: self.encoded_bytes,
            decoded: self.decoded_bytes,
            augmented: self.augmented_bytes,
            read_s: self.read_s,
            decode_s: self.decode_s + steps(Form::Decoded).sum::<f64>(),
            augment_s: steps(Form::Augmented).sum(),
            mixing: self.mixing,
            jobs,
        }
    }

    /// A job that shares copies and can use what the profile says.
    pub fn job(&self) -> Job {
        Job { demand: self.demand, finish_s: self.finish_s, ..Job::default() }
    }
}

fn default_mixing() -> f64 {
    0.1
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{
      "version": 1,
      "machine": {"name": "small", "cores": 4, "memory": 8000000000, "link_bytes_per_s": 1e10},
      "storage": {"cold": {"bytes_per_s": 2e8, "requests_per_s": 500}},
      "streams": [{
        "dataset": "/data/pictures", "recipe": "crop, flip", "samples": 10000,
        "encoded_bytes": 100000, "decoded_bytes": 600000, "augmented_bytes": 150528,
        "read_s": 0.0001, "decode_s": 0.002,
        "steps": [
          {"name": "resize", "form": "decoded", "seconds": 0.001},
          {"name": "random_crop", "form": "augmented", "seconds": 0.0004},
          {"name": "flip", "form": "augmented", "seconds": 0.0001}
        ],
        "finish_s": 0.0002, "demand": 900
      }]
    }"#;

    #[test]
    fn a_profile_gives_machines_and_loads() {
        let profile = Profile::from_json(TEXT).expect("sound");
        let cold = profile.machine(1 << 30, true);
        assert_eq!((cold.cores, cold.memory, cold.storage_requests), (4.0, 1 << 30, 500.0));
        assert_eq!(profile.machine(1, false).storage_bytes, f64::INFINITY);
        let load = profile.load(vec![profile.streams[0].job(); 2]).expect("one stream");
        assert!((load.decode_s - 0.003).abs() < 1e-12 && (load.augment_s - 0.0005).abs() < 1e-12);
        assert_eq!((load.jobs[1].demand, load.jobs[1].finish_s, load.mixing), (Some(900.0), 0.0002, 0.1));
        assert_eq!(profile.loads(3)[0].jobs.len(), 3);
    }

    #[test]
    fn what_is_written_is_read() {
        let profile = Profile::from_json(TEXT).expect("sound");
        let text = profile.to_json().expect("JSON");
        assert_eq!(Profile::from_json(&text).expect("its own"), profile);
        assert!(!text.contains("null"), "{text}");
    }

    #[test]
    fn a_newer_version_is_named_before_anything_else() {
        let newer = TEXT.replace("\"version\": 1", "\"version\": 7, \"colour\": 3");
        let error = Profile::from_json(&newer).expect_err("newer");
        assert!(matches!(error, ProfileError::Version { found: 7 }), "{error}");
        assert!(error.to_string().contains("newer forebay"), "{error}");
    }

    #[test]
    fn unknown_fields_and_empty_profiles_are_refused() {
        let unknown = TEXT.replace("\"recipe\"", "\"receipt\"");
        assert!(matches!(Profile::from_json(&unknown), Err(ProfileError::Json(_))));
        let start = TEXT.find("\"streams\"").expect("there");
        let empty = format!("{}\"streams\": []}}", &TEXT[..start]);
        assert!(matches!(Profile::from_json(&empty), Err(ProfileError::Empty)));
    }

    #[test]
    fn a_machine_without_limits_is_written_without_them() {
        let profile = Profile::from_json(TEXT).expect("sound");
        let machine = Machine { link_bytes: f64::INFINITY, ..profile.machine(5, true) };
        let text = serde_json::to_string(&machine).expect("JSON");
        assert!(!text.contains("link_bytes"), "{text}");
        assert_eq!(serde_json::from_str::<Machine>(&text).expect("its own"), machine);
    }
}
