//! The cells of the bench: what is scarce, how much memory there is, how many jobs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One of the conditions that every split is tried in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// Files come from the simulated device, else from the page cache.
    pub(crate) storage: bool,
    /// Memory for what is kept, in percent of all decoded images.
    pub(crate) memory: u64,
    pub(crate) jobs: usize,
}

impl Cell {
    /// All of them.
    pub(crate) fn all() -> Vec<Cell> {
        let mut cells = Vec::new();
        for storage in [true, false] {
            for memory in [25, 100] {
                cells.extend([1, 4].map(|jobs| Cell { storage, memory, jobs }));
            }
        }
        cells
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.storage { "storage" } else { "cpu" };
        write!(f, "{what}-{}-{}", self.memory, self.jobs)
    }
}

impl FromStr for Cell {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = Cell::all();
        let names = || all.iter().map(Cell::to_string).collect::<Vec<_>>().join(", ");
        let found = all.iter().find(|cell| cell.to_string() == text).copied();
        found.ok_or_else(|| format!("there is no cell {text:?}; write one of {}", names()))
    }
}

/// Percent of memory for files, decoded images and copies, in steps of a quarter.
pub(crate) fn splits() -> Vec<[u8; 3]> {
    let mut splits = Vec::new();
    for files in (0..=4).rev() {
        for pixels in (0..=4 - files).rev() {
            splits.push([25 * files, 25 * pixels, 25 * (4 - files - pixels)]);
        }
    }
    splits
}

/// A split as it is written: `25-50-25`.
pub(crate) fn name([files, pixels, copies]: [u8; 3]) -> String {
    format!("{files}-{pixels}-{copies}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_named_and_splits_are_all_there() {
        assert_eq!(Cell::all().len(), 8);
        let cell: Cell = "storage-25-4".parse().unwrap();
        assert_eq!(cell, Cell { storage: true, memory: 25, jobs: 4 });
        assert!("disk-25-4".parse::<Cell>().unwrap_err().contains("cpu-100-1"));
        let splits = splits();
        assert_eq!(splits.len(), 15);
        assert!(splits.iter().all(|split| split.iter().sum::<u8>() == 100));
        assert_eq!(name(splits[1]), "75-25-0");
    }
}
