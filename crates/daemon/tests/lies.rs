//! What no honest client sends harms nobody: the connection ends, and others lose nothing.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_daemon::{Daemon, Options, Stop};
use forebay_engine::Config;
use forebay_engine::decode::jpeg::{Subsampling, encode};
use forebay_engine::storage::Folder;
use forebay_wire::client::{Client, Error, Next};
use forebay_wire::{
    Ask, Done, FRAME, Failure, Failures, FaultKind, Fed, Feed, Hello, Join, Open, Part, Parts, Picks,
    Release, Request, Sharing, Start, VERSION, Wants,
};
use prost::Message;
use rand_core::{Rng, SeedableRng};

const SAMPLES: u64 = 23;
const RECIPE: &str = r#"{"steps": [{"op": "random_resized_crop", "height": 8, "width": 8, "scale": [0.5, 1.0],
    "ratio": [0.75, 1.3]}, {"op": "to_float", "scale": true}]}"#;

/// A daemon in this process, over a folder of its own.
struct House {
    dir: tempfile::TempDir,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl House {
    fn open() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let class = dir.path().join("data/class");
        std::fs::create_dir_all(&class).expect("a folder");
        for i in 0..SAMPLES as usize {
            let rgb: Vec<u8> = (0..12 * 10 * 3).map(|b| (b * 7 + i * 31) as u8).collect();
            let bytes = encode(&rgb, 12, 10, 80, Subsampling::S444).expect("a JPEG");
            std::fs::write(class.join(format!("{i:03}.jpg")), bytes).expect("written");
        }
        let config = Config::new(64 << 20, 2);
        let options = Options { socket: dir.path().join("s.sock"), config, idle_exit: None };
        let daemon = Daemon::bind(options).expect("a daemon");
        let stop = daemon.stop();
        let thread = std::thread::spawn(move || daemon.run().expect("it serves"));
        House { dir, stop, thread: Some(thread) }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("s.sock")
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn honest(&self, name: &str) -> Honest {
        let mut client = Client::connect(&self.socket()).expect("connected");
        client.call(Ask::Join(join(&self.data(), name))).expect("joined");
        Honest { client, epoch: 0 }
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.stop.tell();
        self.thread.take().map(JoinHandle::join);
    }
}

fn join(data: &Path, name: &str) -> Join {
    let folder = Folder::open(data, 1, &|_| ()).expect("a dataset");
    let sharing = Sharing { order: None, level: "augmented".into(), mixing: 0.1, seed: None, clock: None };
    let part = Part {
        root: data.canonicalize().expect("it exists").into_os_string().into_encoded_bytes(),
        fingerprint: folder.fingerprint(),
    };
    Join {
        parts: Parts::pack(vec![part]),
        remainder: "pad".into(),
        ranks: 1,
        recipe: RECIPE.into(),
        batch: 4,
        shuffle: true,
        on_error: "raise".into(),
        sharing: Some(sharing),
        name: name.into(),
        ..Join::default()
    }
}

/// A client that keeps the rules and counts what it gets.
struct Honest {
    client: Client,
    epoch: u64,
}

impl Honest {
    fn whole_epoch(&mut self) {
        let start = Start { epoch: self.epoch, ..Start::default() };
        let id = self.client.start(start, 0).expect("asked");
        self.client.answer(id, Duration::from_secs(60)).expect("started").expect("in time");
        self.epoch += 1;
        let mut seen = Vec::new();
        loop {
            match self.client.next(Duration::from_secs(60)).expect("the daemon lives") {
                Next::Batch(batch) => seen.extend(batch.samples.clone()),
                Next::End => break,
                other => panic!("{other:?}"),
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..SAMPLES).collect::<Vec<_>>());
    }
}

/// A client that writes what it likes.
struct Liar {
    socket: UnixStream,
    id: u64,
}

impl Liar {
    fn connect(house: &House) -> Self {
        let socket = UnixStream::connect(house.socket()).expect("connected");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        Liar { socket, id: 0 }
    }

    fn met(house: &House) -> Self {
        let mut liar = Liar::connect(house);
        liar.ask(hello());
        liar
    }

    fn joined(house: &House) -> Self {
        let mut liar = Liar::met(house);
        liar.ask(Ask::Join(join(&house.data(), "liar")));
        liar
    }

    fn started(house: &House) -> Self {
        let mut liar = Liar::joined(house);
        liar.ask(Ask::Start(Start::default()));
        liar
    }

    fn ask(&mut self, ask: Ask) -> bool {
        self.id += 1;
        self.raw(&frame(&Request { id: self.id, ask: Some(ask) }.encode_to_vec()))
    }

    /// Whether the daemon still takes it.
    fn raw(&mut self, bytes: &[u8]) -> bool {
        self.socket.write_all(bytes).is_ok()
    }

