//! A report as tables for people.

use forebay_policy::plan::{Plan, Resource};

use super::report::{PLANNED, Report, Row};

/// What a table says where there is no figure.
const NONE: &str = "–";

/// The whole text; `before` is the report without what-ifs, and what they are.
pub(super) fn text(report: &Report, before: Option<(&Report, &str)>) -> String {
    let mut parts = Vec::new();
    if let Some((before, what)) = before {
        let (was, is) = (before.plan.total(), report.plan.total());
        let times = if was > 0.0 { format!(", {:.2} times as much", is / was) } else { String::new() };
        parts.push(format!("what if {what}: {} deliveries/s instead of {}{times}\n", count(is), count(was)));
    }
    parts.push(streams(report));
    parts.push(resources(report));
    parts.push(prices(report));
    parts.push(splits(report));
    parts.join("\n")
}

fn streams(report: &Report) -> String {
    let mut rows = vec![row(&[
        "stream",
        "jobs",
        "deliveries/s",
        "each job",
        "files",
        "pixels",
        "pool",
        "copies",
        "waste",
    ])];
    for (at, stream) in report.streams.iter().enumerate() {
        let plan = &report.plan;
        let (rates, split) = (&plan.rates[at], plan.splits[at]);
        let low = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let high = rates.iter().copied().fold(0.0, f64::max);
        let each = match rates.len() {
            0 => NONE.into(),
            _ if high - low < 0.005 * high => count(high),
            _ => format!("{}–{}", count(low), count(high)),
        };
        rows.push(vec![
            stream.name.clone(),
            rates.len().to_string(),
            count(rates.iter().sum()),
            each,
            bytes(split.encoded as f64),
            bytes(split.decoded as f64),
            bytes(split.pool as f64),
            count(plan.copies[at]),
            format!("{:.2}", plan.waste[at]),
        ]);
    }
    let sources = |[pixels, files, storage]: [f64; 3]| {
        let sum = (pixels + files + storage).max(f64::MIN_POSITIVE);
        let part = |takes: f64| format!("{:.0} %", takes / sum * 100.0);
        format!(
            "{} from pixels, {} from files in memory, {} from storage",
            part(pixels),
            part(files),
            part(storage)
        )
    };
    let mut text = lay_out(&rows);
    for (stream, takes) in report.streams.iter().zip(&report.plan.sources) {
        text += &format!("{}: copies are made {}\n", stream.name, sources(*takes));
    }
    text
}

fn resources(report: &Report) -> String {
    let (machine, plan) = (&report.machine, &report.plan);
    let rate = |bytes_per_s: f64| format!("{}/s", bytes(bytes_per_s));
    let mut rows = vec![row(&["resource", "there is", "used", "binds"])];
    for (resource, there, used, limited) in [
        (Resource::Cores, format!("{}", machine.cores), plan.use_.cores, true),
        (
            Resource::Storage,
            rate(machine.storage_bytes),
            plan.use_.storage,
            machine.storage_bytes.is_finite(),
        ),
        (
            Resource::Requests,
            format!("{}/s", count(machine.storage_requests)),
            plan.use_.requests,
            machine.storage_requests.is_finite(),
        ),
        (Resource::Link, rate(machine.link_bytes), plan.use_.link, machine.link_bytes.is_finite()),
        (Resource::Memory, bytes(machine.memory as f64), plan.use_.memory, true),
    ] {
        if limited {
            let binds = if plan.binds.contains(&resource) { "yes" } else { "" };
            rows.push(vec![resource.name().into(), there, format!("{:.0} %", used * 100.0), binds.into()]);
        }
    }
    lay_out(&rows) + &format!("binds: {}\n", binding(plan))
}

fn binding(plan: &Plan) -> String {
    match &plan.binds[..] {
        [] => "nothing alone".into(),
        [Resource::Demand] => "nothing; every job has what it can use".into(),
        some => some.iter().map(|one| one.name()).collect::<Vec<_>>().join(", "),
    }
}

