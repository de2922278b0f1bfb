//! What a bench found, in the one JSON shape that all benches share, and as a table.

use serde::Serialize;

use super::machine::Machine;
use super::stat::{self, Interval};

/// What is measured, and how many digits after the point it is given with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) digits: i32,
}

/// The metric of one job.
pub(crate) const IMAGES: Metric = Metric { name: "images/s", digits: 2 };

/// All turns of one side in one case; `None` where it could not run.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    /// Which loader.
    pub(crate) side: &'static str,
    /// Which of its ways, or which epoch.
    pub(crate) case: String,
    /// Of what.
    pub(crate) metric: Metric,
    /// A value for each round.
    pub(crate) values: Vec<Option<f64>>,
}

/// A ratio to report: two sides with their cases, and the case that names it.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    of: (&'static str, String),
    over: (&'static str, String),
    case: String,
}

impl Pair {
    /// `of` over `over`, told as `case`.
    pub(crate) fn new(
        of: (&'static str, impl Into<String>),
        over: (&'static str, impl Into<String>),
        case: impl Into<String>,
    ) -> Self {
        Self { of: (of.0, of.1.into()), over: (over.0, over.1.into()), case: case.into() }
    }
}

/// The printed result.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    bench: &'static str,
    machine: Machine,
    results: Vec<Measured>,
    ratios: Vec<Ratio>,
}

/// One side's values of one metric in one case.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Measured {
    pub(crate) side: &'static str,
    pub(crate) case: String,
    pub(crate) metric: &'static str,
    pub(crate) median: f64,
    pub(crate) p10: f64,
    pub(crate) p90: f64,
    pub(crate) runs: usize,
}

#[derive(Debug, Clone, Serialize)]
struct Ratio {
    of: &'static str,
    over: &'static str,
    case: String,
    metric: &'static str,
    value: f64,
    low: f64,
    high: f64,
}

impl Report {
    /// Statistics of `series`, and ratios of `metrics` for those `pairs` that have both sides.
    pub(crate) fn new(
        bench: &'static str,
        machine: Machine,
        series: &[Series],
        metrics: &[Metric],
        pairs: &[Pair],
        seed: u64,
    ) -> Self {
        let find = |(side, case): &(&str, String), metric: Metric| {
            series.iter().find(|one| one.side == *side && one.case == *case && one.metric == metric)
        };
        let ratio = |(&metric, pair): (&Metric, &Pair)| {
            let (of, over) = (find(&pair.of, metric)?, find(&pair.over, metric)?);
            let Interval { value, low, high } =
                stat::bootstrap_median(&stat::paired(&of.values, &over.values), seed)?;
            let [value, low, high] = [value, low, high].map(|number| round(number, 4));
            let case = pair.case.clone();
            Some(Ratio { of: of.side, over: over.side, case, metric: metric.name, value, low, high })
        };
        let combined = metrics.iter().flat_map(|metric| pairs.iter().map(move |pair| (metric, pair)));
        let ratios = combined.filter_map(ratio).collect();
        Self { bench, machine, results: series.iter().filter_map(measured).collect(), ratios }
    }

    /// Statistics that were made elsewhere, with nothing to compare in pairs.
    pub(crate) fn of(bench: &'static str, machine: Machine, results: Vec<Measured>) -> Self {
        Self { bench, machine, results, ratios: Vec::new() }
    }

    /// Every side that ran.
    pub(crate) fn results(&self) -> &[Measured] {
        &self.results
    }

    /// The processor and threads, for a heading.
    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Lines for a terminal: rates, then paired ratios with their intervals, then one sentence.
    pub(crate) fn table(&self) -> String {
        let mut text = format!(
            "{:<12}{:<14}{:>10}{:>10}{:>10}{:>6}\n",
            "side", "case", IMAGES.name, "p10", "p90", "runs"
        );
        for one in &self.results {
            text.push_str(&format!(
                "{:<12}{:<14}{:>10.0}{:>10.0}{:>10.0}{:>6}\n",
                one.side, one.case, one.median, one.p10, one.p90, one.runs
            ));
        }
        text.push_str(&self.comparison());
        text.push_str(&self.sum());
        text
    }

