//! `forebay bench throttle`: the simulated device that other benches slow reads down with, and whether it
//! gives what it says.
//!
//! Files of 100 kB are read one after another by one and by four readers: threads of this program, processes
//! of Python, and both at once, which share the device. What was read is counted by the device itself.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use forebay_arena::throttle::{Device, Throttle};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::report::{Metric, Pair, Report, Series};
use super::script::{Config, Python, Started};
use super::setup::SEED;
use crate::{Answer, interrupt, python};

const FILES: u64 = 64;
const BYTES: usize = 100_000;
const PATIENCE: Duration = Duration::from_secs(60);
/// A device that gives more than this over its numbers is no device.
const MOST: f64 = 1.02;

const MEGABYTES: Metric = Metric { name: "MB/s", digits: 1 };
const REQUESTS: Metric = Metric { name: "requests/s", digits: 1 };

/// Threads of this program, processes of Python.
const CASES: [(&str, usize, usize); 5] =
    [("rust", 1, 0), ("python", 0, 1), ("rust", 4, 0), ("python", 0, 4), ("both", 2, 2)];

/// Arguments of `forebay bench throttle`.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// hdd, nfs, s3, or numbers such as bandwidth=200MB/s,latency=1ms,inflight=64,seek=0ms.
    #[arg(long, default_value = "nfs")]
    device: Device,
    /// Only make the device, in this file; loaders with FOREBAY_THROTTLE=FILE in their environment obey it.
    #[arg(long, value_name = "FILE")]
    make: Option<PathBuf>,
    /// How often each case is measured.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// How long.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// The Python that reads; default: .bench-env, the active environment, else python3.
    #[arg(long, env = "FOREBAY_PYTHON")]
    python: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
enum Ask<'a> {
    Run { files: &'a [PathBuf], count: usize, seconds: f64 },
}

#[derive(Debug, Deserialize)]
struct Done {
    #[serde(rename = "done")]
    _done: bool,
}

impl Check {
    /// Makes the device; unless that was all, measures it.
    pub(crate) fn run(self) -> Result<Answer> {
        let make = |path: &Path| {
            Throttle::create(path, self.device)
                .with_context(|| format!("cannot make a throttle in {}", path.display()))
        };
        eprintln!("{}", self.device.describe());
        if let Some(path) = &self.make {
            make(path)?;
            println!("FOREBAY_THROTTLE={}", std::path::absolute(path)?.display());
            return Ok(Answer::Yes);
        }
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let path = folder.path().join("throttle");
        let throttle = make(&path)?;
        let files = write_files(folder.path())?;
        let config = Config { throttle: Some(&path), ..Config::new(folder.path(), folder.path(), 1) };
        let interpreter = python::find(self.python.as_deref(), &[Path::new(".bench-env")]);
        let mut script = Python::open(&interpreter, &[include_str!("sides/pace.py")], &config)?;
        let mut machine = Machine::read(1);
        if let Started::Ready(version) = script.wait()? {
            machine.versions.insert("python".into(), version);
        }
        let series = self.measure(&throttle, &files, &mut script)?;
        let case = |rust: usize, python: usize| (rust + python).to_string();
        let pairs: Vec<_> = CASES
            .iter()
            .map(|&(side, r, p)| Pair::new((side, case(r, p)), ("nominal", case(r, p)), case(r, p)))
            .collect();
        let report = Report::new("throttle", machine, &series, &[REQUESTS], &pairs, SEED);
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print!("{}", table(&report));
        }
        Ok(self.judge(&series))
    }

    /// Every case in every round; beside them what the numbers promise.
    fn measure(&self, throttle: &Throttle, files: &[PathBuf], script: &mut Python) -> Result<Vec<Series>> {
        let bar = ProgressBar::new(self.rounds * CASES.len() as u64).with_style(
            ProgressStyle::with_template("{wide_bar} {pos}/{len} turns, {elapsed} (about {eta} left) {msg}")?,
        );
        let mut series = Vec::new();
        for readers in [1, 4] {
            let rate = self.device.nominal(readers, BYTES as u64, false);
            add(&mut series, "nominal", readers, &vec![rate; self.rounds as usize]);
        }
        for (side, rust, python) in CASES {
            let mut rates = Vec::new();
            for _ in 0..self.rounds {
                interrupt::check()?;
                bar.set_message(format!("{side} {}", rust + python));
                rates.push(self.turn(throttle, files, script, rust, python)?);
                bar.inc(1);
            }
            add(&mut series, side, rust + python, &rates);
        }
        bar.finish_and_clear();
        Ok(series)
    }

    /// Requests per second of `rust` threads and `python` processes together.
    fn turn(
        &self,
        throttle: &Throttle,
        files: &[PathBuf],
        script: &mut Python,
        rust: usize,
        python: usize,
    ) -> Result<f64> {
        throttle.reset()?;
        let begun = Instant::now();
        if python > 0 {
            script.send(&Ask::Run { files, count: python, seconds: self.seconds })?;
        }
        let until = begun + Duration::from_secs_f64(self.seconds);
        thread::scope(|scope| {
            let readers: Vec<_> =
                (0..rust).map(|first| scope.spawn(move || read(throttle, files, first, until))).collect();
            readers.into_iter().try_for_each(|one| one.join().expect("a reader does not panic"))
        })?;
        if python > 0 {
            script.receive::<Done>(PATIENCE)?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        Ok(throttle.counted()?.requests as f64 / seconds)
    }

    /// No, when somebody got more than there is.
    fn judge(&self, series: &[Series]) -> Answer {
        let too_fast =
            series.iter().filter(|one| one.metric == REQUESTS && one.side != "nominal").any(|one| {
                let readers = one.case.parse().unwrap_or(1);
                let most = self.device.nominal(readers, BYTES as u64, false) * MOST;
                one.values.iter().flatten().any(|&rate| rate > most)
            });
        if too_fast {
            eprintln!("error: a case got more than the device has");
            return Answer::No;
        }
        Answer::Yes
    }
}