fn prices(report: &Report) -> String {
    let prices = &report.prices;
    let mut rows = vec![row(&["one more", "deliveries/s"])];
    for (name, gain) in [
        ("GB of memory", prices.gigabyte),
        ("core", prices.core),
        ("MB/s of storage", prices.megabyte),
        ("100 requests/s of storage", prices.requests),
    ] {
        rows.push(vec![name.into(), signed(gain)]);
    }
    let mut notes = String::new();
    for (stream, joined) in report.streams.iter().zip(&prices.jobs) {
        rows.push(vec![format!("job on {}", stream.name), signed(joined.total)]);
        notes += &format!("one more job on {} would get {}/s\n", stream.name, count(joined.gets));
    }
    lay_out(&rows) + &notes
}

fn splits(report: &Report) -> String {
    let memory = (report.machine.memory as f64).max(1.0);
    let one = report.streams.len() == 1;
    let mut titles = vec!["split", "files", "pixels", "pool", "bottleneck", "binds"];
    if one {
        titles.insert(5, "seneca");
    }
    let mut rows = vec![row(&titles)];
    for other in &report.splits {
        let part = |bytes: u64| format!("{:.0} %", bytes as f64 / memory * 100.0);
        let split = other.split;
        let binds = other.binds.iter().map(|one| one.name()).collect::<Vec<_>>().join(", ");
        // A given split has no price of memory; the plan has.
        let binds = if other.name == PLANNED { binding_names(&report.plan) } else { binds };
        let mut cells = vec![
            other.name.into(),
            part(split.encoded),
            part(split.decoded),
            part(split.pool),
            count(other.bottleneck),
            binds,
        ];
        if one {
            cells.insert(5, other.seneca.map_or(NONE.into(), count));
        }
        rows.push(cells);
    }
    lay_out(&rows) + &overdrawn(report)
}

fn binding_names(plan: &Plan) -> String {
    plan.binds.iter().map(|one| one.name()).collect::<Vec<_>>().join(", ")
}

/// A sentence about what the mean of rates asks of storage.
fn overdrawn(report: &Report) -> String {
    let there = report.machine.storage_bytes;
    let asks = |row: &&Row| row.seneca_storage.is_some_and(|bytes| bytes > there * 1.01);
    report.splits.iter().find(asks).map_or(String::new(), |row| {
        format!(
            "seneca is a mean of rates, no bound: its figure for \"{}\" takes {}/s of storage, which has {}/s\n",
            row.name,
            bytes(row.seneca_storage.unwrap_or_default()),
            bytes(there)
        )
    })
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|&cell| cell.to_owned()).collect()
}

/// The first column and words at the left, numbers at the right.
fn lay_out(rows: &[Vec<String>]) -> String {
    let wide = |text: &str| text.chars().count();
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> =
        (0..columns).map(|at| rows.iter().map(|row| wide(&row[at])).max().unwrap_or(0)).collect();
    let words = |at: usize| at == 0 || rows[0][at] == "binds";
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(
            |(at, (cell, &width))| {
                if words(at) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            },
        );
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

fn count(value: f64) -> String {
    if value.abs() < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

fn signed(value: f64) -> String {
    let text = if value.abs() < 0.05 { "0".to_owned() } else { count(value) };
    if value >= 0.05 { format!("+{text}") } else { text }
}

/// A size as people write it, such as `1.50 GB`.
pub(super) fn bytes(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    let (size, unit) = units.into_iter().find(|unit| value >= unit.0 * 0.9995).unwrap_or((1.0, "B"));
    let number = value / size;
    let digits = if number < 9.995 {
        2
    } else if number < 99.95 {
        1
    } else {
        0
    };
    let text = format!("{number:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        let said = [0.0, 512.0, 1.5e9, 250e6, 64e9, 553.8e6, 1e12].map(bytes);
        assert_eq!(said, ["0", "512 B", "1.5 GB", "250 MB", "64 GB", "554 MB", "1 TB"]);
    }

    #[test]
    fn gains_have_a_sign_and_nothing_has_none() {
        assert_eq!([0.01, 3.21, -12.0].map(signed), ["0", "+3.2", "-12"]);
    }
}