    /// Lines for a terminal: paired ratios with their intervals.
    pub(crate) fn comparison(&self) -> String {
        let Some(first) = self.ratios.first() else { return String::new() };
        let several = self.ratios.iter().any(|ratio| ratio.metric != first.metric);
        let name = |ratio: &Ratio| format!("{} / {}", ratio.of, ratio.over);
        let case = |ratio: &Ratio| match several {
            true => format!("{} {}", ratio.case, ratio.metric),
            false => ratio.case.clone(),
        };
        let longest = |text: &dyn Fn(&Ratio) -> String, least: usize| {
            self.ratios.iter().map(|ratio| text(ratio).len() + 2).fold(least, usize::max)
        };
        let (width, wide) = (longest(&name, 24), longest(&case, 14));
        let mut text =
            format!("\n{:<width$}{:<wide$}{:>8}  {}\n", "paired ratio", "case", "median", "95 % interval");
        for ratio in &self.ratios {
            text.push_str(&format!(
                "{:<width$}{:<wide$}{:>8.2}  {:.2} to {:.2}\n",
                name(ratio),
                case(ratio),
                ratio.value,
                ratio.low,
                ratio.high
            ));
        }
        text
    }

    /// One sentence on the exact loader.
    fn sum(&self) -> String {
        let Some(ours) = self.results.iter().find(|one| one.side == "forebay" && one.case == "exact") else {
            return String::new();
        };
        let peers: Vec<_> = self
            .ratios
            .iter()
            .filter(|ratio| ratio.of == "forebay" && ratio.case == "exact")
            .map(|ratio| format!("{:.2} x {}", ratio.value, ratio.over))
            .collect();
        format!(
            "\nforebay exact: {:.0} {} on {} threads; {}\n",
            ours.median,
            IMAGES.name,
            self.machine.threads,
            peers.join(", ")
        )
    }
}

impl Measured {
    /// Quantiles of `values`, with so many digits after the point; nothing of nothing.
    pub(crate) fn new(
        side: &'static str,
        case: &str,
        metric: &'static str,
        values: &[f64],
        digits: i32,
    ) -> Option<Self> {
        let at = |q| Some(round(stat::quantile(values, q)?, digits));
        let (median, p10, p90) = (at(0.5)?, at(0.1)?, at(0.9)?);
        Some(Self { side, case: case.into(), metric, median, p10, p90, runs: values.len() })
    }
}

fn measured(series: &Series) -> Option<Measured> {
    let values: Vec<f64> = series.values.iter().flatten().copied().collect();
    Measured::new(series.side, &series.case, series.metric.name, &values, series.metric.digits)
}

fn round(number: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (number * scale).round() / scale
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::Value;

    pub(crate) fn report() -> Report {
        let series = |side, case: &str, values: &[Option<f64>]| Series {
            side,
            case: case.into(),
            metric: IMAGES,
            values: values.into(),
        };
        Report::new(
            "single",
            Machine::read(2),
            &[
                series("forebay", "exact", &[Some(1500.0), Some(1600.0), Some(1700.0)]),
                series("torch", "later", &[Some(500.0), Some(400.0), Some(500.0)]),
                series("dali", "later", &[None, None, None]),
            ],
            &[IMAGES],
            &[
                Pair::new(("forebay", "exact"), ("torch", "later"), "exact"),
                Pair::new(("forebay", "exact"), ("dali", "later"), "exact"),
                Pair::new(("forebay", "exact"), ("ffcv", "later"), "exact"),
            ],
            0,
        )
    }

    #[test]
    fn the_json_has_the_shared_shape_and_leaves_out_what_did_not_run() {
        let json = serde_json::to_value(report()).unwrap();
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        let sorted = |names: &[&str]| {
            let mut names: Vec<_> = names.iter().map(|name| name.to_string()).collect();
            names.sort();
            names
        };
        let same = |value: &Value, names: &[&str]| {
            let mut keys = keys(value);
            keys.sort();
            assert_eq!(keys, sorted(names));
        };
        same(&json, &["bench", "machine", "results", "ratios"]);
        assert_eq!(json["results"].as_array().unwrap().len(), 2);
        assert_eq!(json["ratios"].as_array().unwrap().len(), 1);
        same(&json["results"][0], &["side", "case", "metric", "median", "p10", "p90", "runs"]);
        same(&json["ratios"][0], &["of", "over", "case", "metric", "value", "low", "high"]);
        assert_eq!(json["results"][0]["median"], 1600.0);
        assert_eq!(json["results"][0]["runs"], 3);
        // The median of 3.0, 4.0 and 3.4: by round, not of medians.
        assert_eq!(json["ratios"][0]["value"], 3.4);
    }

    #[test]
    fn the_table_names_sides_and_ratios() {
        let table = report().table();
        assert!(
            table.contains("forebay     exact               1600      1520      1680     3\n"),
            "{table}"
        );
        assert!(table.contains("forebay / torch         exact             3.40  3.00 to 4.00\n"), "{table}");
        assert!(table.contains("forebay exact: 1600 images/s on 2 threads; 3.40 x torch\n"), "{table}");
    }
}