fn add(series: &mut Vec<Series>, side: &'static str, readers: usize, rates: &[f64]) {
    for (metric, factor) in [(MEGABYTES, BYTES as f64 / 1e6), (REQUESTS, 1.0)] {
        let values = rates.iter().map(|rate| Some(rate * factor)).collect();
        series.push(Series { side, case: readers.to_string(), metric, values });
    }
}

fn read(throttle: &Throttle, files: &[PathBuf], first: usize, until: Instant) -> Result<()> {
    let mut at = first;
    while Instant::now() < until {
        let path = &files[at % files.len()];
        let found = fs::metadata(path)?;
        throttle.read((found.dev(), found.ino()), 0, found.len())?;
        fs::read(path)?;
        at += 1;
    }
    Ok(())
}

fn write_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let write = |i: u64| {
        let path = folder.join(format!("{i}"));
        fs::write(&path, vec![i as u8; BYTES]).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    };
    (0..FILES).map(write).collect()
}

fn table(report: &Report) -> String {
    let mut text = format!("{:<10}{:>8}{:>10}{:>14}\n", "side", "readers", MEGABYTES.name, REQUESTS.name);
    let of = |name: &'static str| report.results().iter().filter(move |one| one.metric == name);
    for (megabytes, requests) in of(MEGABYTES.name).zip(of(REQUESTS.name)) {
        text.push_str(&format!(
            "{:<10}{:>8}{:>10.1}{:>14.1}\n",
            megabytes.side, megabytes.case, megabytes.median, requests.median
        ));
    }
    text + &report.comparison()
}

#[cfg(test)]
mod tests {
    use forebay_arena::throttle::now_ns;

    use super::*;
    use crate::rng::Rng;
    use crate::worker::Worker;

    const SIDE: &str = include_str!("sides/throttle.py");

    /// Random requests: time, file, offset, bytes; some go on where the last one ended.
    fn requests(seed: u64) -> Vec<(u64, u64, u64, u64)> {
        let mut rng = Rng::new(seed, 0);
        let mut number = |most: f32| rng.between(0.0, most) as u64;
        let (mut now, mut end) = (1_000, (1, 0));
        let mut all = Vec::new();
        for _ in 0..300 {
            now += number(2e6);
            let (file, offset) = if number(3.0) == 0 { end } else { (number(5.0), number(9.0) * 1000) };
            let bytes = number(3e5);
            end = (file, offset + bytes);
            all.push((now, file, offset, bytes));
        }
        all
    }

