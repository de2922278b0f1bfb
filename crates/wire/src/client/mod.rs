//! The job's end of a connection: blocking, without threads.
//!
//! One batch is asked for ahead of the one that the job awaits, so that a round trip never shows. What the
//! daemon says is checked as far as memory depends on it; it runs under the same user and is otherwise
//! believed.

mod lease;
mod link;

pub use lease::Lease;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_arena::View;
use forebay_recipe::{Column, CopyName, Dtype, Field, Kind, Layout, Names, Span, Values};
use rustix::event::PollFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{PidfdFlags, geteuid, pidfd_open};

use crate::Peer;
use crate::frame::{Frames, Trouble, wait};
use crate::message::{self, Answer, Ask, Done, Fault, Hello, Reply, Request, Start, Wants};
use link::Link;

/// Batches on their way at most: the one awaited and the next.
const AHEAD: usize = 2;
/// A request that is not answered by then has failed.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// Whoever does not greet or let go by then hangs.
const GREETING: Duration = Duration::from_secs(5);

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens there.
    #[error("no forebay daemon answers at {path}: {cause}")]
    Nobody {
        /// The socket.
        path: String,
        /// Why not.
        cause: io::Error,
    },
    /// The connection broke.
    #[error("the connection to the forebay daemon is lost: {0}")]
    Lost(Trouble),
    /// The daemon says no.
    #[error("{}", .0.text)]
    Fault(Fault),
}

impl From<Trouble> for Error {
    fn from(trouble: Trouble) -> Self {
        Error::Lost(trouble)
    }
}

/// A batch, lent until the last handle is gone.
#[derive(Debug)]
pub struct Batch {
    /// The memory.
    pub lease: Arc<Lease>,
    /// The fields.
    pub columns: Vec<Column>,
    /// Positions in the epoch's order.
    pub positions: Vec<u64>,
    /// The sample at each.
    pub samples: Vec<u64>,
    /// False where a neighbour stands in.
    pub valid: Vec<bool>,
    /// The copy of each.
    pub names: Vec<CopyName>,
    /// Positions skipped since the batch before.
    pub skipped: Vec<u64>,
    /// Positions that other ranks are given in this step.
    pub others: Vec<u64>,
}

/// What [`Client::next`] found.
#[derive(Debug)]
pub enum Next {
    /// A batch.
    Batch(Box<Batch>),
    /// The epoch is over.
    End,
    /// Nothing yet; ask again.
    Waiting,
    /// Nothing will come before more is fed.
    Hungry,
}

type Came = (u64, Answer, Option<OwnedFd>);

/// A connection to a daemon.
#[derive(Debug)]
pub struct Client {
    link: Arc<Link>,
    frames: Frames,
    came: VecDeque<Came>,
    last: u64,
    /// Requests for batches that are not answered.
    wanted: VecDeque<u64>,
    /// Whether the job waits for a batch that it has asked for.
    asking: bool,
    /// When the job got its last batch, and how many samples it had.
    taken: Option<(Instant, u64)>,
    /// How long the job waited: in all, and for what it asks for or got last.
    waited: Duration,
    waiting: Duration,
    received: u64,
    clock: Option<(u64, u64)>,
    views: HashMap<u64, Arc<View>>,
}

impl Client {
    /// Connects and agrees on a version.
    pub fn connect(path: &Path) -> Result<Client, Error> {
        let (mut client, _) = Client::open(path)?;
        let hello = Hello {
            version: crate::VERSION,
            release: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
        };
        let id = client.send(Ask::Hello(hello))?;
        client.answer(id, GREETING)?.ok_or(Error::Lost(Trouble::Late))?;
        Ok(client)
    }

    /// Tells the daemon to end, whatever version it has; with a descriptor that becomes readable when its
    /// process has, unless that lives in another namespace.
    pub fn stop(path: &Path) -> Result<Option<OwnedFd>, Error> {
        let (mut client, peer) = Client::open(path)?;
        let process = peer.pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        client.call(Ask::Stop(Done {}))?;
        Ok(process)
    }

