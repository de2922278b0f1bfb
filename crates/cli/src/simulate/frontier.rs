//! What mixing costs and gives: preparations per delivery against the correlation of epochs.
//!
//! A panel for each scenario, since their bounds lie far apart; in it a line for each pool through the
//! mixings that were run, and the bound as a dashed line. All panels have the same height of y.

use super::outcome::{BOUND, CORRELATION, Outcome, PREPARED};
use crate::svg;

const WIDTH: f64 = 760.0;
const TOP: f64 = 76.0;
/// One panel with its labels, and the drawing in it.
const PANEL: [f64; 2] = [380.0, 270.0];
const PLOT: [f64; 2] = [300.0, 190.0];
const INSET: [f64; 2] = [62.0, 26.0];
const COLOURS: [&str; 6] = ["#1b6ca8", "#c0392b", "#2e8b57", "#8e5ea2", "#c98a1b", "#555555"];
const GREY: &str = "fill=\"#666\" font-size=\"12\"";

/// A point of a line: where it is and its mixing.
type Point = (f64, f64, f64);

struct Line {
    pool: f64,
    bound: f64,
    points: Vec<Point>,
}

/// The whole file's text; nothing where no scenario was run with several mixings.
pub(super) fn svg(outcomes: &[Outcome]) -> Option<String> {
    let mixes = outcomes.iter().filter(|one| one.case.mixing().is_some()).collect::<Vec<_>>();
    let panels: Vec<(&str, Vec<Line>)> = mixes
        .chunk_by(|a, b| a.case.scenario.name == b.case.scenario.name)
        .map(|own| (own[0].case.scenario.name.as_str(), lines(own)))
        .filter(|(_, lines)| !lines.is_empty())
        .collect();
    let mut pools: Vec<f64> = panels.iter().flat_map(|panel| &panel.1).map(|line| line.pool).collect();
    pools.sort_unstable_by(f64::total_cmp);
    pools.dedup();
    let colour = |pool: f64| COLOURS[pools.iter().position(|&one| one == pool).unwrap_or(0) % COLOURS.len()];
    let heights =
        || panels.iter().flat_map(|panel| &panel.1).flat_map(|line| &line.points).map(|point| point.1);
    let (low, high) = wider(heights().fold(0.0, f64::min), heights().fold(0.02, f64::max));
    if panels.is_empty() {
        return None;
    }
    let below = "Forebay; labels are the mixing, dashed lines the bound of a small pool";
    let height = TOP + PANEL[1] * panels.len().div_ceil(2) as f64;
    let heading = "What mixing costs (to the right) and gives (downwards)";
    let mut text = svg::page(WIDTH, height, heading, below);
    for (at, &pool) in pools.iter().enumerate() {
        let x = 12.0 + 110.0 * at as f64;
        let stroke = format!("stroke=\"{}\" stroke-width=\"2\"", colour(pool));
        text += &svg::line([x, 57.0], [x + 22.0, 57.0], &stroke);
        text += &svg::text(x + 28.0, 61.0, GREY, &format!("pool {pool}"));
    }
    for (at, (name, lines)) in panels.iter().enumerate() {
        let corner = [PANEL[0] * (at % 2) as f64 + INSET[0], TOP + PANEL[1] * (at / 2) as f64 + INSET[1]];
        text += &panel(name, lines, corner, (low, high), &colour);
    }
    Some(text + "</svg>\n")
}

/// The lines of one scenario, those with at least two points.
fn lines(outcomes: &[&Outcome]) -> Vec<Line> {
    let line = |own: &[&Outcome]| {
        let point = |one: &&Outcome| {
            Some((one.spread(PREPARED)?.mean, one.spread(CORRELATION)?.mean, one.case.mixing()?))
        };
        let bound = own[0].spread(BOUND).map_or(0.0, |spread| spread.mean);
        let mut points: Vec<Point> = own.iter().filter_map(point).collect();
        points.sort_unstable_by(|a, b| a.2.total_cmp(&b.2));
        Line { pool: own[0].case.scenario.pool, bound, points }
    };
    let by_pool = outcomes.chunk_by(|a, b| a.case.scenario.pool == b.case.scenario.pool);
    by_pool.map(line).filter(|line| line.points.len() > 1).collect()
}

