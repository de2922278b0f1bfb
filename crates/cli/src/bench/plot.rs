//! A bench's rates as an SVG: one bar for each side and case, a whisker from p10 to p90.

use std::fmt::Write;

use super::report::{METRIC, Report};

const LEFT: f64 = 170.0;
const WIDTH: f64 = 520.0;
const RIGHT: f64 = 70.0;
const ROW: f64 = 26.0;
const TOP: f64 = 56.0;

/// The whole file's text.
pub(crate) fn svg(report: &Report) -> String {
    let results = report.results();
    let most = results.iter().map(|one| one.p90).fold(1.0, f64::max);
    let (step, end) = ticks(most);
    let x = |value: f64| LEFT + WIDTH * value / end;
    let (width, height) = (LEFT + WIDTH + RIGHT, TOP + ROW * results.len() as f64 + 30.0);
    let bottom = height - 30.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\" fill=\"#222\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"12\" y=\"22\" font-size=\"15\">{METRIC}, median with p10 to p90</text>\n\
         <text x=\"12\" y=\"40\" fill=\"#666\">{}, {} threads</text>\n",
        escape(&report.machine().cpu),
        report.machine().threads
    );
    // Writing to a String cannot fail.
    let mut tick = 0.0;
    while tick <= end + step / 2.0 {
        let at = x(tick);
        let _ = writeln!(
            text,
            "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>"
        );
        let _ = writeln!(
            text,
            "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#666\">{tick}</text>",
            bottom + 18.0
        );
        tick += step;
    }
    for (row, one) in results.iter().enumerate() {
        let middle = TOP + ROW * (row as f64 + 0.5);
        let colour = match one.side {
            "forebay" => "#1b6ca8",
            "native" | "decode" => "#9bbbd4",
            _ => "#c9a35f",
        };
        let name = escape(&format!("{} {}", one.side, one.case));
        let (low, high) = (x(one.p10), x(one.p90));
        let _ = writeln!(
            text,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>",
            LEFT - 8.0,
            middle + 4.5
        );
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
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{}\">{:.0}</text>",
            high.max(x(one.median)) + 6.0,
            middle + 4.5,
            one.median
        );
    }
    text.push_str("</svg>\n");
    text
}

/// A round step with at most six marks, and where the axis ends.
fn ticks(most: f64) -> (f64, f64) {
    let power = 10_f64.powf((most / 6.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| most / step <= 6.0);
    let step = step.unwrap_or(most);
    (step, (most / step).ceil() * step)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
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

    #[test]
    fn steps_are_round() {
        assert_eq!(ticks(1700.0), (500.0, 2000.0));
        assert_eq!(ticks(6000.0), (1000.0, 6000.0));
        assert_eq!(ticks(61.0), (20.0, 80.0));
    }
}
