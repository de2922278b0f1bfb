//! A bench's rates as an SVG: one bar for each side and case, a whisker from p10 to p90.

use std::fmt::Write;

use super::report::{Measured, Report};
use crate::svg;

const LEFT: f64 = 170.0;
const WIDTH: f64 = 520.0;
const RIGHT: f64 = 70.0;
const ROW: f64 = 26.0;
const TOP: f64 = 56.0;

/// The whole file's text.
pub(crate) fn svg(report: &Report) -> String {
    // Benches name their rates first.
    let metric = report.results().first().map_or("", |one| one.metric);
    let results: Vec<&Measured> = report.results().iter().filter(|one| one.metric == metric).collect();
    let most = results.iter().map(|one| one.p90).fold(1.0, f64::max);
    let (step, end) = svg::axis(most);
    let x = |value: f64| LEFT + WIDTH * value / end;
    let (width, height) = (LEFT + WIDTH + RIGHT, TOP + ROW * results.len() as f64 + 30.0);
    let bottom = height - 30.0;
    let machine = report.machine();
    let below = format!("{}, {} threads", machine.cpu, machine.threads);
    let mut text = svg::page(width, height, &format!("{metric}, median with p10 to p90"), &below);
    for (tick, label) in svg::ticks(0.0, end, step) {
        let at = x(tick);
        text += &svg::line([at, TOP], [at, bottom], "stroke=\"#ddd\"");
        text += &svg::text(at, bottom + 18.0, "text-anchor=\"middle\" fill=\"#666\"", &label);
    }
    for (row, one) in results.iter().enumerate() {
        let middle = TOP + ROW * (row as f64 + 0.5);
        let colour = match one.side {
            "forebay" => "#1b6ca8",
            "native" | "decode" | "forebay-unshared" => "#9bbbd4",
            _ => "#c9a35f",
        };
        let (low, high) = (x(one.p10), x(one.p90));
        let name = format!("{} {}", one.side, one.case);
        text += &svg::text(LEFT - 8.0, middle + 4.5, "text-anchor=\"end\"", &name);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "<rect x=\"{LEFT}\" y=\"{}\" width=\"{:.1}\" height=\"16\" fill=\"{colour}\"/>",
            middle - 8.0,
            x(one.median) - LEFT
        );
        let _ = writeln!(
            text,
            "<path d=\"M{low:.1} {middle}H{high:.1}M{low:.1} {0}v8M{high:.1} {0}v8\" stroke=\"#222\" fill=\"none\"/>",
            middle - 4.0
        );
        let rate = format!("{:.0}", one.median);
        text += &svg::text(high.max(x(one.median)) + 6.0, middle + 4.5, "", &rate);
    }
    text.push_str("</svg>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_side_that_ran_has_a_bar_within_the_axis() {
        let text = svg(&super::super::report::tests::report());
        assert_eq!(text.matches("height=\"16\"").count(), 2);
        assert!(text.contains(">forebay exact</text>") && text.contains(">torch later</text>"));
        assert!(!text.contains("NaN") && text.ends_with("</svg>\n"));
    }
}