    /// Reads until the daemon has closed the connection.
    fn closed(mut self) -> bool {
        let mut sink = [0; 4096];
        loop {
            match self.socket.read(&mut sink) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }
}

fn frame(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

/// A message in several frames.
fn frames(bytes: &[u8]) -> Vec<u8> {
    let parts = bytes.chunks(FRAME).enumerate().map(|(at, part)| {
        let more = if (at + 1) * FRAME < bytes.len() { 1 << 31 } else { 0 };
        [&(part.len() as u32 | more).to_le_bytes(), part].concat()
    });
    parts.collect::<Vec<_>>().concat()
}

fn hello() -> Ask {
    Ask::Hello(Hello { version: VERSION, ..Hello::default() })
}

fn failures(sample: u64) -> Ask {
    Ask::Quarantine(Failures { failures: vec![Failure { sample, ..Failure::default() }] })
}

#[test]
fn every_lie_ends_its_connection_and_nothing_else() {
    let house = House::open();
    let mut honest = house.honest("honest");
    honest.whole_epoch();
    type Lie = Box<dyn Fn(&House) -> Liar>;
    let lies: Vec<(&str, Lie)> = vec![
        ("nothing asked", Box::new(|h| with(Liar::met(h), |l| l.raw(&frame(&[]))))),
        ("no hello", Box::new(|h| with(Liar::connect(h), |l| l.ask(Ask::Status(Done {}))))),
        (
            "no number",
            Box::new(|h| {
                let request = Request { id: 0, ask: Some(Ask::Status(Done {})) };
                with(Liar::met(h), |l| l.raw(&frame(&request.encode_to_vec())))
            }),
        ),
        ("not joined", Box::new(|h| with(Liar::met(h), |l| l.ask(Ask::Start(Start::default()))))),
        ("joined twice", Box::new(|h| with(Liar::joined(h), |l| l.ask(Ask::Join(join(&h.data(), "two")))))),
        ("no name", Box::new(|h| with(Liar::met(h), |l| l.ask(Ask::Join(join(&h.data(), "")))))),
        (
            "a long name",
            Box::new(|h| with(Liar::met(h), |l| l.ask(Ask::Join(join(&h.data(), &"x".repeat(300)))))),
        ),
        ("not started", Box::new(|h| with(Liar::joined(h), |l| l.ask(Ask::Next(Wants::default()))))),
        (
            "three at a time",
            Box::new(|h| {
                // Without slots given back the third is still open.
                with(Liar::started(h), |l| (0..8).all(|_| l.ask(Ask::Next(Wants::default()))))
            }),
        ),
        (
            "a slot it does not hold",
            Box::new(|h| with(Liar::started(h), |l| l.ask(Ask::Release(Release { slots: vec![1 << 40] })))),
        ),
        ("a sample that is not there", Box::new(|h| with(Liar::joined(h), |l| l.ask(failures(SAMPLES))))),
        (
            "more skipped than passed",
            Box::new(|h| {
                let fed = Some(Fed { base: 1, skipped: 2, ..Fed::default() });
                with(Liar::joined(h), |l| l.ask(Ask::Start(Start { fed, ..Start::default() })))
            }),
        ),
        (
            "more passed than received",
            Box::new(|h| {
                let fed = Some(Fed { base: 1, passed: 2, ..Fed::default() });
                with(Liar::joined(h), |l| l.ask(Ask::Start(Start { fed, ..Start::default() })))
            }),
        ),
        (
            "a position that no epoch reaches",
            Box::new(|h| {
                let fed = Some(Fed { base: u64::MAX, passed: u64::MAX, ..Fed::default() });
                with(Liar::joined(h), |l| l.ask(Ask::Start(Start { fed, ..Start::default() })))
            }),
        ),
        (
            "counts of samples that are not there",
            Box::new(|h| {
                let fed = Some(Fed { seen: vec![0; 4 * (SAMPLES as usize + 1)], ..Fed::default() });
                with(Liar::joined(h), |l| l.ask(Ask::Start(Start { fed, ..Start::default() })))
            }),
        ),
        (
            "a list that would take a gigabyte",
            Box::new(|h| {
                // Of each two bytes a failure would be made.
                let failures = vec![Failure::default(); 10 << 20];
                let request = Request { id: 9, ask: Some(Ask::Quarantine(Failures { failures })) };
                with(Liar::joined(h), |l| l.raw(&frames(&request.encode_to_vec())))
            }),
        ),
        (
            "more failures than samples",
            Box::new(|h| {
                let failures = vec![Failure::default(); SAMPLES as usize + 1];
                with(Liar::joined(h), |l| l.ask(Ask::Quarantine(Failures { failures })))
            }),
        ),
        (
            "too much fed",
            Box::new(|h| {
                let fed = Some(Fed::default());
                with(Liar::joined(h), |l| {
                    l.ask(Ask::Start(Start { fed, ..Start::default() }));
                    let samples = vec![0; 1 << 19];
                    (0..10).all(|_| {
                        let feed = Ask::Feed(Feed { samples: samples.clone(), end: false });
                        l.ask(feed)
                    })
                })
            }),
        ),
        ("a frame too long", Box::new(|h| with(Liar::met(h), |l| l.raw(&(FRAME as u32 + 1).to_le_bytes())))),
        (
            "a message without end",
            Box::new(|h| {
                let part = [&(FRAME as u32 | 1 << 31).to_le_bytes()[..], &vec![0; FRAME]].concat();
                with(Liar::met(h), |l| (0..80).all(|_| l.raw(&part)))
            }),
        ),
        ("an empty part", Box::new(|h| with(Liar::met(h), |l| l.raw(&(1u32 << 31).to_le_bytes())))),
        ("no message", Box::new(|h| with(Liar::met(h), |l| l.raw(&frame(&[0xff; 40]))))),
    ];
    for (what, lie) in lies {
        assert!(lie(&house).closed(), "{what}");
        honest.whole_epoch();
    }
}

fn with(mut liar: Liar, act: impl FnOnce(&mut Liar) -> bool) -> Liar {
    act(&mut liar);
    liar
}

#[test]
fn another_version_is_told_so() {
    let house = House::open();
    let mut liar = Liar::connect(&house);
    liar.ask(Ask::Hello(Hello { version: VERSION + 1, ..Hello::default() }));
    let mut header = [0; 4];
    liar.socket.read_exact(&mut header).expect("an answer");
    let mut bytes = vec![0; u32::from_le_bytes(header) as usize];
    liar.socket.read_exact(&mut bytes).expect("all of it");
    let reply = forebay_wire::Reply::decode(&bytes[..]).expect("a message");
    let Some(forebay_wire::Answer::Fault(fault)) = reply.answer else { panic!("{reply:?}") };
    assert_eq!(fault.kind(), FaultKind::Version);
    assert!(fault.text.contains("forebay stop"));
}

#[test]
fn a_daemon_of_another_version_can_be_told_to_end() {
    let mut house = House::open();
    let mut liar = Liar::connect(&house);
    liar.ask(Ask::Hello(Hello { version: VERSION + 1, ..Hello::default() }));
    liar.ask(Ask::Stop(Done {}));
    assert!(liar.closed());
    house.thread.take().expect("it runs").join().expect("it ended well");
}

#[test]
fn a_long_start_is_taken() {
    let house = House::open();
    let mut liar = Liar::joined(&house);
    let received = format!("{{\"base\": 1, \"skipped\": 0, \"beyond\": []{}}}", " ".repeat(9 << 20));
    let start = Start { received, ..Start::default() };
    liar.raw(&frames(&Request { id: 3, ask: Some(Ask::Start(start)) }.encode_to_vec()));
    liar.id = 3;
    liar.ask(Ask::Leave(Done {}));
    let mut answers = [0; 64];
    assert!(liar.socket.read(&mut answers).is_ok_and(|bytes| bytes > 0), "the connection lives");
}

#[test]
fn what_a_job_says_of_samples_keeps_them_from_nobody_else() {
    let house = House::open();
    let skip = |name: &str| Join { on_error: "skip".into(), ..join(&house.data(), name) };
    let joined = |name: &str| {
        let mut client = Client::connect(&house.socket()).expect("connected");
        client.call(Ask::Join(skip(name))).expect("joined");
        Honest { client, epoch: 0 }
    };
    let (mut honest, mut liar) = (joined("honest"), joined("liar"));
    let failures = (0..SAMPLES).map(|sample| Failure { sample, ..Failure::default() }).collect();
    liar.client.call(Ask::Quarantine(Failures { failures })).expect("taken");
    honest.whole_epoch();
    honest.whole_epoch();
}

#[test]
fn a_file_that_is_no_socket_stays() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("model.ckpt");
    std::fs::write(&file, "weeks of work").expect("written");
    let config = Config::new(64 << 20, 2);
    let refused = Daemon::bind(Options { socket: file.clone(), config, idle_exit: None });
    assert!(refused.is_err_and(|error| error.to_string().contains("--socket")));
    assert_eq!(std::fs::read(&file).expect("still there"), b"weeks of work");
}

#[test]
fn two_live_jobs_have_two_names() {
    let house = House::open();
    let mut first = house.honest("one");
    let mut second = Client::connect(&house.socket()).expect("connected");
    let refused = second.call(Ask::Join(join(&house.data(), "one")));
    assert!(matches!(refused, Err(Error::Fault(fault)) if fault.kind() == FaultKind::Taken));
    first.client.leave().expect("left");
    second.call(Ask::Join(join(&house.data(), "one"))).expect("the name is free");
}

/// Frames that are broken in every way, while an honest job goes on.
#[test]
fn broken_frames_harm_nobody() {
    let long = std::env::var("FOREBAY_TEST_LONG").is_ok_and(|value| value == "1");
    let frames = if long { 1_000_000 } else { 20_000 };
    // A panic in a thread of the daemon would otherwise be the end of one connection only.
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        before(panic);
    }));
    let house = House::open();
    let mut honest = house.honest("honest");
    let mut dice = rand_chacha::ChaCha8Rng::seed_from_u64(7);
    let mut liar = Liar::met(&house);
    let mut sent = 0;
    while sent < frames {
        let alive = match dice.next_u32() % 40 {
            0 => {
                let mut bytes = vec![0; (dice.next_u32() % 200) as usize];
                dice.fill_bytes(&mut bytes);
                liar.raw(&bytes)
            }
            1..=20 => {
                let ask = any_ask(&mut dice, &house.data());
                liar.ask(ask)
            }
            // A true message with some bytes of it changed, or its end cut off.
            _ => {
                let ask = any_ask(&mut dice, &house.data());
                let mut bytes =
                    Request { id: u64::from(dice.next_u32() % 9), ask: Some(ask) }.encode_to_vec();
                for _ in 0..dice.next_u32() % 4 {
                    if !bytes.is_empty() {
                        let at = dice.next_u32() as usize % bytes.len();
                        bytes[at] = dice.next_u32() as u8;
                    }
                }
                if dice.next_u32().is_multiple_of(4) {
                    bytes.truncate(dice.next_u32() as usize % (bytes.len() + 1));
                }
                // To end the daemon is no lie.
                let stop = |request: Request| matches!(request.ask, Some(Ask::Stop(_)));
                Request::decode(&bytes[..]).is_ok_and(stop) || liar.raw(&frame(&bytes))
            }
        };
        sent += 1;
        // Nobody reads the answers: a liar that is not cut off by then fills its socket.
        if !alive || dice.next_u32().is_multiple_of(20) {
            liar = match dice.next_u32() % 4 {
                0 => Liar::connect(&house),
                1 => Liar::met(&house),
                2 => Liar::joined(&house),
                _ => Liar::started(&house),
            };
        }
        if sent % 1000 == 0 {
            honest.whole_epoch();
        }
    }
    drop(liar);
    honest.whole_epoch();
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "the daemon panicked");
}

