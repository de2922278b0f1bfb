//! `forebay status` and `forebay stop`: ask the daemon how it is, and tell it to end.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use forebay_engine::pipeline::Planning;
use forebay_policy::plan::Split;
use forebay_wire::client::{Client, Error};
use forebay_wire::{self as wire, Done, default_socket};
use rustix::event::PollFlags;
use serde_json::{Value, json};

use crate::Answer;
use crate::hint::Hinted;

/// A daemon has a few seconds to answer what it was asked; after this it hangs.
const END: Duration = Duration::from_secs(20);

/// Arguments of `forebay status`.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Where the daemon listens; default: forebay.sock in the user's runtime directory.
    #[arg(long, env = "FOREBAY_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `forebay stop`.
#[derive(Debug, Args)]
pub(crate) struct Stop {
    /// Where the daemon listens; default: forebay.sock in the user's runtime directory.
    #[arg(long, env = "FOREBAY_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
}

/// How the daemon at `socket` is; nothing where nobody listens.
pub(crate) fn ask(socket: &Path) -> Result<Option<wire::Status>> {
    let Some(mut client) = connect(socket)? else { return Ok(None) };
    match client.call(wire::Ask::Status(Done {}))? {
        wire::Answer::Status(status) => Ok(Some(status)),
        _ => bail!("the daemon gave no status"),
    }
}

/// A connection, or nothing where nobody listens.
fn connect(socket: &Path) -> Result<Option<Client>> {
    match Client::connect(socket) {
        Ok(client) => Ok(Some(client)),
        Err(Error::Nobody { cause, .. }) if is_empty(&cause) => Ok(None),
        Err(error) => bail!(error),
    }
}

/// Whether nobody listens, which is not a failure.
fn is_empty(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

impl Status {
    /// Prints; the answer is no when there is no daemon.
    pub(crate) fn run(self) -> Result<Answer> {
        let socket = self.socket.unwrap_or_else(default_socket);
        let Some(status) = ask(&socket)? else {
            if self.json {
                println!("{}", json!({ "socket": socket, "running": false }));
            } else {
                eprintln!("no daemon serves {}; `forebay serve` starts one", socket.display());
            }
            return Ok(Answer::No);
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&as_json(&socket, &status))?);
        } else {
            print!("{}", table(&socket, &status));
        }
        Ok(Answer::Yes)
    }
}

