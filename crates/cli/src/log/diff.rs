//! `forebay log diff`: whether two training jobs received the same, and where they part.
//!
//! Names of copies mean the same pixels only where dataset, recipe and output are the same, so a difference in
//! these counts as one. Other keys of the header (how the order came about) are named but do not count.

use std::collections::HashSet;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::read::{Batch, Reader};
use super::{KEYS, plain};
use crate::Answer;

/// Keys without which names of copies say nothing.
const MEANING: [&str; 3] = ["dataset", "recipe", "output"];

/// Arguments of `forebay log diff`.
#[derive(Debug, Args)]
pub(super) struct Diff {
    /// One log.
    a: PathBuf,
    /// The other.
    b: PathBuf,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// How two batches differ; the first that fits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum How {
    MissingInA,
    MissingInB,
    Samples,
    Copies,
    Invalid,
    Order,
}

impl How {
    fn said(self) -> &'static str {
        match self {
            How::MissingInA => "missing in a",
            How::MissingInB => "missing in b",
            How::Samples => "other samples",
            How::Copies => "other copies of the same samples",
            How::Invalid => "the same copies, others of them invalid",
            How::Order => "the same copies in another order",
        }
    }
}

/// A key of the headers.
#[derive(Debug, Serialize)]
struct Change {
    key: &'static str,
    a: Value,
    b: Value,
}

/// The first batch that differs.
#[derive(Debug, Serialize)]
struct First {
    epoch: u64,
    step: u64,
    how: How,
    a: Option<Batch>,
    b: Option<Batch>,
}

#[derive(Debug, Default, PartialEq, Serialize)]
struct Row {
    epoch: u64,
    equal: u64,
    differ: u64,
    missing_in_a: u64,
    missing_in_b: u64,
    /// Whether the valid samples of both are the same set.
    same_samples: bool,
}

#[derive(Debug, Serialize)]
struct Outcome {
    equal: bool,
    header: Vec<Change>,
    first: Option<First>,
    epochs: Vec<Row>,
}

impl Diff {
    /// Compares; the answer is no when something differs.
    pub(super) fn run(self) -> Result<Answer> {
        let outcome = compare(&Reader::open(&self.a)?, &Reader::open(&self.b)?)?;
        if self.json {
            println!("{}", serde_json::to_string(&outcome)?);
        } else {
            print!("{}", text(&outcome));
        }
        Ok(if outcome.equal { Answer::Yes } else { Answer::No })
    }
}

fn compare(a: &Reader, b: &Reader) -> Result<Outcome> {
    let changed = |key: &&str| a.value(key) != b.value(key);
    let change = |key| Change { key, a: a.value(key).clone(), b: b.value(key).clone() };
    let header: Vec<_> = KEYS.into_iter().filter(changed).map(change).collect();
    let (mut left, mut right) = (a.entries()?, b.entries()?);
    let (mut next_a, mut next_b) = (left.batch()?, right.batch()?);
    let (mut seen_a, mut seen_b) = (HashSet::new(), HashSet::new());
    let mut epochs: Vec<Row> = Vec::new();
    let mut first = None;
    while let Some(place) = [&next_a, &next_b].into_iter().flatten().map(Batch::place).min() {
        let (epoch, step) = place;
        let a = next_a.take_if(|batch| batch.place() == place);
        let b = next_b.take_if(|batch| batch.place() == place);
        if epochs.last().is_none_or(|row| row.epoch != epoch) {
            epochs.push(Row { epoch, ..Row::default() });
            seen_a.clear();
            seen_b.clear();
        }
        if let Some(batch) = &a {
            seen_a.extend(batch.valid());
            next_a = left.batch()?;
        }
        if let Some(batch) = &b {
            seen_b.extend(batch.valid());
            next_b = right.batch()?;
        }
        let Some(row) = epochs.last_mut() else { continue };
        // Sets are compared once, when no batch of the epoch is left.
        if [&next_a, &next_b].into_iter().flatten().all(|batch| batch.epoch != epoch) {
            row.same_samples = seen_a == seen_b;
        }
        let how = how(a.as_ref(), b.as_ref());
        match how {
            None => row.equal += 1,
            Some(How::MissingInA) => row.missing_in_a += 1,
            Some(How::MissingInB) => row.missing_in_b += 1,
            Some(_) => row.differ += 1,
        }
        if let (Some(how), None) = (how, &first) {
            first = Some(First { epoch, step, how, a, b });
        }
    }
    let equal = first.is_none() && !header.iter().any(|change| MEANING.contains(&change.key));
    Ok(Outcome { equal, header, first, epochs })
}

