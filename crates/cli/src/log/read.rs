//! Reading an order log line by line, with resumes resolved.
//!
//! A `begin` line takes back what was logged at its place or after it, so only the rest of the file says
//! whether a batch counts. Hence two passes: `Reader::open` notes the `begin` lines, `Reader::entries` leaves
//! out what a later one takes back. Places are pairs of epoch and step and compare as such: a batch counts when
//! its place is before that of every later `begin`. What counts is therefore in order, and anything else is damage.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Take};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::hint::Hinted;

/// The newest version of the format that is understood.
const VERSION: u64 = 1;
/// Bytes of the longest line.
const LONGEST: u64 = 64_000_000;

/// Epoch and step.
pub(super) type Place = (u64, u64);

/// A line that no loader writes.
#[derive(Debug)]
pub(super) struct Damaged {
    file: PathBuf,
    line: u64,
    what: String,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}: {}", self.file.display(), self.line, self.what)
    }
}

impl std::error::Error for Damaged {}

/// One batch; what the file leaves out is filled in.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Batch {
    pub(super) epoch: u64,
    pub(super) step: u64,
    pub(super) seed: u64,
    pub(super) generation: u64,
    pub(super) samples: Vec<u64>,
    /// What is added to `generation` for each sample.
    pub(super) copies: Vec<u64>,
    pub(super) occurrences: Vec<u64>,
    /// Indices of samples that are repeated, padded or stand in for others.
    pub(super) invalid: Vec<u64>,
}

impl Batch {
    pub(super) fn place(&self) -> Place {
        (self.epoch, self.step)
    }

    /// For each sample, whether it is invalid.
    pub(super) fn marks(&self) -> Vec<bool> {
        let mut marks = vec![false; self.samples.len()];
        self.invalid.iter().for_each(|index| marks[*index as usize] = true);
        marks
    }

    /// The samples that stand for themselves.
    pub(super) fn valid(&self) -> impl Iterator<Item = u64> {
        self.samples.iter().zip(self.marks()).filter(|(_, invalid)| !invalid).map(|(sample, _)| *sample)
    }
}

/// What a line says.
#[derive(Debug, PartialEq)]
pub(super) enum Entry {
    /// Iteration begins or goes on here.
    Begin(Place),
    Batch(Batch),
    /// The epoch was received whole.
    End(u64),
}

/// All keys of all lines after the header; those that are there say which line it is.
#[derive(Deserialize)]
struct Line {
    begin: Option<u64>,
    end: Option<u64>,
    epoch: Option<u64>,
    step: Option<u64>,
    seed: Option<u64>,
    generation: Option<u64>,
    samples: Option<Vec<u64>>,
    copies: Option<Vec<u64>>,
    occurrences: Option<Vec<u64>>,
    invalid: Option<Vec<u64>>,
}

impl Line {
    fn entry(self) -> Result<Entry, String> {
        match (self.begin, self.epoch, self.end) {
            (Some(epoch), None, None) => Ok(Entry::Begin((epoch, wanted("step", self.step)?))),
            (None, Some(epoch), None) => self.batch(epoch).map(Entry::Batch),
            (None, None, Some(epoch)) => Ok(Entry::End(epoch)),
            _ => Err("not one of begin, batch and end".into()),
        }
    }

    fn batch(self, epoch: u64) -> Result<Batch, String> {
        let samples = wanted("samples", self.samples)?;
        let count = samples.len();
        let each = |key: &str, list: Option<Vec<u64>>| match list {
            Some(list) if list.len() != count => Err(format!("{count} samples but {} {key}", list.len())),
            list => Ok(list.unwrap_or_else(|| vec![0; count])),
        };
        let (copies, occurrences) = (each("copies", self.copies)?, each("occurrences", self.occurrences)?);
        let invalid = self.invalid.unwrap_or_default();
        if let Some(index) = invalid.iter().find(|index| **index >= count as u64) {
            return Err(format!("{count} samples but index {index} is invalid"));
        }
        let (step, seed) = (wanted("step", self.step)?, wanted("seed", self.seed)?);
        let generation = wanted("generation", self.generation)?;
        Ok(Batch { epoch, step, seed, generation, samples, copies, occurrences, invalid })
    }
}

fn wanted<T>(key: &str, value: Option<T>) -> Result<T, String> {
    value.ok_or_else(|| format!("no {key}"))
}

/// Lines of a file, as far as they are whole.
struct Lines<'a> {
    path: &'a Path,
    reader: BufReader<Take<&'a File>>,
    text: Vec<u8>,
    line: u64,
    bytes: u64,
}

impl<'a> Lines<'a> {
    fn new(path: &'a Path, file: &'a File, bytes: u64) -> Self {
        Self { path, reader: BufReader::new(file.take(bytes)), text: Vec::new(), line: 0, bytes: 0 }
    }

    fn damaged(&self, what: impl Into<String>) -> Damaged {
        Damaged { file: self.path.to_owned(), line: self.line, what: what.into() }
    }

