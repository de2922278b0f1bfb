//! The machine a bench ran on, and the cores it keeps to.

use std::collections::BTreeMap;
use std::fs;

use serde::Serialize;

/// Enough to judge whether two runs may be set beside each other.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    /// The processor's name.
    pub(crate) cpu: String,
    /// Cores this process may use.
    pub(crate) cores: usize,
    /// Threads or worker processes of each side.
    pub(crate) threads: usize,
    /// Memory in GiB.
    pub(crate) memory_gib: f64,
    /// Kernel release.
    pub(crate) kernel: String,
    /// What each side says it is.
    pub(crate) versions: BTreeMap<String, String>,
}

impl Machine {
    /// Reads `/proc`; what it does not say is left empty.
    pub(crate) fn read(threads: usize) -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let kib = field(&text("/proc/meminfo"), "MemTotal")
            .and_then(|value| value.strip_suffix(" kB")?.parse::<f64>().ok());
        Self {
            cpu: field(&text("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.into()),
            cores: crate::demo::cores(),
            threads,
            memory_gib: kib.map_or(0.0, |kib| (kib / 1024.0 / 1024.0 * 10.0).round() / 10.0),
            kernel: text("/proc/sys/kernel/osrelease").trim().into(),
            versions: BTreeMap::new(),
        }
    }
}

fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

/// Keeps this process, its later threads and its children to `cores` of the cores it may use, so that
/// a side with `cores` threads has no idle core to borrow. Does nothing where that is not possible.
pub(crate) fn keep_to(cores: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let mut chosen = CpuSet::new();
    let picks = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).take(cores.max(1));
    picks.for_each(|cpu| chosen.set(cpu));
    if sched_setaffinity(None, &chosen).is_err() {
        eprintln!("warning: cannot keep to {cores} cores; sides may use more");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "model\t\t: 1\nmodel name\t: Some CPU @ 3: fast\n";
        assert_eq!(field(text, "model name").as_deref(), Some("Some CPU @ 3: fast"));
        assert_eq!(field(text, "name"), None);
    }
}
