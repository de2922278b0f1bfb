//! One connection, from its first message to its end.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_engine::Error;
use forebay_engine::batch::Lease;
use forebay_engine::pipeline::{Job, Next};
use forebay_engine::storage::{Dataset, Folder};
use forebay_policy::Received;
use forebay_wire::{
    Answer, Ask, Done, Facts, Failures, Fault, FaultKind, Feed, Frames, Hello, Join, Joined, Number, Open,
    Opened, Parts, Peer, Reply, Request, Sender, Start, Status, StatusStream, Trouble, VERSION, Wants, wait,
};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::board::{Entry, Listed, numbers};
use crate::{DRAIN, House, convert, log};

/// A message must be whole, and an answer taken, by then.
const DEADLINE: Duration = Duration::from_secs(30);
/// Batches that may be asked for at a time: the one awaited and the next.
const WANTED: usize = 2;
/// Samples that a job may feed ahead of what it receives.
const FED: u64 = 1 << 22;
/// Folders of a dataset at most: each has its index mapped.
const FOLDERS: usize = 1024;
/// Longest name of a job.
const NAME: usize = 256;

/// Why a session ends before its client wished it.
type End<T = ()> = Result<T, Trouble>;

struct Session {
    house: Arc<House>,
    entry: Entry,
    socket: OwnedFd,
    sender: Sender,
    pid: u32,
    /// Becomes readable when the client's process ends; `None` when it lives in another namespace.
    process: Option<OwnedFd>,
    met: bool,
    seat: Option<Seat>,
    /// What the client holds. It stays the client's when the job leaves.
    leases: HashMap<u64, Arc<Lease>>,
}

/// The job of a session.
struct Seat {
    job: Job,
    listed: Arc<Listed>,
    started: bool,
    wanted: VecDeque<u64>,
    /// Slots whose descriptor the client has.
    passed: HashSet<u64>,
    /// Samples in the largest batch so far.
    given: u64,
    /// Samples fed and not received.
    fed: u64,
    /// Samples that were received and will be fed again.
    again: u64,
}

/// Serves a connection until either side has enough of it.
pub(crate) fn run(house: Arc<House>, socket: OwnedFd, entry: Entry) {
    let Some((pid, process)) = watch(&socket) else { return };
    let sender = Sender::default();
    let mut session = Session {
        house,
        entry,
        socket,
        sender,
        pid,
        process,
        met: false,
        seat: None,
        leases: HashMap::new(),
    };
    let name = |session: &Session| match &session.seat {
        Some(seat) => format!("job {} (process {})", seat.listed.name, session.pid),
        None => format!("process {}", session.pid),
    };
    match session.serve() {
        Ok(()) | Err(Trouble::Closed) => {
            if session.seat.is_some() {
                log(format!("{} is gone", name(&session)));
            }
        }
        Err(trouble) => log(format!("{}: connection closed: {trouble}", name(&session))),
    }
}

/// The client's process, and a descriptor that tells its end; nothing if it is gone already.
fn watch(socket: &OwnedFd) -> Option<(u32, Option<OwnedFd>)> {
    let Some(process) = Peer::of(socket).ok()?.pid else { return Some((0, None)) };
    let pid = process.as_raw_nonzero().get() as u32;
    match pidfd_open(process, PidfdFlags::empty()) {
        Ok(process) => Some((pid, Some(process))),
        // It died and left its socket to a child.
        Err(Errno::SRCH) => None,
        // Sandboxes may forbid it: then the socket alone tells.
        Err(_) => Some((pid, None)),
    }
}