    /// The next line. One that a killed process left unfinished is none.
    fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        self.text.clear();
        self.line += 1;
        let read = (&mut self.reader).take(LONGEST + 1).read_until(b'\n', &mut self.text);
        let read = read.with_context(|| format!("cannot read {}", self.path.display()))? as u64;
        self.bytes += read;
        if read == 0 {
            return Ok(None);
        }
        if read > LONGEST {
            bail!(self.damaged("longer than 64 MB"));
        }
        match serde_json::from_slice(&self.text) {
            Ok(value) => Ok(Some(value)),
            Err(error) if !error.is_data() && !self.text.ends_with(b"\n") => Ok(None),
            Err(error) => {
                // Its own line number is always 1, beside ours.
                let said = error.to_string();
                let said = said.split(" at line ").next().unwrap_or_default();
                bail!(self.damaged(format!("{said} (column {})", error.column())))
            }
        }
    }
}

/// An order log whose header is read.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) header: Map<String, Value>,
    path: PathBuf,
    file: File,
    /// How long the file was; its job may still be writing.
    bytes: u64,
    /// For each `begin` line, the first place that it or a later one names.
    taken: Vec<Place>,
}

impl Reader {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot read {}", path.display());
        let file = File::open(path).with_context(cannot)?;
        if !file.metadata().with_context(cannot)?.is_file() {
            let said = format!("{} is not a plain file", path.display());
            bail!(Hinted::new(said, "a log is read twice; write it to a file first"));
        }
        let mut lines = Lines::new(path, &file, u64::MAX);
        let Some(header) = lines.next::<Map<String, Value>>()? else { bail!(lines.damaged("no header")) };
        match header.get("forebay_log").and_then(Value::as_u64) {
            Some(1..=VERSION) => (),
            Some(version) if version > VERSION => {
                let said = format!("{} is an order log of version {version}", path.display());
                bail!(Hinted::new(said, format!("this Forebay reads version {VERSION}; upgrade it")));
            }
            _ => bail!(lines.damaged("not the header of an order log")),
        }
        #[derive(Deserialize)]
        struct Mark {
            begin: Option<u64>,
            step: Option<u64>,
        }
        let mut taken = Vec::new();
        while let Some(mark) = lines.next::<Mark>()? {
            if let Some(epoch) = mark.begin {
                taken.push((epoch, wanted("step", mark.step).map_err(|what| lines.damaged(what))?));
            }
        }
        for i in (1..taken.len()).rev() {
            taken[i - 1] = taken[i - 1].min(taken[i]);
        }
        let bytes = lines.bytes;
        Ok(Self { header, path: path.to_owned(), file, bytes, taken })
    }

    /// What the header says; nothing is null.
    pub(super) fn value(&self, key: &str) -> &Value {
        self.header.get(key).unwrap_or(&Value::Null)
    }

    /// Reads from the start what counts.
    pub(super) fn entries(&self) -> Result<Entries<'_>> {
        (&self.file).rewind().with_context(|| format!("cannot read {}", self.path.display()))?;
        let mut lines = Lines::new(&self.path, &self.file, self.bytes);
        lines.next::<Map<String, Value>>()?;
        Ok(Entries { lines, taken: &self.taken, next: (0, 0) })
    }
}

/// The entries of a log that no later `begin` takes back, in order.
pub(super) struct Entries<'a> {
    lines: Lines<'a>,
    /// Of the `begin` lines to come.
    taken: &'a [Place],
    /// The first place that may follow.
    next: Place,
}