fn panel(
    name: &str,
    lines: &[Line],
    [left, top]: [f64; 2],
    (low, high): (f64, f64),
    colour: &dyn Fn(f64) -> &'static str,
) -> String {
    let (right, bottom) = (left + PLOT[0], top + PLOT[1]);
    let across = || lines.iter().flat_map(|line| line.points.iter().map(|point| point.0).chain([line.bound]));
    let (first, last) = wider(across().fold(f64::MAX, f64::min), across().fold(0.0, f64::max));
    let x = |value: f64| left + PLOT[0] * (value - first) / (last - first);
    let y = |value: f64| bottom - PLOT[1] * (value - low) / (high - low);
    let mut text = svg::text(left, top - 8.0, "font-weight=\"bold\"", name);
    for (tick, label) in svg::ticks(first, last, svg::step(last - first, 6.0)) {
        text += &svg::line([x(tick), top], [x(tick), bottom], "stroke=\"#eee\"");
        text += &svg::text(x(tick), bottom + 15.0, &format!("text-anchor=\"middle\" {GREY}"), &label);
    }
    for (tick, label) in svg::ticks(low, high, svg::step(high - low, 8.0)) {
        let stroke = if tick == 0.0 { "stroke=\"#aaa\"" } else { "stroke=\"#eee\"" };
        text += &svg::line([left, y(tick)], [right, y(tick)], stroke);
        text += &svg::text(left - 6.0, y(tick) + 4.0, &format!("text-anchor=\"end\" {GREY}"), &label);
    }
    let middle = format!("text-anchor=\"middle\" {GREY}");
    text += &svg::text((left + right) / 2.0, bottom + 32.0, &middle, "preparations per delivery");
    let (side, half) = (left - 46.0, (top + bottom) / 2.0);
    let turned = format!("{middle} transform=\"rotate(-90 {side:.1} {half:.1})\"");
    text += &svg::text(side, half, &turned, "correlation of epochs");
    let mut taken = Vec::new();
    for line in lines {
        let colour = colour(line.pool);
        let dashed = format!("stroke=\"{colour}\" stroke-dasharray=\"5 4\"");
        text += &svg::line([x(line.bound), top], [x(line.bound), bottom], &dashed);
        let places: Vec<_> = line.points.iter().map(|one| [x(one.0), y(one.1)]).collect();
        let path: Vec<_> = places.iter().map(|[cx, cy]| format!("{cx:.1},{cy:.1}")).collect();
        let path = path.join(" ");
        text += &format!(
            "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\n"
        );
        for ([cx, cy], (_, _, mixing)) in places.into_iter().zip(&line.points) {
            text += &format!("<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3.5\" fill=\"{colour}\"/>\n");
            let said = mixing.to_string();
            if let Some([x, y]) = free([cx, cy], said.len(), &mut taken) {
                text += &svg::text(x, y, &format!("fill=\"{colour}\" font-size=\"11\""), &said);
            }
        }
    }
    text
}

/// Where the label of a point fits beside those that stand already; nowhere if it is crowded.
fn free([x, y]: [f64; 2], letters: usize, taken: &mut Vec<[f64; 3]>) -> Option<[f64; 2]> {
    let width = 6.5 * letters as f64;
    let around =
        [[x + 6.0, y - 5.0], [x - 6.0 - width, y + 13.0], [x + 6.0, y + 13.0], [x - 6.0 - width, y - 5.0]];
    let clear = |[x, y]: &[f64; 2]| {
        taken
            .iter()
            .all(|other| (y - other[1]).abs() > 10.0 || x + width < other[0] || other[0] + other[2] < *x)
    };
    let found = around.into_iter().find(clear)?;
    taken.push([found[0], found[1], width]);
    Some(found)
}

/// A range with a margin, never empty.
fn wider(low: f64, high: f64) -> (f64, f64) {
    let margin = ((high - low) * 0.08).max(0.002);
    (low - margin, high + margin)
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::outcome;
    use super::*;
    use forebay_policy::simulate::Policy;

    fn outcomes(mixings: &[f64]) -> Vec<Outcome> {
        let mut all = Vec::new();
        for (name, pool) in [("a", 0.01), ("a", 0.05), ("b", 0.01)] {
            for &mixing in mixings {
                let mut one = outcome(name, Policy::Forebay, mixing, &[0.25 + mixing / 10.0]);
                one.case.scenario.pool = pool;
                all.push(one);
            }
            all.push(outcome(name, Policy::Lru, 0.0, &[0.9]));
        }
        all
    }

    #[test]
    fn a_line_for_each_scenario_and_pool_through_all_mixings() {
        let text = svg(&outcomes(&[0.0, 0.05, 0.1, 0.2])).unwrap();
        assert_eq!(text.matches("<polyline").count(), 3);
        assert_eq!(text.matches("<circle").count(), 3 * 4);
        assert_eq!(text.matches("stroke-dasharray").count(), 3);
        assert!(text.matches(">0.05</text>").count() >= 3, "{text}");
        assert!(text.contains(">pool 0.01</text>") && text.contains(">pool 0.05</text>"));
        assert!(!text.contains("NaN") && !text.contains("inf") && text.ends_with("</svg>\n"));
    }

    #[test]
    fn labels_do_not_cover_each_other() {
        let mut taken = Vec::new();
        let placed: Vec<_> = (0..6).filter_map(|_| free([50.0, 50.0], 3, &mut taken)).collect();
        assert_eq!(placed.len(), 4);
        assert!(free([90.0, 50.0], 3, &mut taken).is_some());
    }

    #[test]
    fn one_mixing_is_no_line() {
        assert_eq!(svg(&outcomes(&[0.1])), None);
        assert_eq!(svg(&[]), None);
    }

    #[test]
    fn points_in_one_place_can_be_drawn() {
        let same = [outcome("a", Policy::Forebay, 0.1, &[0.25]), outcome("a", Policy::Forebay, 0.1, &[0.25])];
        assert!(!svg(&same).unwrap().contains("NaN"));
    }
}
