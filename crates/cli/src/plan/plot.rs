//! Draws deliveries per second against memory: each form alone, and as planned.

use anyhow::Result;
use forebay_policy::plan::{Load, Machine, bottleneck, predict};

use super::Case;
use super::report::{DECODED, ENCODED, PLANNED, POOL, single};
use crate::svg;

const PAGE: [f64; 2] = [760.0, 440.0];
const TOP_LEFT: [f64; 2] = [70.0, 60.0];
const PLOT: [f64; 2] = [520.0, 320.0];
/// Points of a line.
const POINTS: usize = 24;
const LINES: [(&str, &str); 4] =
    [(PLANNED, "#222"), (ENCODED, "#1f77b4"), (DECODED, "#d95f02"), (POOL, "#2ca02c")];
const GREY: &str = "fill=\"#666\" font-size=\"11\"";

/// The drawing.
pub(super) fn svg(case: &Case) -> Result<String> {
    let most = last(case);
    let memory = |point: usize| most * point as f64 / (POINTS - 1) as f64;
    let mut lines = Vec::new();
    for (name, colour) in LINES {
        let rates = (0..POINTS).map(|point| {
            let machine = Machine { memory: memory(point) as u64, ..case.machine };
            rate(&machine, &case.loads, name)
        });
        lines.push((name, colour, rates.collect::<Result<Vec<f64>>>()?));
    }
    let highest = lines.iter().flat_map(|line| &line.2).copied().fold(1.0, f64::max);
    Ok(draw(case, most, highest, &lines))
}

/// To where everything fits decoded, or to twice what there is.
fn last(case: &Case) -> f64 {
    let size = |load: &Load| load.samples as f64 * load.decoded.max(load.encoded);
    let whole: f64 = case.loads.iter().map(size).sum();
    (1.2 * whole).min(10.0 * case.machine.memory as f64).max(2.0 * case.machine.memory as f64).max(1e6)
}

fn rate(machine: &Machine, loads: &[Load], form: &str) -> Result<f64> {
    let plan = match form {
        PLANNED => bottleneck(machine, loads)?,
        form => predict(machine, loads, &single(machine, loads, form))?,
    };
    Ok(plan.total())
}

fn draw(case: &Case, most: f64, highest: f64, lines: &[(&str, &str, Vec<f64>)]) -> String {
    let ([left, top], [wide, high]) = (TOP_LEFT, PLOT);
    let bottom = top + high;
    let unit = if most >= 2e9 { (1e9, "GB") } else { (1e6, "MB") };
    let (step, end) = svg::axis(highest);
    let x = |bytes: f64| left + wide * bytes / most;
    let y = |rate: f64| bottom - high * rate / end;
    let jobs: usize = case.loads.iter().map(|load| load.jobs.len()).sum();
    let below = format!("{}, {jobs} jobs, {} cores", case.names.join(", "), case.machine.cores);
    let mut text = svg::page(PAGE[0], PAGE[1], "Deliveries per second against memory", &below);
    for (tick, label) in svg::ticks(0.0, end, step) {
        text += &svg::line([left, y(tick)], [left + wide, y(tick)], "stroke=\"#eee\"");
        text += &svg::text(left - 6.0, y(tick) + 4.0, &format!("text-anchor=\"end\" {GREY}"), &label);
    }
    for (tick, label) in svg::ticks(0.0, most / unit.0, svg::step(most / unit.0, 6.0)) {
        let at = x(tick * unit.0);
        text += &svg::line([at, top], [at, bottom], "stroke=\"#eee\"");
        text += &svg::text(at, bottom + 15.0, &format!("text-anchor=\"middle\" {GREY}"), &label);
    }
    let middle = format!("text-anchor=\"middle\" {GREY}");
    text += &svg::text(left + wide / 2.0, bottom + 32.0, &middle, &format!("memory, {}", unit.1));
    let now = x(case.machine.memory as f64);
    text += &svg::line([now, top], [now, bottom], "stroke=\"#aaa\" stroke-dasharray=\"5 4\"");
    text += &svg::text(now + 4.0, top + 11.0, GREY, "now");
    let points = |rates: &[f64]| {
        let place = |(point, rate): (usize, &f64)| {
            format!("{:.1},{:.1}", x(most * point as f64 / (POINTS - 1) as f64), y(*rate))
        };
        rates.iter().enumerate().map(place).collect::<Vec<_>>().join(" ")
    };
    // The plan last, so that it lies above the others.
    for (_, colour, rates) in lines.iter().rev() {
        let path = points(rates);
        text +=
            &format!("<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n");
    }
    for (at, (name, colour, _)) in lines.iter().enumerate() {
        let row = top + 20.0 + 20.0 * at as f64;
        text += &svg::line(
            [left + wide + 16.0, row],
            [left + wide + 40.0, row],
            &format!("stroke=\"{colour}\" stroke-width=\"2\""),
        );
        text += &svg::text(left + wide + 46.0, row + 4.0, "", name);
    }
    text + "</svg>\n"
}
