//! `forebay log show`: one log, as a row for each epoch or as its batches.

use std::collections::HashSet;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::read::{Batch, Entry, Reader};
use super::{KEYS, plain};
use crate::Answer;

/// Arguments of `forebay log show`.
#[derive(Debug, Args)]
pub(super) struct Show {
    /// The log.
    file: PathBuf,
    /// List batches instead of epochs.
    #[arg(long)]
    batches: bool,
    /// Only the batches of this epoch.
    #[arg(long, value_name = "N", requires = "batches")]
    epoch: Option<u64>,
    /// At most so many batches.
    #[arg(long, value_name = "K", requires = "batches")]
    limit: Option<usize>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// An epoch, as it was received after the last resume.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Row {
    epoch: u64,
    batches: u64,
    samples: u64,
    /// Different samples among those that are valid.
    distinct: u64,
    invalid: u64,
    /// Steps before the last that are not in this log, such as those of another run that was resumed.
    missing: u64,
    complete: bool,
    resumed: u64,
}

impl Show {
    /// Reads and prints.
    pub(super) fn run(self) -> Result<Answer> {
        let written = self.write(&mut BufWriter::new(io::stdout().lock()));
        match written {
            // Who reads has seen enough, as `head` does.
            Err(error) if is_closed(&error) => Ok(Answer::Yes),
            written => written.map(|()| Answer::Yes),
        }
    }

    fn write(&self, out: &mut impl Write) -> Result<()> {
        let reader = Reader::open(&self.file)?;
        match (self.batches, self.json) {
            (true, true) => {
                let mut batches = Vec::new();
                self.each(&reader, |batch| {
                    batches.push(batch);
                    Ok(())
                })?;
                let all = json!({ "file": self.file, "header": reader.header, "batches": batches });
                writeln!(out, "{all}")?;
            }
            (true, false) => {
                writeln!(out, "{:>5} {:>7} {:>20}  samples", "epoch", "step", "generation")?;
                self.each(&reader, |batch| {
                    let Batch { epoch, step, generation, .. } = batch;
                    Ok(writeln!(out, "{epoch:>5} {step:>7} {generation:>20}  {}", samples(&batch))?)
                })?;
            }
            (false, true) => {
                let all = json!({ "file": self.file, "header": reader.header, "epochs": epochs(&reader)? });
                writeln!(out, "{all:#}")?;
            }
            (false, false) => {
                let rows = epochs(&reader)?;
                for key in KEYS {
                    writeln!(out, "{key:<11} {}", plain(reader.value(key)))?;
                }
                table(out, &rows)?;
            }
        }
        Ok(out.flush()?)
    }

    fn each(&self, reader: &Reader, mut show: impl FnMut(Batch) -> Result<()>) -> Result<()> {
        let mut entries = reader.entries()?;
        let mut left = self.limit.unwrap_or(usize::MAX);
        while left > 0
            && let Some(batch) = entries.batch()?
        {
            if self.epoch.is_none_or(|epoch| epoch == batch.epoch) {
                left -= 1;
                show(batch)?;
            }
        }
        Ok(())
    }
}