impl Stop {
    /// Tells the daemon to end and waits until it has; the answer is no when there is none.
    pub(crate) fn run(self) -> Result<Answer> {
        let socket = self.socket.unwrap_or_else(default_socket);
        let process = match Client::stop(&socket) {
            Ok(process) => process,
            Err(Error::Nobody { cause, .. }) if is_empty(&cause) => {
                eprintln!("no daemon serves {}", socket.display());
                return Ok(Answer::No);
            }
            Err(error) => bail!(error),
        };
        let ended = || match &process {
            // Another daemon may listen there by now.
            Some(process) => {
                wire::wait([(process.as_fd(), PollFlags::IN)], Some(Instant::now())).map(|[ended]| ended)
            }
            None => Ok(!socket.exists()),
        };
        let start = Instant::now();
        while !ended()? {
            if start.elapsed() > END {
                let hint = "`forebay status` shows its process; end that";
                bail!(Hinted::new("the daemon was told to end and lives on", hint));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Answer::Yes)
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn number(job: &wire::StatusJob, name: &str) -> u64 {
    job.numbers.iter().find(|number| number.name == name).map_or(0, |number| number.value)
}

fn path(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn as_json(socket: &Path, status: &wire::Status) -> Value {
    let jobs = status.jobs.iter().map(|job| {
        let numbers = job.numbers.iter().map(|n| (n.name.clone(), json!(n.value)));
        json!({
            "job": job.name, "pid": job.pid, "dataset": path(&job.root), "batch": job.batch,
            "epoch": job.epoch, "received": job.received, "samples": job.samples, "lent": job.lent,
            "age_seconds": seconds(job.age_ns),
            "counters": numbers.collect::<serde_json::Map<_, _>>(),
        })
    });
    let streams = status.streams.iter().map(|stream| {
        json!({
            "dataset": path(&stream.root), "jobs": stream.jobs,
            "pool_copies": stream.copies, "pool_slots": stream.slots,
        })
    });
    json!({
        "socket": socket, "running": true, "pid": status.pid, "release": status.release,
        "up_seconds": seconds(status.up_ns), "budget_bytes": status.memory, "bytes": status.bytes,
        "peak_bytes": status.peak_bytes, "encoded_bytes": status.encoded_bytes,
        "decoded_bytes": status.decoded_bytes, "disk_bytes": status.disk_bytes,
        "disk_limit": status.disk_limit, "disk_errors": status.disk_errors,
        "disk_stopped": status.disk_stopped, "threads": status.threads,
        "idle_seconds": seconds(status.idle_ns), "draining": status.draining,
        "jobs": jobs.collect::<Vec<_>>(), "streams": streams.collect::<Vec<_>>(),
        "plan": serde_json::from_str::<Value>(&status.planning).unwrap_or_default(),
    })
}

/// What was decided last about memory.
fn plan_line(planning: &str) -> String {
    let planning: Planning = serde_json::from_str(planning).unwrap_or_default();
    let Some(last) = planning.decisions.last() else { return String::new() };
    let sum =
        |of: fn(&Split) -> u64| last.streams.iter().map(|stream| of(&stream.split)).sum::<u64>() as f64 / 1e9;
    format!(
        "plan      {:.2} GB of files, {:.2} GB decoded, {:.2} GB of copies; {:.0} samples/s, bound by {}; {} ({})\n",
        sum(|split| split.encoded),
        sum(|split| split.decoded),
        sum(|split| split.pool),
        last.after,
        last.binds.join(" and "),
        if last.moved { "changed" } else { "kept" },
        last.reason
    )
}

fn table(socket: &Path, status: &wire::Status) -> String {
    let mut text = format!(
        "daemon    process {} (Forebay {}), up {:.0} s{}\n\
         socket    {}\n\
         memory    {:.2} of {:.2} GB, at most {:.2}\n\
         kept      {:.2} GB of files, {:.2} GB of decoded images\n\
         threads   {}, idle for {:.0} s in all\n",
        status.pid,
        status.release,
        seconds(status.up_ns),
        if status.draining { ", ending" } else { "" },
        socket.display(),
        status.bytes as f64 / 1e9,
        status.memory as f64 / 1e9,
        status.peak_bytes as f64 / 1e9,
        status.encoded_bytes as f64 / 1e9,
        status.decoded_bytes as f64 / 1e9,
        status.threads,
        seconds(status.idle_ns),
    );
    if status.disk_limit > 0 {
        let trouble = match (status.disk_errors, status.disk_stopped) {
            (0, _) => String::new(),
            (errors, false) => format!(", {errors} errors"),
            (errors, true) => format!(", {errors} errors; it is written no more"),
        };
        let (now, most) = (status.disk_bytes as f64 / 1e9, status.disk_limit as f64 / 1e9);
        text.push_str(&format!("disk      {now:.2} of {most:.2} GB of files{trouble}\n"));
    }
    for stream in &status.streams {
        text.push_str(&format!(
            "stream    {}: {} jobs, {} copies in a pool for {}\n",
            path(&stream.root),
            stream.jobs,
            stream.copies,
            stream.slots
        ));
    }
    text.push_str(&plan_line(&status.planning));
    if status.jobs.is_empty() {
        text.push_str("\nno jobs\n");
        return text;
    }
    let width = status.jobs.iter().map(|job| job.name.chars().count()).max().unwrap_or(0).max(3);
    text.push_str(&format!(
        "\n{:<width$} {:>8} {:>6} {:>6} {:>7} {:>10} {:>10} {:>9} {:>5}\n",
        "job", "process", "batch", "epoch", "done", "delivered", "samples/s", "waited", "lent"
    ));
    for job in &status.jobs {
        let age = seconds(job.age_ns).max(1e-9);
        let done = 100.0 * job.received as f64 / job.samples.max(1) as f64;
        let delivered = number(job, "deliveries");
        let waited = format!("{:.1} s", seconds(number(job, "wait_ns")));
        text.push_str(&format!(
            "{:<width$} {:>8} {:>6} {:>6} {:>7} {:>10} {:>10.0} {:>9} {:>5}\n",
            job.name,
            job.pid,
            job.batch,
            job.epoch,
            format!("{done:.0} %"),
            delivered,
            delivered as f64 / age,
            waited,
            job.lent
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_a_row_with_its_rate() {
        let delivered = wire::Number { name: "deliveries".into(), value: 300 };
        let job = wire::StatusJob {
            name: "train".into(),
            pid: 7,
            batch: 64,
            epoch: 2,
            received: 50,
            samples: 100,
            numbers: vec![delivered],
            age_ns: 2_000_000_000,
            ..Default::default()
        };
        let planning = r#"{"machine": null, "streams": [], "decisions": [{"time": 1, "reason": "job 2 joined",
            "moved": true, "before": 900.0, "after": 1200.0, "binds": ["cores"], "streams": [{"root": "/d",
            "encoded": 0, "decoded": 2500000000, "pool": 500000000, "rates": [600.0, 600.0]}]}]}"#;
        let status = wire::Status {
            pid: 3,
            memory: 4_000_000_000,
            jobs: vec![job],
            planning: planning.into(),
            ..Default::default()
        };
        let text = table(Path::new("/s"), &status);
        assert!(
            text.contains("2.50 GB decoded, 0.50 GB of copies; 1200 samples/s, bound by cores"),
            "{text}"
        );
        assert!(text.contains("train        7     64      2    50 %        300        150"), "{text}");
        let json = as_json(Path::new("/s"), &status);
        assert_eq!(json["jobs"][0]["counters"]["deliveries"], 300);
        assert_eq!(json["running"], true);
        assert!(!text.contains("disk"), "{text}");
    }

    #[test]
    fn a_disk_is_a_line_with_its_trouble() {
        let mut status =
            wire::Status { disk_bytes: 1_500_000_000, disk_limit: 8_000_000_000, ..Default::default() };
        let line = |status: &wire::Status| {
            let text = table(Path::new("/s"), status);
            text.lines().find(|line| line.starts_with("disk")).unwrap_or_default().to_string()
        };
        assert_eq!(line(&status), "disk      1.50 of 8.00 GB of files");
        (status.disk_errors, status.disk_stopped) = (3, true);
        assert_eq!(line(&status), "disk      1.50 of 8.00 GB of files, 3 errors; it is written no more");
    }
}
