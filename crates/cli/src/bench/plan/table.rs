//! What a terminal shows of the cells.

use super::super::stat;
use super::cell::{Cell, name};
use super::{Done, PLANNED};

/// A line for each cell, and below it all splits.
pub(super) fn table(done: &[Done]) -> String {
    let mut text = format!(
        "{:<15}{:>10}{:>10}{:>7}  {:<14}{:<12}{:>10}{:>8}{:>10}{:>10}  {}\n",
        "cell",
        "predicted",
        "measured",
        "off",
        "E-D-P planned",
        "best split",
        "measured",
        "regret",
        "by cores",
        "by device",
        "binds"
    );
    for one in done {
        let measured = middle(one, PLANNED).unwrap_or_default();
        let best = middle(one, "best").unwrap_or_default();
        let [cores, device] = bounds(one);
        let [files, pixels, copies] = one.chosen.map(|part| format!("{part:.0}"));
        text.push_str(&format!(
            "{:<15}{:>10.0}{:>10.0}{:>6.0}%  {:<14}{:<12}{:>10.0}{:>7.1}%{:>10}{:>10}  {}\n",
            one.cell.to_string(),
            one.predicted,
            measured,
            100.0 * (one.predicted / measured - 1.0),
            format!("{files}-{pixels}-{copies}"),
            one.best,
            best,
            100.0 * (1.0 - measured / best),
            cores,
            device,
            one.binds.join(", ")
        ));
    }
    text.push_str("\nsplits (files-pixels-copies): predicted / measured samples/s\n");
    for one in done {
        text.push_str(&format!("{}\n", one.cell));
        for row in one.splits.chunks(5) {
            let of = |(split, predicted, measured): &([u8; 3], f64, f64)| {
                format!("{:>9} {predicted:>5.0} /{measured:>5.0}", name(*split))
            };
            text.push_str(&format!("  {}\n", row.iter().map(of).collect::<Vec<_>>().join("  ")));
        }
    }
    text.push_str(&beyond(done));
    text.push_str("\nside              median samples/s, reads per delivery, CPU ms per sample\n");
    for one in done {
        for side in one.rounds.keys() {
            let [rate, reads, cpu] = [0, 1, 2].map(|at| of(one, side, at).unwrap_or_default());
            let case = one.cell.to_string();
            text.push_str(&format!("{case:<15}{side:<18}{rate:>8.0}{reads:>8.2}{:>8.3}\n", cpu * 1e3));
        }
    }
    text
}

/// Samples per second that the cores, and that the device, would allow with the planned split.
fn bounds(one: &Done) -> [String; 2] {
    let Ok(plan) = one.costs.best(one.cell, one.room) else { return Default::default() };
    [plan.use_.cores, plan.use_.requests].map(|part| match part > 1e-6 {
        true => format!("{:.0}", plan.total() / part),
        false => "-".into(),
    })
}

/// What the model says of cells that nobody measured.
fn beyond(done: &[Done]) -> String {
    let Some(costs) = done.first().map(|one| one.costs) else { return String::new() };
    let mut text = String::from("\nby the model only, not measured: samples/s with 1, 2, 4, 8 jobs\n");
    for storage in [true, false] {
        for memory in [10, 50, 150] {
            let rates = [1, 2, 4, 8].map(|jobs| {
                let plan = costs.best(Cell { storage, memory, jobs }, costs.decoded_set() / 100 * memory);
                plan.map_or("-".into(), |plan| format!("{:.0}", plan.total()))
            });
            let what = if storage { "storage" } else { "cpu" };
            let rates = rates.map(|rate| format!("{rate:>8}")).concat();
            text.push_str(&format!("{:<15}{rates}\n", format!("{what}-{memory}")));
        }
    }
    text
}

fn middle(one: &Done, side: &str) -> Option<f64> {
    of(one, side, 0)
}

fn of(one: &Done, side: &str, at: usize) -> Option<f64> {
    let values: Vec<f64> = one.rounds.get(side)?.iter().flatten().map(|value| value[at]).collect();
    stat::quantile(&values, 0.5)
}