impl Session {
    fn serve(&mut self) -> End {
        let mut frames = Frames::default();
        let begun = Instant::now();
        let mut partial: Option<Instant> = None;
        let mut drain: Option<Instant> = None;
        loop {
            while let Some(request) = frames.message::<Request>()? {
                partial = None;
                if frames.descriptor().is_some() {
                    return Err(Trouble::Lie("it sent a descriptor".into()));
                }
                self.handle(request)?;
            }
            self.give()?;
            if self.house.stop.is_told() {
                let end = *drain.get_or_insert_with(|| Instant::now() + DRAIN);
                let idle = self.seat.as_ref().is_none_or(|seat| seat.wanted.is_empty());
                if idle || Instant::now() >= end {
                    return Ok(());
                }
            }
            if frames.is_partial() {
                partial.get_or_insert_with(Instant::now);
            }
            let greeting = (!self.met).then(|| begun + DEADLINE);
            let deadline =
                [partial.map(|since| since + DEADLINE), greeting, drain].into_iter().flatten().min();
            let socket = self.socket.as_fd();
            // A descriptor that is not there is stood in for by one that is.
            // Nobody hushes the bell of a job that asks for nothing.
            let bell =
                self.seat.as_ref().filter(|seat| !seat.wanted.is_empty()).and_then(|seat| seat.job.bell());
            let stop = drain.is_none().then(|| self.house.stop.event.as_fd());
            let [incoming, dead, _, _] = wait(
                [
                    (socket, PollFlags::IN),
                    (self.process.as_ref().map_or(socket, |process| process.as_fd()), PollFlags::IN),
                    (bell.unwrap_or(socket), PollFlags::IN),
                    (stop.unwrap_or(socket), PollFlags::IN),
                ],
                deadline,
            )?;
            if dead && self.process.is_some() {
                return Err(Trouble::Closed);
            }
            if incoming {
                frames.read(&self.socket)?;
            } else if partial.is_some_and(|since| since.elapsed() >= DEADLINE)
                || greeting.is_some_and(|end| Instant::now() >= end)
            {
                return Err(Trouble::Late);
            }
        }
    }

    fn reply(&mut self, id: u64, answer: Answer) -> End {
        let reply = Reply { id, answer: Some(answer) };
        let deadline = Instant::now() + DEADLINE;
        let dead = self.process.as_ref().map(AsFd::as_fd);
        self.sender.send(self.socket.as_fd(), &reply, None, deadline, dead)
    }

    fn fault(&mut self, id: u64, error: &Error) -> End {
        self.house.heed(error);
        self.reply(id, Answer::Fault(convert::fault(error)))
    }

    fn done(&mut self, id: u64, result: Result<(), Error>) -> End {
        match result {
            Ok(()) => self.reply(id, Answer::Done(Done {})),
            Err(error) => self.fault(id, &error),
        }
    }

    fn handle(&mut self, Request { id, ask }: Request) -> End {
        let ask = ask.ok_or_else(|| Trouble::Lie("it asked for nothing that is known".into()))?;
        if let Ask::Release(release) = ask {
            return release.slots.into_iter().try_for_each(|slot| self.release(slot));
        }
        if id == 0 {
            return Err(Trouble::Lie("a request without a number".into()));
        }
        if !self.met && !matches!(ask, Ask::Hello(_) | Ask::Stop(_)) {
            return Err(Trouble::Lie("it did not say hello".into()));
        }
        match ask {
            Ask::Hello(hello) => self.hello(id, &hello),
            Ask::Open(open) => self.open(id, &open),
            Ask::Join(join) => self.join(id, join),
            Ask::Start(start) => {
                let result = self.start(&start)?;
                self.done(id, result)?;
                // A job that left in between is told so when it asks.
                let _ = self.seat()?.job.make_slot();
                Ok(())
            }
            Ask::Feed(feed) => {
                let result = self.feed(&feed)?;
                self.done(id, result)
            }
            Ask::Next(wants) => self.want(id, &wants),
            Ask::Release(_) => Ok(()),
            Ask::Leave(_) => {
                if let Some(seat) = self.seat.take() {
                    log(format!("job {} (process {}) left", seat.listed.name, self.pid));
                    self.entry.unlist();
                }
                self.reply(id, Answer::Done(Done {}))
            }
            Ask::Facts(_) => self.facts(id),
            Ask::Failures(_) => match self.seat()?.job.quarantine() {
                Ok(failures) => {
                    let failures = failures.iter().map(convert::failure).collect();
                    self.reply(id, Answer::Failures(Failures { failures }))
                }
                Err(error) => self.fault(id, &error),
            },
            Ask::Quarantine(list) => {
                let seat = self.seat()?;
                if list.failures.len() as u64 > seat.listed.samples {
                    return Err(Trouble::Lie("more failures than samples".into()));
                }
                if list.failures.iter().any(|failure| failure.sample >= seat.listed.samples) {
                    return Err(Trouble::Lie("a failed sample that is not in the dataset".into()));
                }
                let known = list.failures.into_iter().map(convert::known).collect();
                let result = seat.job.set_quarantine(known);
                self.done(id, result)
            }
            Ask::Status(_) => self.status(id),
            Ask::Stop(_) => {
                log(format!("told to end by process {}", self.pid));
                self.reply(id, Answer::Done(Done {}))?;
                self.house.stop.tell();
                Ok(())
            }
        }
    }