    fn open(path: &Path) -> Result<(Client, Peer), Error> {
        let nobody = |cause: io::Error| Error::Nobody { path: path.display().to_string(), cause };
        let address = SocketAddrUnix::new(path).map_err(|e| nobody(e.into()))?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|e| nobody(e.into()))?;
        connect(&socket, &address).map_err(|e| nobody(e.into()))?;
        // In a directory that others can write in somebody else may listen.
        let peer = Peer::of(&socket).map_err(nobody)?;
        if peer.uid != geteuid().as_raw() {
            let text = format!("it belongs to user {}", peer.uid);
            return Err(nobody(io::Error::new(io::ErrorKind::PermissionDenied, text)));
        }
        let client = Client {
            link: Arc::new(Link::new(socket)),
            frames: Frames::default(),
            came: VecDeque::new(),
            last: 0,
            wanted: VecDeque::new(),
            asking: false,
            taken: None,
            waited: Duration::ZERO,
            waiting: Duration::ZERO,
            received: 0,
            clock: None,
            views: HashMap::new(),
        };
        Ok((client, peer))
    }

    /// Whether this process made it. In a forked child it is not to be used.
    pub fn is_mine(&self) -> bool {
        self.link.is_mine()
    }

    /// Asks and waits for the answer.
    pub fn call(&mut self, ask: Ask) -> Result<Answer, Error> {
        let id = self.send(ask)?;
        self.answer(id, DEADLINE)?.ok_or(Error::Lost(Trouble::Late))
    }

    /// Asks; [`Client::answer`] has what comes of it.
    pub fn send(&mut self, ask: Ask) -> Result<u64, Error> {
        self.last += 1;
        let request = Request { id: self.last, ask: Some(ask) };
        self.link.send(&request)?;
        Ok(self.last)
    }

    /// The answer to a request, if it comes in time.
    pub fn answer(&mut self, id: u64, patience: Duration) -> Result<Option<Answer>, Error> {
        match self.reply(id, Instant::now() + patience)? {
            Some((_, Answer::Fault(fault), _)) => Err(Error::Fault(fault)),
            Some((_, answer, _)) => Ok(Some(answer)),
            None => Ok(None),
        }
    }

    fn reply(&mut self, id: u64, deadline: Instant) -> Result<Option<Came>, Error> {
        loop {
            if let Some(at) = self.came.iter().position(|(came, _, _)| *came == id) {
                return Ok(self.came.remove(at));
            }
            if let Some(Reply { id: of, answer: Some(answer) }) = self.frames.message::<Reply>()? {
                let descriptor = match &answer {
                    Answer::Batch(batch) if batch.bytes.is_some() => self.frames.descriptor(),
                    _ => None,
                };
                let next = matches!(answer, Answer::Batch(_) | Answer::End(_) | Answer::Hungry(_));
                let lost = next && of != id && !self.wanted.contains(&of);
                self.came.push_back((of, answer, descriptor));
                // Any other answer may be one that another thread waits for.
                if lost {
                    self.forget(of)?;
                }
                continue;
            }
            if !self.frames.read(self.link.socket())? {
                let [ready] = wait([(self.link.socket().as_fd(), PollFlags::IN)], Some(deadline))
                    .map_err(Trouble::Io)?;
                if !ready {
                    return Ok(None);
                }
            }
        }
    }

    /// Gives back what came to a question that is no longer asked.
    fn forget(&mut self, id: u64) -> Result<(), Error> {
        let Some(at) = self.came.iter().position(|(came, _, _)| *came == id) else { return Ok(()) };
        if let Some((_, Answer::Batch(batch), descriptor)) = self.came.remove(at) {
            self.map(&batch, descriptor)?;
            self.link.release(batch.slot);
        }
        Ok(())
    }

    /// Begins an epoch; batches of the one before that are on their way go back. [`Client::answer`] says
    /// whether it has begun.
    pub fn start(&mut self, start: Start, received: u64) -> Result<u64, Error> {
        self.cancel()?;
        self.received = received;
        self.send(Ask::Start(start))
    }

    fn cancel(&mut self) -> Result<(), Error> {
        self.asking = false;
        self.taken = None;
        for id in std::mem::take(&mut self.wanted) {
            self.forget(id)?;
        }
        Ok(())
    }

    /// The next batch; waits for it no longer than `patience`.
    pub fn next(&mut self, patience: Duration) -> Result<Next, Error> {
        let start = Instant::now();
        if !std::mem::replace(&mut self.asking, true) {
            let taken = self.taken.take();
            let mut wants = Wants {
                received: self.received,
                busy_ns: taken.map(|(then, _)| then.elapsed().as_nanos() as u64),
                samples: taken.map_or(0, |(_, samples)| samples),
                waited_ns: std::mem::take(&mut self.waiting).as_nanos() as u64,
            };
            while self.wanted.len() < AHEAD {
                let id = self.send(Ask::Next(wants.clone()))?;
                self.wanted.push_back(id);
                (wants.busy_ns, wants.waited_ns) = (None, 0);
            }
        }
        // Asking failed.
        let Some(&id) = self.wanted.front() else { return Err(Trouble::Closed.into()) };
        let reply = self.reply(id, start + patience)?;
        self.waiting += start.elapsed();
        self.waited += start.elapsed();
        let Some((_, answer, descriptor)) = reply else { return Ok(Next::Waiting) };
        self.wanted.pop_front();
        self.asking = false;
        match answer {
            Answer::Batch(batch) => {
                let batch = self.take(batch, descriptor)?;
                self.taken = Some((Instant::now(), batch.samples.len() as u64));
                self.received += (batch.samples.len() + batch.others.len()) as u64;
                Ok(Next::Batch(Box::new(batch)))
            }
            other => {
                self.cancel()?;
                match other {
                    Answer::End(_) => Ok(Next::End),
                    Answer::Hungry(_) => Ok(Next::Hungry),
                    Answer::Fault(fault) => Err(Error::Fault(fault)),
                    other => Err(Trouble::Lie(format!("{other:?} is no answer to Next")).into()),
                }
            }
        }
    }

    /// The view of a batch's slot, mapped when it comes for the first time.
    fn map(&mut self, batch: &message::Batch, descriptor: Option<OwnedFd>) -> Result<Arc<View>, Error> {
        for slot in &batch.retired {
            self.views.remove(slot);
        }
        if let (Some(bytes), Some(descriptor)) = (batch.bytes, descriptor) {
            let view = View::map(descriptor, bytes as usize).map_err(Trouble::Io)?;
            self.views.insert(batch.slot, Arc::new(view));
        }
        let unknown = || Trouble::Lie(format!("slot {} was never passed", batch.slot)).into();
        self.views.get(&batch.slot).cloned().ok_or_else(unknown)
    }

    fn take(&mut self, batch: message::Batch, descriptor: Option<OwnedFd>) -> Result<Batch, Error> {
        let view = self.map(&batch, descriptor)?;
        let columns = columns(&batch.columns, view.len()).map_err(Trouble::Lie)?;
        if let (Some(seed), Some(clock)) = (batch.seed, batch.clock) {
            self.clock = Some((seed, clock));
        }
        let message::Batch { slot, positions, samples, valid, skipped, others, .. } = batch;
        let (seed, generation) = (batch.named, batch.generation);
        let names = Names { seed, generation, copies: batch.copies, occurrences: batch.occurrences };
        let names = names.whole(&samples);
        let lease = Arc::new(Lease::new(self.link.clone(), view, slot));
        Ok(Batch { lease, columns, positions, samples, valid, names, skipped, others })
    }

    /// Seed and clock of the shared stream, as of the batch received last.
    pub fn clock(&self) -> Option<(u64, u64)> {
        self.clock
    }

    /// Batches that were copied, because the job held two already or writes into them.
    pub fn copied(&self) -> u64 {
        self.link.copied()
    }

    /// How long the job waited for batches.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Leaves, as dropping does, and waits a moment until the daemon knows. Batches that the job holds stay
    /// valid, and count for the daemon until they are dropped.
    pub fn leave(&mut self) -> Result<(), Error> {
        self.cancel()?;
        let id = self.send(Ask::Leave(Done {}))?;
        self.answer(id, GREETING).map(|_| ())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The socket stays open while batches are held.
        if self.is_mine() {
            // A daemon that is gone has forgotten the job.
            let _ = self.send(Ask::Leave(Done {}));
        }
    }
}