    #[test]
    fn python_and_rust_take_turns_on_one_file_and_come_to_the_same_times() {
        let script = [
            SIDE,
            "
import json
throttle = Throttle(json.loads(sys.argv[1]))
for line in sys.stdin:
    now, file, offset, size = json.loads(line)
    print(json.dumps(throttle.book(now, (7, file), offset, size)), flush=True)
",
        ]
        .concat();
        let custom = "bandwidth=93MB/s,latency=3ms,inflight=5,seek=2ms".parse().unwrap();
        for device in [Device::HDD, Device::NFS, Device::S3, custom] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("throttle");
            let throttle = Throttle::create(&path, device).unwrap();
            let mut python = Worker::open(Path::new("python3"), &script, &path).unwrap();
            // What one process alone would have got.
            let mut expected = device.idle();
            for (i, (now, file, offset, bytes)) in requests(device.bandwidth).into_iter().enumerate() {
                let booked = if i % 2 == 0 {
                    let booked = throttle.book(now, (7, file), offset, bytes).unwrap();
                    (booked.start_ns, booked.done_ns)
                } else {
                    python.send(&(now, file, offset, bytes)).unwrap();
                    python.receive(PATIENCE).unwrap().unwrap()
                };
                let want = device.schedule(&mut expected, now, (7, file), offset, bytes);
                assert_eq!(booked, (want.start_ns, want.done_ns), "request {i} of {device}");
            }
            assert_eq!(throttle.counted().unwrap(), expected.counted);
        }
    }

    #[test]
    fn python_opens_pay_once_for_what_they_read_and_forked_children_pay_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("throttle");
        let throttle = Throttle::create(&path, "bandwidth=10GB/s".parse().unwrap()).unwrap();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        let files = write_files(&data).unwrap();
        fs::write(data.join("large"), vec![0; 9 << 20]).unwrap();
        let script = [
            SIDE,
            "
import json, pathlib
throttle, data = json.loads(sys.argv[1])
os.environ['FOREBAY_THROTTLE'] = throttle
plain = open
try:
    Throttle(__file__)
    raise SystemExit('a foreign file was taken')
except ValueError:
    pass
patch(data)
def said(*_):
    print(json.dumps(len(sys.argv)), flush=True)
def once(path):
    with open(path, 'rb') as file:
        assert file.read(10) == bytes(10)
        file.seek(0)
        assert len(file.read()) == 100_000
sys.stdin.readline(); once(data + '/0'); said()
sys.stdin.readline(); assert len(pathlib.Path(data, '0').read_text()) == 100_000; said()
sys.stdin.readline(); assert len(plain(data + '/0', 'rb').read()) == 100_000; said()
sys.stdin.readline(); assert len(open(__file__).read()); said()
sys.stdin.readline(); assert len(open_throttled(data + '/large').read()) == 9 << 20; said()
sys.stdin.readline()
for _ in range(3):
    child = os.fork()
    if not child:
        once(data + '/0')
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
said()
",
        ]
        .concat();
        let mut python = Worker::open(Path::new("python3"), &script, &(&path, &data)).unwrap();
        let (whole, large) = (BYTES as u64, 9 << 20);
        for (step, requests, bytes) in [
            ("open", 1, whole),
            ("pathlib", 1, whole),
            ("the old open", 0, 0),
            ("a file elsewhere", 0, 0),
            ("windows", 3, large),
            ("children", 3, 3 * whole),
        ] {
            throttle.reset().unwrap();
            python.send(&step).unwrap();
            let said: Option<u64> = python.receive(PATIENCE).unwrap();
            assert!(said.is_some(), "{step}: {}", python.last_words());
            let counted = throttle.counted().unwrap();
            assert_eq!((counted.requests, counted.bytes), (requests, bytes), "{step}");
        }
        assert_eq!(files.len() as u64, FILES);
    }

    #[test]
    fn a_read_takes_its_time_on_the_clock_of_the_device() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("throttle");
        let throttle = Throttle::create(&path, "nfs".parse().unwrap()).unwrap();
        let files = write_files(folder.path()).unwrap();
        let begun = now_ns();
        read(&throttle, &files, 0, Instant::now() + Duration::from_millis(1)).unwrap();
        assert!(now_ns() - begun >= 1_400_000);
        assert!(throttle.counted().unwrap().requests >= 1);
    }
}