/// Name of the copy (sample, seed, generation, occurrence), and whether it is invalid.
type Copy = (u64, u64, u64, u64, bool);

fn copies(batch: &Batch) -> Vec<Copy> {
    let marks = batch.marks();
    let copy = |i: usize| {
        let generation = batch.generation.wrapping_add(batch.copies[i]);
        (batch.samples[i], batch.seed, generation, batch.occurrences[i], marks[i])
    };
    (0..batch.samples.len()).map(copy).collect()
}

fn how(a: Option<&Batch>, b: Option<&Batch>) -> Option<How> {
    let Some(a) = a else { return Some(How::MissingInA) };
    let Some(b) = b else { return Some(How::MissingInB) };
    let (mut a, mut b) = (copies(a), copies(b));
    if a == b {
        return None;
    }
    a.sort_unstable();
    b.sort_unstable();
    let pairs = || a.iter().zip(&b);
    Some(if a.len() != b.len() || pairs().any(|(a, b)| a.0 != b.0) {
        How::Samples
    } else if pairs().any(|(a, b)| (a.1, a.2, a.3) != (b.1, b.2, b.3)) {
        How::Copies
    } else if a != b {
        How::Invalid
    } else {
        How::Order
    })
}

fn text(outcome: &Outcome) -> String {
    let mut text = String::new();
    if outcome.header.is_empty() {
        text.push_str("the headers are equal\n");
    }
    for Change { key, a, b } in &outcome.header {
        text.push_str(&format!("{key} differs\n  a  {}\n  b  {}\n", plain(a), plain(b)));
    }
    match &outcome.first {
        None if outcome.equal => text.push_str("every batch is equal\n"),
        None => text.push_str("every batch has the same names, which stand for other data\n"),
        Some(first) => {
            let First { epoch, step, how, .. } = first;
            text.push_str(&format!("epoch {epoch} step {step} is the first to differ: {}\n", how.said()));
            if let (Some(a), Some(b)) = (&first.a, &first.b) {
                let (a, b) = (copies(a), copies(b));
                let at = (0..).find(|i| a.get(*i) != b.get(*i)).unwrap_or(0);
                text.push_str(&format!("  a[{at}]  {}\n  b[{at}]  {}\n", said(a.get(at)), said(b.get(at))));
            }
        }
    }
    if outcome.epochs.is_empty() {
        text.push_str("\nno batches\n");
        return text;
    }
    let heads = ["equal", "differ", "missing in a", "missing in b", "same samples"];
    text.push_str(&format!("\nepoch{}\n", heads.map(|head| format!(" {head:>12}")).concat()));
    for row in &outcome.epochs {
        let same = if row.same_samples { "yes" } else { "no" };
        let numbers = [row.equal, row.differ, row.missing_in_a, row.missing_in_b];
        let numbers = numbers.map(|number| format!(" {number:>12}")).concat();
        text.push_str(&format!("{:>5}{numbers} {same:>12}\n", row.epoch));
    }
    text
}

fn said(copy: Option<&Copy>) -> String {
    let Some((sample, seed, generation, occurrence, invalid)) = copy else { return "no sample".into() };
    let invalid = if *invalid { ", invalid" } else { "" };
    format!("sample {sample}, seed {seed}, generation {generation}, occurrence {occurrence}{invalid}")
}

#[cfg(test)]
mod tests {
    use super::super::written;
    use super::*;

