//! Outcomes as a table for people: one row per case, and below it what the columns mean.
//!
//! Columns of faults (waiting, missing, repeating) stand only where some row has one; a sentence says
//! which had nothing to show. That keeps the common table narrow and a fault visible.

use super::outcome::{
    BOUND, CORRELATION, HITS, MISSED, Metric, Outcome, PREPARED, REPEATED, REPEATS, SKEW, TWICE, WAITED,
};

/// Columns of text that a line below the table may have.
const WIDTH: usize = 110;
/// What a table says where there is no figure.
const NONE: &str = "–";

struct Fault {
    metric: Metric,
    title: &'static str,
    show: fn(f64) -> String,
    means: &'static str,
    /// What is said instead where no row has it.
    absent: &'static str,
}

const FAULTS: [Fault; 4] = [
    Fault {
        metric: WAITED,
        title: "waited",
        show: percent,
        means: "share of the jobs' time spent waiting",
        absent: "no job waited",
    },
    Fault {
        metric: MISSED,
        title: "missed",
        show: count,
        means: "samples that an epoch did not give",
        absent: "no sample was missed",
    },
    Fault {
        metric: TWICE,
        title: "twice",
        show: count,
        means: "samples that an epoch gave again",
        absent: "none came twice in an epoch",
    },
    Fault {
        metric: REPEATS,
        title: "repeats",
        show: count,
        means: "copies that a job got again",
        absent: "no job got a copy again",
    },
];