/// What the daemon says of a batch, checked against the slot that it lies in.
fn columns(columns: &[message::Column], bytes: usize) -> Result<Vec<Column>, String> {
    let column = |column: &message::Column| {
        let dtype = [Dtype::Uint8, Dtype::Int64, Dtype::Float16, Dtype::Bfloat16, Dtype::Float32]
            .into_iter()
            .find(|dtype| dtype.name() == column.dtype)
            .ok_or_else(|| format!("unknown dtype {:?}", column.dtype))?;
        let kind = match &*column.kind {
            "image" => Kind::Image,
            "class" => Kind::Class,
            other => return Err(format!("unknown kind {other:?}")),
        };
        let layout = if column.channels_last { Layout::ChannelsLast } else { Layout::Nchw };
        let spans =
            column.spans.iter().map(|place| span(place, dtype, bytes)).collect::<Result<Vec<_>, _>>()?;
        let values = match (column.ragged, &spans[..]) {
            (false, [one]) => Values::Stacked(one.clone()),
            (true, _) => Values::Ragged(spans),
            _ => return Err("a column without its one tensor".into()),
        };
        let field = Field { name: column.name.clone(), kind, dtype, shape: None, layout };
        Ok(Column { field, values })
    };
    columns.iter().map(column).collect()
}

