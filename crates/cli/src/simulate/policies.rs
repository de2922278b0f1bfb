//! Preparations per delivery as bars: a block for each scenario and pool, in it a bar for each policy with a
//! mark for its bound.
//!
//! Every bar has a mark of its own: a policy that holds fast jobs back serves other deliveries, and the
//! bound is that of the deliveries that were made.

use super::outcome::{BOUND, Outcome, PREPARED};
use crate::svg;

const LEFT: f64 = 150.0;
const WIDTH: f64 = 540.0;
const RIGHT: f64 = 70.0;
const TOP: f64 = 64.0;
const ROW: f64 = 19.0;
const BAR: f64 = 13.0;
/// The line above a block that names it, and the gap before it.
const HEAD: f64 = 30.0;
const FOOT: f64 = 44.0;

/// The whole file's text.
pub(super) fn svg(outcomes: &[Outcome]) -> String {
    let blocks: Vec<&[Outcome]> = outcomes.chunk_by(|a, b| a.case.place() == b.case.place()).collect();
    let most = outcomes.iter().flat_map(|one| [one.spread(PREPARED), one.spread(BOUND)]).flatten();
    let (step, end) = svg::axis(most.map(|spread| spread.high).fold(0.1, f64::max));
    let x = |value: f64| LEFT + WIDTH * value / end;
    let bottom = TOP + HEAD * blocks.len() as f64 + ROW * outcomes.len() as f64;
    let seeds = outcomes.iter().map(|one| one.reports.len()).max().unwrap_or(1);
    let below = match seeds {
        1 => "one run each".to_owned(),
        _ => format!("means of {seeds} seeds, whiskers from the least to the most"),
    };
    let mut text =
        svg::page(LEFT + WIDTH + RIGHT, bottom + FOOT, "Preparations per delivery; less is better", &below);
    text += &svg::line([LEFT + WIDTH - 106.0, 28.0], [LEFT + WIDTH - 106.0, 44.0], MARK);
    text += &svg::text(LEFT + WIDTH - 98.0, 40.0, "fill=\"#666\"", "bound of a small pool");
    for (tick, label) in svg::ticks(0.0, end, step) {
        text += &svg::line([x(tick), TOP], [x(tick), bottom], "stroke=\"#ddd\"");
        text += &svg::text(x(tick), bottom + 17.0, "text-anchor=\"middle\" fill=\"#666\"", &label);
    }
    let unit = "text-anchor=\"middle\" fill=\"#666\"";
    text += &svg::text(LEFT + WIDTH / 2.0, bottom + 36.0, unit, "preparations per delivery");
    let mut y = TOP;
    for block in blocks {
        text += &draw(block, y, &x);
        y += HEAD + ROW * block.len() as f64;
    }
    text + "</svg>\n"
}

const MARK: &str = "stroke=\"#c0392b\" stroke-width=\"2\"";

/// One scenario with one pool, from `top` down.
fn draw(block: &[Outcome], top: f64, x: &dyn Fn(f64) -> f64) -> String {
    let mut text = String::new();
    let several = block.windows(2).any(|two| two[0].case.policy == two[1].case.policy);
    for (row, one) in block.iter().enumerate() {
        let middle = top + HEAD + ROW * (row as f64 + 0.5);
        let Some(spread) = one.spread(PREPARED) else { continue };
        let mixing = one.case.mixing().filter(|_| several).map(|mixing| format!(" {mixing}"));
        let name = one.case.policy.name().to_owned() + &mixing.unwrap_or_default();
        let colour = if one.case.mixing().is_some() { "#1b6ca8" } else { "#c9a35f" };
        text += &svg::text(LEFT - 8.0, middle + 4.5, "text-anchor=\"end\"", &name);
        text += &format!(
            "<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>\n",
            middle - BAR / 2.0,
            x(spread.mean) - LEFT
        );
        if one.reports.len() > 1 {
            text += &svg::line([x(spread.low), middle], [x(spread.high), middle], "stroke=\"#222\"");
        }
        let bound = one.spread(BOUND).map_or(0.0, |bound| bound.mean);
        text += &svg::line([x(bound), middle - ROW / 2.0], [x(bound), middle + ROW / 2.0], MARK);
        let value = format!("{:.3}", spread.mean);
        text += &svg::text(x(spread.high.max(bound)) + 6.0, middle + 4.5, "", &value);
    }
    let case = &block[0].case.scenario;
    let name = format!("{}, pool {}", case.name, case.pool);
    text += &svg::text(12.0, top + HEAD - 5.0, "font-weight=\"bold\"", &name);
    text
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::outcome;
    use super::*;
    use forebay_policy::simulate::Policy;

    #[test]
    fn every_case_has_a_bar_with_a_mark() {
        let outcomes = [
            outcome("a", Policy::Forebay, 0.0, &[0.25]),
            outcome("a", Policy::Forebay, 0.1, &[0.26]),
            outcome("a", Policy::Lru, 0.0, &[0.9]),
            outcome("b<c", Policy::Forebay, 0.1, &[0.3]),
        ];
        let text = svg(&outcomes);
        assert_eq!(text.matches("height=\"13\"").count(), 4);
        assert_eq!(text.matches(MARK).count(), 4 + 1);
        assert!(text.contains(">forebay 0.1</text>") && text.contains(">lru</text>"));
        assert!(text.contains(">b&lt;c, pool 0.01</text>") && text.contains(">forebay</text>"));
        assert!(!text.contains("NaN") && text.ends_with("</svg>\n"));
    }
}