fn any_ask(dice: &mut rand_chacha::ChaCha8Rng, data: &Path) -> Ask {
    let mut number = || match dice.next_u32() % 4 {
        0 => u64::from(dice.next_u32() % 30),
        1 => dice.next_u64(),
        2 => u64::MAX,
        _ => 0,
    };
    let [a, b, c, d] = std::array::from_fn(|_| number());
    match dice.next_u32() % 12 {
        0 => hello(),
        1 if a < 4 => Ask::Open(Open { root: data.as_os_str().as_encoded_bytes().to_vec() }),
        2 if a < 4 => {
            let sharing = Sharing {
                order: (b != 0).then_some(b),
                level: "augmented".into(),
                mixing: if c == 0 { f64::NAN } else { 0.5 },
                seed: Some(c),
                clock: Some(d),
            };
            let picks = Picks { samples: a, list: vec![b as u8; c as usize % 9], ..Picks::default() };
            Ask::Join(Join {
                batch: b,
                late: c,
                seed: d,
                sharing: Some(sharing),
                rank: a as u32 % 3,
                ranks: if b == 0 { d as u32 } else { 1 + d as u32 % 2 },
                picks: (a % 2 == 0).then_some(picks),
                ..join(data, "liar")
            })
        }
        3 => Ask::Start(Start {
            epoch: a,
            received: if b == 0 {
                format!("{{\"base\": {c}, \"skipped\": {d}, \"beyond\": []}}")
            } else {
                String::new()
            },
            fed: (c == 0).then(|| Fed {
                base: d,
                skipped: a % 3,
                given: b == 0,
                passed: b,
                seen: vec![1; a as usize % 99],
            }),
            steps: b,
            own: if d == 1 {
                format!("{{\"base\": {c}, \"skipped\": 0, \"beyond\": []}}")
            } else {
                String::new()
            },
        }),
        4 => Ask::Feed(Feed { samples: vec![a % 40, b, c % 40], end: d == 0 }),
        5 | 6 => Ask::Next(Wants { received: a, busy_ns: Some(b), samples: c, waited_ns: d }),
        7 => Ask::Release(Release { slots: vec![a, b] }),
        8 => Ask::Facts(Done {}),
        9 => failures(a),
        10 => Ask::Failures(Done {}),
        11 if a == 0 => Ask::Leave(Done {}),
        _ => Ask::Status(Done {}),
    }
}