fn span(span: &message::Span, dtype: Dtype, bytes: usize) -> Result<Span, String> {
    let outside = || format!("{span:?} lies outside its slot of {bytes} bytes");
    if span.shape.len() != span.strides.len() {
        return Err(outside());
    }
    // The last element that shape and strides reach.
    let mut last: u64 = 0;
    for (&size, &stride) in span.shape.iter().zip(&span.strides) {
        let reach = size.saturating_sub(1).checked_mul(stride).ok_or_else(outside)?;
        last = last.checked_add(reach).ok_or_else(outside)?;
    }
    let count = last.checked_add(1).and_then(|n| n.checked_mul(dtype.bytes() as u64)).ok_or_else(outside)?;
    if span.offset.checked_add(count).is_none_or(|end| end > bytes as u64) {
        return Err(outside());
    }
    let sizes = |list: &[u64]| list.iter().map(|&size| size as usize).collect();
    Ok(Span { dtype, shape: sizes(&span.shape), strides: sizes(&span.strides), offset: span.offset as usize })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(offset: u64, shape: &[u64], strides: &[u64]) -> message::Span {
        message::Span { offset, shape: shape.to_vec(), strides: strides.to_vec() }
    }

    #[test]
    fn a_tensor_outside_its_slot_is_refused() {
        assert!(span(&place(0, &[2, 3], &[3, 1]), Dtype::Float32, 24).is_ok());
        for wrong in [
            place(1, &[2, 3], &[3, 1]),
            place(0, &[2, 3], &[4, 1]),
            place(0, &[2, 3], &[3]),
            place(u64::MAX, &[1], &[1]),
            place(0, &[u64::MAX, 3], &[3, 1]),
            place(0, &[2], &[u64::MAX]),
        ] {
            assert!(span(&wrong, Dtype::Float32, 24).is_err(), "{wrong:?}");
        }
    }
}