    fn seat(&mut self) -> End<&mut Seat> {
        self.seat.as_mut().ok_or_else(|| Trouble::Lie("it has not joined".into()))
    }

    fn hello(&mut self, id: u64, hello: &Hello) -> End {
        if hello.version != VERSION {
            let text = format!(
                "the daemon ({}) speaks version {VERSION} and this process ({}) version {}; \
                 end the daemon with `forebay stop` and start it with the same Forebay",
                env!("CARGO_PKG_VERSION"),
                hello.release,
                hello.version,
            );
            let fault = Fault { kind: FaultKind::Version.into(), text, failure: None };
            return self.reply(id, Answer::Fault(fault));
        }
        self.met = true;
        let hello =
            Hello { version: VERSION, release: env!("CARGO_PKG_VERSION").into(), pid: std::process::id() };
        self.reply(id, Answer::Hello(hello))
    }

    fn folder(&self, root: &[u8]) -> Result<Folder, Error> {
        let root = convert::path(root);
        if !root.is_absolute() {
            return Err(Error::Invalid(format!("{} is not an absolute path", root.display())));
        }
        self.house.scans.open(&root, self.house.engine.config().threads)
    }

    fn open(&mut self, id: u64, open: &Open) -> End {
        match self.folder(&open.root) {
            Ok(folder) => {
                let opened = Opened { samples: folder.len(), fingerprint: folder.fingerprint() };
                self.reply(id, Answer::Opened(opened))
            }
            Err(error) => self.fault(id, &error),
        }
    }

    fn join(&mut self, id: u64, join: Join) -> End {
        if self.seat.is_some() {
            return Err(Trouble::Lie("it joined twice".into()));
        }
        if join.name.is_empty() || join.name.len() > NAME {
            return Err(Trouble::Lie(format!("a name of {} bytes", join.name.len())));
        }
        if self.house.stop.is_told() {
            return self.draining(id);
        }
        match self.seat_of(&join) {
            Ok(seat) => {
                log(format!(
                    "job {} (process {}) joined over {}",
                    join.name,
                    self.pid,
                    seat.listed.root.display()
                ));
                self.seat = Some(seat);
                let config = self.house.engine.config();
                let joined = Joined { memory: config.memory, threads: config.threads as u64 };
                self.reply(id, Answer::Joined(joined))
            }
            Err(fault) => self.reply(id, Answer::Fault(fault)),
        }
    }

    fn seat_of(&self, join: &Join) -> Result<Seat, Fault> {
        let taken = |pid| {
            let text = format!(
                "a job named {:?}{} is connected already (process {pid}); give this one another name with job=",
                join.name,
                if join.ranks > 1 { format!(" with rank {}", join.rank) } else { String::new() },
            );
            Fault { kind: FaultKind::Taken.into(), text, failure: None }
        };
        self.entry.holder(&join.name, join.rank).map_or(Ok(()), |pid| Err(taken(pid)))?;
        let (job, root, [samples, epoch_samples]) = self.job(join).map_err(|error| {
            self.house.heed(&error);
            convert::fault(&error)
        })?;
        let listed = Arc::new(Listed {
            name: join.name.clone(),
            rank: (join.rank, join.ranks),
            pid: self.pid,
            root,
            samples,
            epoch_samples,
            batch: join.batch,
            counters: job.counters().clone(),
            joined: Instant::now(),
            epoch: AtomicU64::new(0),
            received: AtomicU64::new(0),
            lent: AtomicU64::new(0),
        });
        self.entry.list(listed.clone()).map_err(taken)?;
        Ok(Seat {
            job,
            listed,
            started: false,
            wanted: VecDeque::new(),
            passed: HashSet::new(),
            given: 0,
            fed: 0,
            again: 0,
        })
    }

