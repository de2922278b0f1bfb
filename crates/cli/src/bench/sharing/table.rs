//! The report of `forebay bench sharing` for a terminal.

use std::collections::BTreeSet;

use super::{CPU, FAIRNESS, PREPARATIONS, RATE};
use crate::bench::report::{Measured, Metric, Report};

/// A line for each side and number of processes, then paired ratios.
pub(super) fn table(report: &Report) -> String {
    let mut text = format!(
        "{:<18}{:>9}{:>11}{:>9}{:>9}{:>10}{:>8}{:>10}{:>6}\n",
        "side", "processes", "samples/s", "p10", "p90", "fairness", "CPU ms", "prepared", "runs"
    );
    for rate in report.results().iter().filter(|one| one.metric == RATE.name) {
        let find = |metric: Metric| {
            let same =
                |one: &&Measured| one.metric == metric.name && one.side == rate.side && one.case == rate.case;
            report.results().iter().find(same).map(|one| one.median)
        };
        let shown = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
        };
        text.push_str(&format!(
            "{:<18}{:>9}{:>11.0}{:>9.0}{:>9.0}{:>10}{:>8}{:>10}{:>6}\n",
            rate.side,
            rate.case,
            rate.median,
            rate.p10,
            rate.p90,
            shown(find(FAIRNESS), 2),
            shown(find(CPU).map(|seconds| seconds * 1e3), 2),
            shown(find(PREPARATIONS), 3),
            rate.runs
        ));
    }
    text.push_str(&report.comparison());
    let versions: BTreeSet<_> = report.machine().versions.values().collect();
    text.push('\n');
    versions.iter().for_each(|version| text.push_str(&format!("{version}\n")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_that_does_not_count_has_a_dash() {
        let text = table(&super::super::tests::report());
        let lines = [
            "forebay                   1       1000     1000     1000      1.00    2.00         -     1\n",
            "forebay                   4       2000     2000     2000      0.50    1.00     0.300     1\n",
            "torch                     4        500      500      500         -    4.00         -     1\n",
            "forebay / torch         4                 4.00  4.00 to 4.00\n",
            "forebay / forebay       4/1               2.00  2.00 to 2.00\n",
        ];
        lines.iter().for_each(|line| assert!(text.contains(line), "{text}"));
    }
}