/// A title and a cell for each outcome.
struct Column(&'static str, Vec<String>);

/// The whole text.
pub(super) fn table(outcomes: &[Outcome]) -> String {
    let column =
        |title, cell: &dyn Fn(&Outcome) -> String| Column(title, outcomes.iter().map(cell).collect());
    let mean = |title, metric, show: fn(f64) -> String| {
        column(title, &|one| one.spread(metric).map_or(NONE.into(), |spread| show(spread.mean)))
    };
    let mut columns = vec![
        column("scenario", &|one| one.case.scenario.name.clone()),
        column("policy", &|one| one.case.policy.name().into()),
        column("pool", &|one| one.case.scenario.pool.to_string()),
    ];
    if outcomes.iter().any(|one| one.case.mixing().is_some()) {
        columns.push(column("mixing", &|one| {
            one.case.mixing().map_or(NONE.into(), |mixing| mixing.to_string())
        }));
    }
    columns.push(mean("prepared", PREPARED, ratio));
    let seeds = outcomes.iter().map(|one| one.reports.len()).max().unwrap_or(1);
    if seeds > 1 {
        let range = |one: &Outcome| one.spread(PREPARED).map(|s| format!("{:.3}–{:.3}", s.low, s.high));
        columns.push(column("min–max", &|one| range(one).unwrap_or(NONE.into())));
    }
    columns.push(mean("bound", BOUND, ratio));
    columns.push(column("over", &|one| one.over().map_or(NONE.into(), over)));
    columns.push(mean("corr", CORRELATION, ratio));
    columns.push(mean("pairs", REPEATED, ratio));
    columns.push(mean("skew", SKEW, ratio));
    columns.push(mean("hits", HITS, percent));
    // What was not followed is not known to be absent.
    let may_have =
        |one: &Outcome, fault: &Fault| one.spread(fault.metric).is_none_or(|spread| spread.high > 0.0);
    let (seen, unseen): (Vec<_>, Vec<_>) =
        FAULTS.iter().partition(|fault| outcomes.iter().any(|one| may_have(one, fault)));
    columns.extend(seen.iter().map(|fault| mean(fault.title, fault.metric, fault.show)));
    format!("{}\n{}{}", lay_out(&columns, outcomes.len()), legend(seeds, &seen, &unseen), cold(outcomes))
}

/// Names at the left, numbers at the right, every column as wide as it needs.
fn lay_out(columns: &[Column], rows: usize) -> String {
    let wide = |text: &str| text.chars().count();
    let widths: Vec<usize> = columns
        .iter()
        .map(|Column(title, cells)| cells.iter().map(|cell| wide(cell)).fold(wide(title), usize::max))
        .collect();
    let line = |get: &dyn Fn(&Column) -> String| {
        let cells = columns.iter().zip(&widths).enumerate().map(|(at, (column, &width))| {
            let cell = get(column);
            if at < 2 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let body = (0..rows).map(|row| line(&|column| column.1[row].clone()));
    line(&|column| column.0.to_owned()) + &body.collect::<String>()
}

fn legend(seeds: usize, seen: &[&Fault], unseen: &[&Fault]) -> String {
    let mut said = vec![
        "prepared: preparations per delivery".to_owned(),
        "bound: the least with a small pool".into(),
        "over: prepared above bound".into(),
        "corr, pairs, skew: order of two epochs, neighbours, labels of a batch, 0 as in a full shuffle"
            .into(),
        "hits: there before the job asked".into(),
    ];
    said.extend(seen.iter().map(|fault| format!("{}: {}", fault.title, fault.means)));
    said.extend(unseen.iter().map(|fault| fault.absent.to_owned()));
    if seeds > 1 {
        said.push(format!("means of {seeds} seeds"));
    }
    let mut text = said[0].clone();
    let mut wide = text.len();
    for part in &said[1..] {
        let (fits, more) = (wide + part.len() + 2 <= WIDTH, part.len());
        text.push_str(if fits { "; " } else { ";\n" });
        text.push_str(part);
        wide = if fits { wide + 2 + more } else { more };
    }
    text + ".\n"
}

/// A sentence about the rows whose warm-up did not end.
fn cold(outcomes: &[Outcome]) -> String {
    let name = |one: &Outcome| format!("{} ({})", one.case.label(), one.case.policy.name());
    let cold: Vec<String> = outcomes.iter().filter(|one| !one.is_warm()).map(name).collect();
    match cold.is_empty() {
        true => String::new(),
        false => format!("The warm-up did not end, so everything is counted, in: {}.\n", cold.join(", ")),
    }
}

fn ratio(value: f64) -> String {
    unsigned_zero(format!("{value:.3}"))
}

fn percent(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

fn over(value: f64) -> String {
    unsigned_zero(format!("{:.1}", value * 100.0)) + " %"
}

/// A mean of counts: whole, but never 0 for something that happened.
fn count(value: f64) -> String {
    if value > 0.0 && value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

fn unsigned_zero(text: String) -> String {
    let is_zero = text.chars().all(|digit| matches!(digit, '-' | '0' | '.'));
    if is_zero { text.trim_start_matches('-').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::outcome;
    use super::*;
    use forebay_policy::simulate::Policy;

    #[test]
    fn a_row_per_case_and_no_column_for_faults_that_nobody_has() {
        let outcomes = [
            outcome("4-equal", Policy::Forebay, 0.1, &[0.26]),
            outcome("4-equal", Policy::Lru, 0.0, &[0.98]),
        ];
        let text = table(&outcomes);
        let expected = "\
scenario  policy   pool  mixing  prepared  bound     over   corr  pairs  skew    hits
4-equal   forebay  0.01     0.1     0.260  0.250    4.0 %  0.000  0.001     –  75.0 %
4-equal   lru      0.01       –     0.980  0.250  292.0 %  0.100  0.001     –  75.0 %

prepared: preparations per delivery; bound: the least with a small pool; over: prepared above bound;
corr, pairs, skew: order of two epochs, neighbours, labels of a batch, 0 as in a full shuffle;
hits: there before the job asked; no job waited; no sample was missed; none came twice in an epoch;
no job got a copy again.
";
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn faults_and_seeds_get_columns_of_their_own() {
        let mut one = outcome("a", Policy::Window, 0.0, &[0.25, 0.26, 0.27]);
        one.reports[0].missed = 1;
        one.reports[1].waited = 0.03;
        let text = table(&[one.clone()]);
        let expected = "\
scenario  policy  pool  prepared      min–max  bound   over   corr  pairs  skew    hits  waited  missed
a         window  0.01     0.260  0.250–0.270  0.250  4.0 %  0.100  0.001     –  75.0 %   1.0 %     0.3
";
        assert!(text.starts_with(expected), "\n{text}");
        assert!(text.contains("missed: samples that an epoch did not give; none came twice"), "\n{text}");
        assert!(text.ends_with("means of 3 seeds.\n"), "\n{text}");
        one.reports.iter_mut().for_each(|report| report.repeats = None);
        let text = table(&[one]);
        assert!(text.contains("  repeats\n") && text.contains("        –\n"), "\n{text}");
    }

    #[test]
    fn rows_whose_warm_up_did_not_end_are_named() {
        let warm = outcome("a", Policy::Forebay, 0.1, &[0.25]);
        let mut cold = outcome("b", Policy::Band, 0.0, &[0.25, 0.26]);
        cold.reports[1].measured = false;
        let text = table(&[warm, cold]);
        let said = "The warm-up did not end, so everything is counted, in: b pool=0.01 (band).\n";
        assert!(text.ends_with(said), "\n{text}");
    }

    #[test]
    fn nothing_is_less_than_nothing() {
        assert_eq!(
            (ratio(-0.0001), ratio(-0.02), over(-0.0004)),
            ("0.000".into(), "-0.020".into(), "0.0 %".into())
        );
        assert_eq!((count(0.0), count(0.2), count(31.4)), ("0".into(), "0.2".into(), "31".into()));
    }
}