impl Entries<'_> {
    pub(super) fn next(&mut self) -> Result<Option<Entry>> {
        while let Some(line) = self.lines.next::<Line>()? {
            let entry = line.entry().map_err(|what| self.lines.damaged(what))?;
            let place = match &entry {
                Entry::Begin((epoch, step)) => {
                    self.taken = self.taken.get(1..).unwrap_or_default();
                    // An epoch has begun also where all its batches are taken back.
                    if self.taken.first().is_none_or(|taken| *epoch <= taken.0) {
                        self.next = (*epoch, *step);
                        return Ok(Some(entry));
                    }
                    continue;
                }
                Entry::Batch(batch) => batch.place(),
                Entry::End(epoch) => (*epoch, u64::MAX),
            };
            if self.taken.first().is_some_and(|taken| place >= *taken) {
                continue;
            }
            if place < self.next {
                bail!(self.lines.damaged(match self.next {
                    (epoch, u64::MAX) => format!("out of order: epoch {epoch} had ended"),
                    (epoch, step) => format!("out of order: epoch {epoch} was at step {step}"),
                }));
            }
            self.next = (place.0, place.1.saturating_add(1));
            return Ok(Some(entry));
        }
        Ok(None)
    }

    /// The next batch, whatever is before it.
    pub(super) fn batch(&mut self) -> Result<Option<Batch>> {
        while let Some(entry) = self.next()? {
            if let Entry::Batch(batch) = entry {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::super::written;
    use super::*;
    use std::io::Write;

    /// Reads all; batches as places.
    fn places(path: &Path) -> Result<Vec<Place>> {
        let reader = Reader::open(path)?;
        let mut entries = reader.entries()?;
        std::iter::from_fn(|| entries.batch().transpose()).map(|batch| Ok(batch?.place())).collect()
    }

    fn batch(epoch: u64, step: u64) -> String {
        format!(r#"{{"epoch": {epoch}, "step": {step}, "seed": 1, "generation": 9, "samples": [4, 5]}}"#)
    }

    fn said(lines: &[&str]) -> String {
        let error = places(written(lines).path()).unwrap_err();
        let damaged = error.downcast_ref::<Damaged>().expect("damage");
        format!("{}: {}", damaged.line, damaged.what)
    }

    #[test]
    fn a_resume_takes_back_what_came_after_its_state() {
        let all: Vec<_> = [(0, 0), (0, 1), (0, 2), (1, 0)].iter().map(|(e, s)| batch(*e, *s)).collect();
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| all[i].as_str());
        let begin = r#"{"begin": 0, "step": 0}"#;
        let (next, end) = (r#"{"begin": 1, "step": 0}"#, r#"{"end": 0}"#);
        let back = r#"{"begin": 0, "step": 1}"#;
        let log = written(&[begin, a, b, c, end, next, d, back, b]);
        assert_eq!(places(log.path()).unwrap(), [(0, 0), (0, 1)]);
        let reader = Reader::open(log.path()).unwrap();
        let mut entries = reader.entries().unwrap();
        let left = std::iter::from_fn(|| entries.next().unwrap());
        let counts = |entry: &Entry| !matches!(entry, Entry::Batch(_));
        assert_eq!(left.filter(counts).collect::<Vec<_>>(), [Entry::Begin((0, 0)), Entry::Begin((0, 1))]);
        assert_eq!(places(written(&[begin, a, b, begin, a]).path()).unwrap(), [(0, 0)]);
    }

    #[test]
    fn an_unfinished_last_line_is_ignored_and_a_whole_one_counts() {
        let mut log = written(&[&batch(0, 0)]);
        let mut file = log.as_file().try_clone().unwrap();
        file.seek(std::io::SeekFrom::End(0)).unwrap();
        let next = batch(0, 1);
        file.write_all(&next.as_bytes()[..20]).unwrap();
        assert_eq!(places(log.path()).unwrap(), [(0, 0)]);
        file.write_all(&next.as_bytes()[20..]).unwrap();
        assert_eq!(places(log.path()).unwrap(), [(0, 0), (0, 1)]);
        // The same line with another after it is damage.
        log = written(&[&next[..20], &next]);
        assert!(places(log.path()).unwrap_err().to_string().contains("line 2: EOF while parsing"));
    }

    #[test]
    fn damage_is_named_by_line() {
        let good = batch(0, 0);
        assert_eq!(said(&[&good, ""]), "3: EOF while parsing a value (column 0)");
        assert_eq!(said(&[&good, r#"{"what": 1}"#]), "3: not one of begin, batch and end");
        assert_eq!(said(&[r#"{"begin": 1}"#]), "2: no step");
        assert_eq!(said(&[r#"{"epoch": 1, "step": 1}"#]), "2: no samples");
        assert_eq!(said(&[&good, &good]), "3: out of order: epoch 0 was at step 1");
        assert_eq!(said(&[r#"{"end": 0}"#, &good]), "3: out of order: epoch 0 had ended");
        let with = |more: &str| said(&[&good.replace('}', more)]);
        assert_eq!(with(r#", "copies": [1]}"#), "2: 2 samples but 1 copies");
        assert_eq!(with(r#", "occurrences": []}"#), "2: 2 samples but 0 occurrences");
        assert_eq!(with(r#", "invalid": [2]}"#), "2: 2 samples but index 2 is invalid");
        assert!(with(r#", "copies": [-1, 0]}"#).contains("invalid value"));
    }

    #[test]
    fn a_line_too_long_for_memory_is_refused() {
        let log = written(&[]);
        log.as_file().set_len(2 * LONGEST).unwrap();
        assert!(places(log.path()).unwrap_err().to_string().ends_with("line 2: longer than 64 MB"));
    }

    #[test]
    fn only_a_header_of_this_version_opens() {
        let open = |text: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), text).unwrap();
            crate::hint::render(&Reader::open(file.path()).unwrap_err())
        };
        assert!(open("").ends_with("line 1: no header\n"));
        assert!(open(r#"{"forebay_log": 1, "data"#).ends_with("line 1: no header\n"));
        assert!(open("{}\n").ends_with("line 1: not the header of an order log\n"));
        assert!(open("[1]\n").contains("line 1: invalid type"));
        assert!(open("{\"forebay_log\": 2}\n").ends_with("hint: this Forebay reads version 1; upgrade it\n"));
        let folder = tempfile::tempdir().unwrap();
        assert!(Reader::open(folder.path()).unwrap_err().to_string().ends_with("is not a plain file"));
    }
}