    fn job(&self, join: &Join) -> Result<(Job, PathBuf, [u64; 2]), Error> {
        let damaged = || Error::Invalid("the list of folders is damaged or too long".into());
        let list = Parts::unpack(&join.parts).ok_or_else(damaged)?;
        if list.len() > FOLDERS {
            return Err(Error::Invalid(format!("a dataset has at most {FOLDERS} folders")));
        }
        let mut parts = Vec::new();
        for part in &list {
            let folder = self.folder(&part.root)?;
            if folder.fingerprint() != part.fingerprint {
                return Err(Error::Invalid(format!(
                    "{} changed after this process opened it; open the dataset again",
                    folder.root().display()
                )));
            }
            parts.push(Arc::new(folder));
        }
        let spec = convert::spec(join, Dataset::build(parts)?)?;
        let (root, samples, epoch) = (spec.dataset.root().to_path_buf(), spec.dataset.len(), spec.samples());
        Ok((self.house.engine.join(spec)?, root, [samples, epoch]))
    }

    fn start(&mut self, start: &Start) -> End<Result<(), Error>> {
        let seat = self.seat()?;
        // Batches that are asked for belong to the epoch before.
        seat.wanted.clear();
        seat.listed.epoch.store(start.epoch, Ordering::Relaxed);
        let result = match &start.fed {
            Some(fed) => {
                let feeding = convert::feeding(fed, seat.listed.samples)?;
                (seat.fed, seat.again) = (0, fed.base - fed.passed);
                seat.job.start_fed(start.epoch, feeding)
            }
            None => {
                let read = |text: &str| match text {
                    "" => Ok(Received::default()),
                    text => serde_json::from_str::<Received>(text),
                };
                match (read(&start.received), read(&start.own)) {
                    (Ok(received), Ok(own)) => seat.job.start_rank(start.epoch, &received, &own, start.steps),
                    _ => Err(Error::Invalid("the received set is damaged".into())),
                }
            }
        };
        seat.started = result.is_ok();
        Ok(result)
    }

    fn feed(&mut self, feed: &Feed) -> End<Result<(), Error>> {
        let seat = self.seat()?;
        let again = seat.again.min(feed.samples.len() as u64);
        seat.again -= again;
        seat.fed += feed.samples.len() as u64 - again;
        if seat.fed > FED + seat.listed.samples {
            return Err(Trouble::Lie(format!("{} samples fed ahead", seat.fed)));
        }
        let fed = if feed.samples.is_empty() { Ok(()) } else { seat.job.feed(&feed.samples) };
        Ok(fed.and_then(|()| if feed.end { seat.job.feed_end() } else { Ok(()) }))
    }

    fn want(&mut self, id: u64, wants: &Wants) -> End {
        if self.house.stop.is_told() {
            return self.draining(id);
        }
        let seat = self.seat()?;
        if !seat.started || seat.wanted.len() >= WANTED {
            return Err(Trouble::Lie("it asked for a batch out of turn".into()));
        }
        seat.wanted.push_back(id);
        seat.listed.received.store(wants.received, Ordering::Relaxed);
        let waited = Duration::from_nanos(wants.waited_ns).min(seat.listed.joined.elapsed());
        seat.job.counters().wait_ns.add(waited.as_nanos() as u64);
        if let Some(busy) = wants.busy_ns {
            // Only the time is believed. A wrong one moves work towards the job or away from it, within what
            // it may have in hand; the cores between streams go by time that was really spent.
            let _ = seat.job.ask(Duration::from_nanos(busy), wants.samples.min(seat.given));
        }
        Ok(())
    }

    fn draining(&mut self, id: u64) -> End {
        let text = "the daemon is about to end".into();
        self.reply(id, Answer::Fault(Fault { kind: FaultKind::Draining.into(), text, failure: None }))
    }