    const PLAIN: &str =
        r#"{"epoch": 0, "step": 0, "seed": 1, "generation": 18446744073709551615, "samples": [4, 9]}"#;

    fn diff(a: &[&str], b: &[&str]) -> Outcome {
        let [a, b] = [a, b].map(written);
        compare(&Reader::open(a.path()).unwrap(), &Reader::open(b.path()).unwrap()).unwrap()
    }

    fn against(more: &str) -> Option<How> {
        let other = PLAIN.replace("\"samples\": [4, 9]", more);
        diff(&[PLAIN], &[&other]).first.map(|first| first.how)
    }

    #[test]
    fn batches_differ_in_named_ways() {
        assert_eq!(against(r#""copies": [0, 0], "samples": [4, 9]"#), None);
        assert_eq!(against(r#""samples": [9, 4]"#), Some(How::Order));
        assert_eq!(against(r#""copies": [0, 1], "samples": [4, 9]"#), Some(How::Copies));
        assert_eq!(against(r#""occurrences": [0, 1], "samples": [4, 9]"#), Some(How::Copies));
        assert_eq!(against(r#""samples": [4, 9], "invalid": [0]"#), Some(How::Invalid));
        assert_eq!(against(r#""samples": [4]"#), Some(How::Samples));
        assert_eq!(diff(&[PLAIN], &[]).first.unwrap().how, How::MissingInB);
    }

    #[test]
    fn a_generation_wraps_as_the_name_of_its_copy_does() {
        let wrapped = r#"{"epoch": 0, "step": 0, "seed": 1, "generation": 1, "samples": [4, 9]}"#;
        let offset = PLAIN.replace("\"samples\"", "\"copies\": [2, 2], \"samples\"");
        assert!(diff(&[wrapped], &[&offset]).equal);
    }

    #[test]
    fn epochs_are_counted_after_resumes() {
        let batch = |step: u64, sample: u64| {
            format!(r#"{{"epoch": 2, "step": {step}, "seed": 1, "generation": 0, "samples": [{sample}]}}"#)
        };
        let [a, b, c, x] = [batch(0, 5), batch(1, 6), batch(2, 7), batch(1, 8)];
        let resumed = diff(&[&a, &b, &c], &[&a, &x, r#"{"begin": 2, "step": 1}"#, &b, &c]);
        assert!(resumed.equal && text(&resumed).contains("every batch is equal"));
        let [x, y, z] = [batch(1, 7), batch(2, 6), batch(0, 1).replace("h\": 2", "h\": 3")];
        let other = diff(&[&a, &b, &c], &[&a, &x, &y, &z]);
        let row = Row { epoch: 2, equal: 1, differ: 2, same_samples: true, ..Row::default() };
        assert_eq!(other.epochs[0], row);
        assert_eq!(other.epochs[1], Row { epoch: 3, missing_in_a: 1, ..Row::default() });
        let text = text(&other);
        let first = "epoch 2 step 1 is the first to differ: other samples\n  a[0]  sample 6,";
        assert!(text.contains(first), "{text}");
        let last: Vec<_> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last, ["3", "0", "0", "1", "0", "no"]);
    }

    #[test]
    fn only_keys_that_change_pixels_make_equal_names_differ() {
        let [a, b] = [written(&[PLAIN]), written(&[PLAIN])];
        let header = std::fs::read_to_string(b.path()).unwrap();
        let with = |from: &str, to: &str| {
            std::fs::write(b.path(), header.replacen(from, to, 1)).unwrap();
            compare(&Reader::open(a.path()).unwrap(), &Reader::open(b.path()).unwrap()).unwrap()
        };
        let seed = with("\"seed\": 7", "\"seed\": 8");
        assert!(seed.equal && text(&seed).starts_with("seed differs\n  a  7\n  b  8\n"));
        assert!(!with("\"dataset\": \"d\"", "\"dataset\": \"e\"").equal);
        assert!(with("\"later\"", "\"other\"").header.is_empty());
    }
}