fn is_closed(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// Each sample with `+` what its copy adds to the generation, `#` its occurrence, and `!` if invalid.
fn samples(batch: &Batch) -> String {
    let (mut text, marks) = (String::new(), batch.marks());
    for (i, sample) in batch.samples.iter().enumerate() {
        let sign = |sign: char, value: u64| if value > 0 { format!("{sign}{value}") } else { String::new() };
        let invalid = if marks[i] { "!" } else { "" };
        let (copy, occurrence) = (sign('+', batch.copies[i]), sign('#', batch.occurrences[i]));
        let space = if i > 0 { " " } else { "" };
        text.push_str(&format!("{space}{sample}{copy}{occurrence}{invalid}"));
    }
    text
}

fn epochs(reader: &Reader) -> Result<Vec<Row>> {
    let mut entries = reader.entries()?;
    let mut rows: Vec<Row> = Vec::new();
    let mut seen = HashSet::new();
    // One past the last step that was received.
    let mut steps = 0;
    while let Some(entry) = entries.next()? {
        let epoch = match &entry {
            Entry::Begin((epoch, _)) | Entry::End(epoch) => *epoch,
            Entry::Batch(batch) => batch.epoch,
        };
        let new = rows.last().is_none_or(|row| row.epoch != epoch);
        if new {
            rows.push(Row { epoch, ..Row::default() });
            seen.clear();
            steps = 0;
        }
        let Some(row) = rows.last_mut() else { continue };
        match entry {
            Entry::Begin((_, step)) => {
                row.resumed += u64::from(!new || step > 0);
                steps = step;
            }
            Entry::Batch(batch) => {
                row.batches += 1;
                row.samples += batch.samples.len() as u64;
                row.invalid += batch.marks().iter().filter(|invalid| **invalid).count() as u64;
                seen.extend(batch.valid());
                row.distinct = seen.len() as u64;
                steps = batch.step.saturating_add(1);
            }
            Entry::End(_) => row.complete = true,
        }
        row.missing = steps - row.batches;
        row.complete &= row.missing == 0;
    }
    Ok(rows)
}

fn table(out: &mut impl Write, rows: &[Row]) -> io::Result<()> {
    if rows.is_empty() {
        return writeln!(out, "\nno batches");
    }
    let heads = ["batches", "samples", "distinct", "invalid", "missing", "complete", "resumed"];
    writeln!(out, "\nepoch{}", heads.map(|head| format!(" {head:>9}")).concat())?;
    for row in rows {
        let Row { batches, samples, distinct, invalid, missing, resumed, .. } = row;
        let complete = if row.complete { "yes" } else { "no" };
        write!(out, "{:>5} {batches:>9} {samples:>9} {distinct:>9} {invalid:>9} {missing:>9}", row.epoch)?;
        writeln!(out, " {complete:>9} {resumed:>9}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::written;
    use super::*;

    const LINES: [&str; 9] = [
        r#"{"begin": 3, "step": 0}"#,
        r#"{"epoch": 3, "step": 0, "seed": 1, "generation": 8, "copies": [0, 5, 2], "samples": [4, 9, 1], "occurrences": [0, 0, 1], "invalid": [2], "positions": [1, 2, 0]}"#,
        r#"{"epoch": 3, "step": 1, "seed": 1, "generation": 8, "samples": [5]}"#,
        r#"{"begin": 3, "step": 1}"#,
        r#"{"epoch": 3, "step": 1, "seed": 1, "generation": 8, "samples": [4, 6]}"#,
        r#"{"epoch": 3, "step": 2, "seed": 1, "generation": 8, "samples": []}"#,
        r#"{"end": 3}"#,
        r#"{"begin": 4, "step": 2}"#,
        r#"{"epoch": 4, "step": 2, "seed": 1, "generation": 9, "samples": [1]}"#,
    ];

    fn show(batches: bool, epoch: Option<u64>, limit: Option<usize>, json: bool) -> String {
        let log = written(&LINES);
        let mut out = Vec::new();
        Show { file: log.path().into(), batches, epoch, limit, json }.write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_epoch_is_a_row_of_what_counts() {
        let text = show(false, None, None, false);
        assert!(text.contains("dataset     d\n") && text.contains("output      null\n"), "{text}");
        let mut rows = text.lines().rev().map(|row| row.split_whitespace().collect::<Vec<_>>());
        assert_eq!(rows.next().unwrap(), ["4", "1", "1", "1", "0", "2", "no", "1"]);
        assert_eq!(rows.next().unwrap(), ["3", "3", "5", "3", "1", "0", "yes", "1"]);
        let json: serde_json::Value = serde_json::from_str(&show(false, None, None, true)).unwrap();
        assert_eq!((&json["header"]["seed"], &json["epochs"][0]["distinct"]), (&json!(7), &json!(3)));
    }

    #[test]
    fn batches_name_their_copies() {
        let text = show(true, None, Some(2), false);
        let rows: Vec<_> = text.lines().skip(1).map(str::trim).collect();
        assert_eq!(rows.len(), 2);
        assert!(rows[0].ends_with("8  4 9+5 1+2#1!") && rows[1].ends_with("8  4 6"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&show(true, Some(4), None, true)).unwrap();
        let batch = json!({
            "epoch": 4, "step": 2, "seed": 1, "generation": 9, "samples": [1], "copies": [0], "occurrences": [0],
            "invalid": [],
        });
        assert_eq!(json["batches"], json!([batch]));
    }
}