    /// Answers what is asked for, as far as there is something.
    fn give(&mut self) -> End {
        loop {
            let Some(seat) = &mut self.seat else { return Ok(()) };
            let Some(&id) = seat.wanted.front() else { return Ok(()) };
            let next = seat.job.poll_next();
            if matches!(next, Ok(Next::Waiting)) {
                return Ok(());
            }
            seat.wanted.pop_front();
            match next {
                Ok(Next::Batch(batch)) => {
                    seat.given = seat.given.max(batch.positions.len() as u64);
                    seat.fed = seat.fed.saturating_sub((batch.positions.len() + batch.skipped.len()) as u64);
                    let lease = batch.lease.clone();
                    let (Some(slot), Some(descriptor)) = (lease.slot(), lease.descriptor()) else {
                        return Err(Trouble::Lie("a batch is not in a slot".into()));
                    };
                    let mut message = convert::batch(&batch, slot);
                    message.retired = seat.job.retired().unwrap_or_default();
                    seat.passed.retain(|slot| !message.retired.contains(slot));
                    (message.seed, message.clock) = seat.job.clock().unzip();
                    let new = seat.passed.insert(slot);
                    message.bytes = new.then(|| lease.bytes().len() as u64);
                    let reply = Reply { id, answer: Some(Answer::Batch(message)) };
                    self.leases.insert(slot, lease.clone());
                    seat.listed.lent.store(self.leases.len() as u64, Ordering::Relaxed);
                    let deadline = Instant::now() + DEADLINE;
                    let dead = self.process.as_ref().map(AsFd::as_fd);
                    let descriptor = new.then_some(descriptor);
                    self.sender.send(self.socket.as_fd(), &reply, descriptor, deadline, dead)?;
                }
                Ok(Next::End) => self.reply(id, Answer::End(Done {}))?,
                Ok(Next::Hungry) => self.reply(id, Answer::Hungry(Done {}))?,
                Ok(Next::Waiting) => {}
                Err(error) => self.fault(id, &error)?,
            }
        }
    }

    fn release(&mut self, slot: u64) -> End {
        if self.leases.remove(&slot).is_none() {
            return Err(Trouble::Lie(format!("it gave back slot {slot}, which it does not hold")));
        }
        if let Some(seat) = &self.seat {
            seat.listed.lent.store(self.leases.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    fn facts(&mut self, id: u64) -> End {
        let engine = self.house.engine.clone();
        let seat = self.seat()?;
        let mut list = numbers(seat.job.counters());
        let (now, peak) = engine.memory();
        let config = engine.config();
        let mut add = |name: &str, value| list.push(Number { name: name.into(), value });
        add("idle_ns", engine.idle_ns());
        add("bytes", now);
        add("peak_bytes", peak);
        add("budget_bytes", config.memory);
        add("threads", config.threads as u64);
        let [encoded, decoded] = engine.kept();
        add("encoded_bytes", encoded);
        add("decoded_bytes", decoded);
        add("disk_bytes", engine.disk().bytes);
        if let Some([jobs, copies, slots]) = seat.job.pool() {
            add("stream_jobs", jobs);
            add("pool_copies", copies);
            add("pool_slots", slots);
        }
        self.reply(id, Answer::Facts(Facts { numbers: list }))
    }

    fn status(&mut self, id: u64) -> End {
        let engine = &self.house.engine;
        let (bytes, peak_bytes) = engine.memory();
        let [encoded_bytes, decoded_bytes] = engine.kept();
        let disk = engine.disk();
        let streams = engine.streams().into_iter().map(|(root, [jobs, copies, slots])| StatusStream {
            root: root.into_os_string().into_encoded_bytes(),
            jobs,
            copies,
            slots,
        });
        let status = Status {
            pid: std::process::id(),
            release: env!("CARGO_PKG_VERSION").into(),
            up_ns: self.house.started.elapsed().as_nanos() as u64,
            memory: engine.config().memory,
            bytes,
            peak_bytes,
            threads: engine.config().threads as u64,
            idle_ns: engine.idle_ns(),
            jobs: self.house.board.list(),
            streams: streams.collect(),
            draining: self.house.stop.is_told(),
            encoded_bytes,
            decoded_bytes,
            planning: serde_json::to_string(&engine.planning()).unwrap_or_default(),
            disk_bytes: disk.bytes,
            disk_limit: disk.limit,
            disk_errors: disk.errors,
            disk_stopped: disk.stopped,
        };
        self.reply(id, Answer::Status(status))
    }
}
