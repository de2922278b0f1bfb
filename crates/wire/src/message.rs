//! The messages, as protobuf: fields are only ever added, under new numbers.

use prost::encoding::decode_varint;
use prost::{Message, Oneof};

use crate::frame::Kind;

/// From a job to the daemon.
#[derive(Clone, PartialEq, Message)]
pub struct Request {
    /// The reply carries it back; 0 where none is expected.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// What is asked.
    #[prost(oneof = "Ask", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14")]
    pub ask: Option<Ask>,
}

/// From the daemon to a job.
#[derive(Clone, PartialEq, Message)]
pub struct Reply {
    /// Of the request.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// What it comes to.
    #[prost(oneof = "Answer", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12")]
    pub answer: Option<Answer>,
}

impl Kind for Request {
    /// Only what is picked, received or fed of a large dataset: `Join` or `Start`, and nothing after it.
    fn may_be_long(mut bytes: &[u8]) -> bool {
        const ID: u64 = 1 << 3;
        const JOIN: u64 = 4 << 3 | 2;
        const START: u64 = 5 << 3 | 2;
        let mut number = || decode_varint(&mut bytes).ok();
        let long = number() == Some(ID) && number().is_some() && matches!(number(), Some(JOIN | START));
        let length = number();
        long && length == Some(bytes.len() as u64)
    }
}

impl Kind for Reply {
    /// The daemon is of the same user, and answers what it was asked.
    fn may_be_long(_: &[u8]) -> bool {
        true
    }
}

/// What a job asks for.
#[derive(Clone, PartialEq, Oneof)]
#[expect(clippy::large_enum_variant, reason = "a message lives for a moment, and only one at a time")]
pub enum Ask {
    /// The first message.
    #[prost(message, tag = "2")]
    Hello(Hello),
    /// Make or find the index of a folder.
    #[prost(message, tag = "3")]
    Open(Open),
    /// Become a job.
    #[prost(message, tag = "4")]
    Join(Join),
    /// Begin an epoch.
    #[prost(message, tag = "5")]
    Start(Start),
    /// What the job's own sampler yielded.
    #[prost(message, tag = "6")]
    Feed(Feed),
    /// The next batch.
    #[prost(message, tag = "7")]
    Next(Wants),
    /// A slot is free again. No reply.
    #[prost(message, tag = "8")]
    Release(Release),
    /// Leave; what is lent stays lent.
    #[prost(message, tag = "9")]
    Leave(Done),
    /// The job's numbers.
    #[prost(message, tag = "10")]
    Facts(Done),
    /// Samples that failed.
    #[prost(message, tag = "11")]
    Failures(Done),
    /// Samples that failed before, as a state says.
    #[prost(message, tag = "12")]
    Quarantine(Quarantine),
    /// How the daemon is.
    #[prost(message, tag = "13")]
    Status(Done),
    /// Finish what is asked for, then end.
    #[prost(message, tag = "14")]
    Stop(Done),
}

/// What it comes to.
#[derive(Clone, PartialEq, Oneof)]
pub enum Answer {
    /// To [`Ask::Hello`].
    #[prost(message, tag = "2")]
    Hello(Hello),
    /// To [`Ask::Open`].
    #[prost(message, tag = "3")]
    Opened(Opened),
    /// To [`Ask::Join`].
    #[prost(message, tag = "4")]
    Joined(Joined),
    /// It is done.
    #[prost(message, tag = "5")]
    Done(Done),
    /// To [`Ask::Next`].
    #[prost(message, tag = "6")]
    Batch(Batch),
    /// The epoch is over.
    #[prost(message, tag = "7")]
    End(Done),
    /// Nothing comes before more is fed.
    #[prost(message, tag = "8")]
    Hungry(Done),
    /// To [`Ask::Facts`].
    #[prost(message, tag = "9")]
    Facts(Facts),
    /// To [`Ask::Failures`].
    #[prost(message, tag = "10")]
    Failures(Failures),
    /// To [`Ask::Status`].
    #[prost(message, tag = "11")]
    Status(Status),
    /// It failed.
    #[prost(message, tag = "12")]
    Fault(Fault),
}

/// Who speaks.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    /// Of the messages.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Of the program.
    #[prost(string, tag = "2")]
    pub release: String,
    /// Process id; the daemon believes the socket's.
    #[prost(uint32, tag = "3")]
    pub pid: u32,
}

/// A folder, absolute.
#[derive(Clone, PartialEq, Message)]
pub struct Open {
    /// Its path, as the system spells it.
    #[prost(bytes = "vec", tag = "1")]
    pub root: Vec<u8>,
}

/// An index is there.
#[derive(Clone, PartialEq, Message)]
pub struct Opened {
    /// Number of samples.
    #[prost(uint64, tag = "1")]
    pub samples: u64,
    /// Names the content.
    #[prost(string, tag = "2")]
    pub fingerprint: String,
}

/// What a job is.
#[derive(Clone, PartialEq, Message)]
pub struct Join {
    /// Its folders, one behind the other, as [`Parts`] of at most 1 MB: a long message must not hold a
    /// list of anything but numbers.
    #[prost(bytes = "vec", tag = "17")]
    pub parts: Vec<u8>,
    /// Which samples of them; absent: all.
    #[prost(message, optional, tag = "18")]
    pub picks: Option<Picks>,
    /// Steps as JSON.
    #[prost(string, tag = "3")]
    pub recipe: String,
    /// Dtype and layout; empty: what the recipe ends in.
    #[prost(string, tag = "4")]
    pub output: String,
    /// Samples in a batch.
    #[prost(uint64, tag = "5")]
    pub batch: u64,
    /// `pad`, `drop` or `uneven`.
    #[prost(string, tag = "14")]
    pub remainder: String,
    /// Which rank of the job this is.
    #[prost(uint32, tag = "15")]
    pub rank: u32,
    /// How many there are.
    #[prost(uint32, tag = "16")]
    pub ranks: u32,
    /// Positions that a sample may come late.
    #[prost(uint64, tag = "7")]
    pub late: u64,
    /// Names order and copies.
    #[prost(uint64, tag = "8")]
    pub seed: u64,
    /// Keyed order.
    #[prost(bool, tag = "9")]
    pub shuffle: bool,
    /// `raise`, `skip` or `substitute`.
    #[prost(string, tag = "10")]
    pub on_error: String,
    /// Images of a batch may differ in size.
    #[prost(bool, tag = "11")]
    pub ragged: bool,
    /// How it shares; absent: it does not.
    #[prost(message, optional, tag = "12")]
    pub sharing: Option<Sharing>,
    /// What the job is called; no two are called the same, but for the ranks of one.
    #[prost(string, tag = "13")]
    pub name: String,
}

/// Bytes of [`Join::parts`] at most.
const PARTS: usize = 1 << 20;

/// The folders of a dataset.
#[derive(Clone, PartialEq, Message)]
pub struct Parts {
    /// All of them.
    #[prost(message, repeated, tag = "1")]
    pub parts: Vec<Part>,
}

impl Parts {
    /// As a join carries them.
    pub fn pack(parts: Vec<Part>) -> Vec<u8> {
        Parts { parts }.encode_to_vec()
    }

    /// What a join carries; nothing if it is damaged or too long.
    pub fn unpack(bytes: &[u8]) -> Option<Vec<Part>> {
        let bytes = Some(bytes).filter(|bytes| bytes.len() <= PARTS)?;
        Parts::decode(bytes).ok().map(|parts| parts.parts)
    }
}

/// A folder of a dataset.
#[derive(Clone, PartialEq, Message)]
pub struct Part {
    /// Its path, absolute, as the system spells it.
    #[prost(bytes = "vec", tag = "1")]
    pub root: Vec<u8>,
    /// What the job knows of its content.
    #[prost(string, tag = "2")]
    pub fingerprint: String,
}

/// Which samples of a dataset a job takes: one of the three.
#[derive(Clone, PartialEq, Message)]
pub struct Picks {
    /// A set, as JSON.
    #[prost(string, tag = "1")]
    pub subset: String,
    /// A list, as little-endian numbers of 4 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub list: Vec<u8>,
    /// Weights, as little-endian numbers of 8 bytes.
    #[prost(bytes = "vec", tag = "3")]
    pub weights: Vec<u8>,
    /// Samples of a weighted draw.
    #[prost(uint64, tag = "5")]
    pub samples: u64,
    /// It may draw a sample more than once.
    #[prost(bool, tag = "6")]
    pub replacement: bool,
}

/// How a job shares.
#[derive(Clone, PartialEq, Message)]
pub struct Sharing {
    /// Absent: ready; 0: strict; else how late a sample may come.
    #[prost(uint64, optional, tag = "1")]
    pub order: Option<u64>,
    /// `encoded`, `decoded` or `augmented`.
    #[prost(string, tag = "2")]
    pub level: String,
    /// Part of the draws that follow its own order.
    #[prost(double, tag = "3")]
    pub mixing: f64,
    /// Seed of the stream that it drew from before.
    #[prost(fixed64, optional, tag = "4")]
    pub seed: Option<u64>,
    /// Clock of it.
    #[prost(fixed64, optional, tag = "5")]
    pub clock: Option<u64>,
}

/// The job is one.
#[derive(Clone, PartialEq, Message)]
pub struct Joined {
    /// Bytes that the daemon may use in all.
    #[prost(uint64, tag = "1")]
    pub memory: u64,
    /// Its threads.
    #[prost(uint64, tag = "2")]
    pub threads: u64,
}

/// An epoch.
#[derive(Clone, PartialEq, Message)]
pub struct Start {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    /// What was received of it, as JSON; empty: nothing.
    #[prost(string, tag = "2")]
    pub received: String,
    /// It is fed: positions received and samples skipped before.
    #[prost(message, optional, tag = "3")]
    pub fed: Option<Fed>,
    /// What a rank with a fixed share received beyond that, as JSON; empty: nothing.
    #[prost(string, tag = "4")]
    pub own: String,
    /// In how many steps.
    #[prost(uint64, tag = "5")]
    pub steps: u64,
}

/// An epoch whose samples the job names itself.
#[derive(Clone, PartialEq, Message)]
pub struct Fed {
    /// Positions received before.
    #[prost(uint64, tag = "1")]
    pub base: u64,
    /// Samples skipped before.
    #[prost(uint64, tag = "2")]
    pub skipped: u64,
    /// Each feeding is a batch.
    #[prost(bool, tag = "3")]
    pub given: bool,
    /// Positions received before that are not fed again.
    #[prost(uint64, tag = "4")]
    pub passed: u64,
    /// How often each sample stands at those, as little-endian numbers of 4 bytes; empty if there are none.
    #[prost(bytes = "vec", tag = "5")]
    pub seen: Vec<u8>,
}

/// Samples, in order.
#[derive(Clone, PartialEq, Message)]
pub struct Feed {
    /// Which.
    #[prost(uint64, repeated, tag = "1")]
    pub samples: Vec<u64>,
    /// Nothing follows.
    #[prost(bool, tag = "2")]
    pub end: bool,
}

/// A wish for the next batch.
#[derive(Clone, PartialEq, Message)]
pub struct Wants {
    /// Samples received in this epoch.
    #[prost(uint64, tag = "1")]
    pub received: u64,
    /// How long the job worked on its last batch, in nanoseconds; absent: it had none.
    #[prost(uint64, optional, tag = "2")]
    pub busy_ns: Option<u64>,
    /// How many samples that one had.
    #[prost(uint64, tag = "3")]
    pub samples: u64,
    /// How long it had waited for that one, in nanoseconds.
    #[prost(uint64, tag = "4")]
    pub waited_ns: u64,
}

/// A slot is free.
#[derive(Clone, PartialEq, Message)]
pub struct Release {
    /// Which.
    #[prost(uint64, repeated, tag = "1")]
    pub slots: Vec<u64>,
}

/// A finished batch in a slot.
#[derive(Clone, PartialEq, Message)]
pub struct Batch {
    /// Number of the slot.
    #[prost(uint64, tag = "1")]
    pub slot: u64,
    /// Its size, when a descriptor comes along.
    #[prost(uint64, optional, tag = "2")]
    pub bytes: Option<u64>,
    /// The fields.
    #[prost(message, repeated, tag = "3")]
    pub columns: Vec<Column>,
    /// Positions in the epoch's order.
    #[prost(uint64, repeated, tag = "4")]
    pub positions: Vec<u64>,
    /// The sample at each.
    #[prost(uint64, repeated, tag = "5")]
    pub samples: Vec<u64>,
    /// False where a neighbour stands in.
    #[prost(bool, repeated, tag = "6")]
    pub valid: Vec<bool>,
    /// Positions skipped since the batch before.
    #[prost(uint64, repeated, tag = "7")]
    pub skipped: Vec<u64>,
    /// Seed of the stream.
    #[prost(fixed64, optional, tag = "8")]
    pub seed: Option<u64>,
    /// Its clock: copies up to it are used.
    #[prost(fixed64, optional, tag = "9")]
    pub clock: Option<u64>,
    /// Slots that are no more.
    #[prost(uint64, repeated, tag = "10")]
    pub retired: Vec<u64>,
    /// Seed of the copies.
    #[prost(fixed64, tag = "11")]
    pub named: u64,
    /// Generation of the first copy, and how far those of all lie behind it; empty: not at all.
    #[prost(fixed64, tag = "12")]
    pub generation: u64,
    /// See `generation`.
    #[prost(uint64, repeated, tag = "13")]
    pub copies: Vec<u64>,
    /// How often each sample came before; empty: none did.
    #[prost(uint64, repeated, tag = "14")]
    pub occurrences: Vec<u64>,
    /// Positions that other ranks are given in the same step.
    #[prost(uint64, repeated, tag = "15")]
    pub others: Vec<u64>,
}

/// One field of a batch.
#[derive(Clone, PartialEq, Message)]
pub struct Column {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// `image` or `class`.
    #[prost(string, tag = "2")]
    pub kind: String,
    /// `uint8`, `float32` and so on.
    #[prost(string, tag = "3")]
    pub dtype: String,
    /// Channels of a pixel lie together.
    #[prost(bool, tag = "4")]
    pub channels_last: bool,
    /// One tensor, or one for each sample.
    #[prost(message, repeated, tag = "5")]
    pub spans: Vec<Span>,
    /// Shapes differ: one span for each sample.
    #[prost(bool, tag = "6")]
    pub ragged: bool,
}

/// Where a tensor lies in its slot.
#[derive(Clone, PartialEq, Message)]
pub struct Span {
    /// First byte.
    #[prost(uint64, tag = "1")]
    pub offset: u64,
    /// Logical shape.
    #[prost(uint64, repeated, tag = "2")]
    pub shape: Vec<u64>,
    /// Steps between elements, in elements.
    #[prost(uint64, repeated, tag = "3")]
    pub strides: Vec<u64>,
}

/// Nothing to say.
#[derive(Clone, PartialEq, Message)]
pub struct Done {}

/// Numbers with their names.
#[derive(Clone, PartialEq, Message)]
pub struct Facts {
    /// All of them.
    #[prost(message, repeated, tag = "1")]
    pub numbers: Vec<Number>,
}

/// A number with its name.
#[derive(Clone, PartialEq, Message)]
pub struct Number {
    /// The name; `_ns` ends those that are times.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The number.
    #[prost(uint64, tag = "2")]
    pub value: u64,
}

/// Samples that failed.
#[derive(Clone, PartialEq, Message)]
pub struct Failures {
    /// All of them.
    #[prost(message, repeated, tag = "1")]
    pub failures: Vec<Failure>,
}

/// The same, from a state.
pub type Quarantine = Failures;

/// A sample that failed.
#[derive(Clone, PartialEq, Message)]
pub struct Failure {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub sample: u64,
    /// Its file.
    #[prost(bytes = "vec", tag = "2")]
    pub path: Vec<u8>,
    /// Where it failed.
    #[prost(string, tag = "3")]
    pub stage: String,
    /// Why.
    #[prost(string, tag = "4")]
    pub cause: String,
}

/// What went wrong, as the job is to be told.
#[derive(Clone, PartialEq, Message)]
pub struct Fault {
    /// One for each exception class.
    #[prost(enumeration = "FaultKind", tag = "1")]
    pub kind: i32,
    /// The message.
    #[prost(string, tag = "2")]
    pub text: String,
    /// The sample, where it is one's fault.
    #[prost(message, optional, tag = "3")]
    pub failure: Option<Failure>,
}

/// What kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum FaultKind {
    /// Any other.
    Other = 0,
    /// One sample failed.
    Sample = 1,
    /// A file changed after it was indexed.
    Changed = 2,
    /// No dataset there.
    NotFound = 3,
    /// A folder or file cannot be used.
    Storage = 4,
    /// Versions do not fit.
    Version = 5,
    /// No room.
    Budget = 6,
    /// Shapes differ.
    Ragged = 7,
    /// The recipe is wrong.
    Recipe = 8,
    /// An argument or state cannot be used.
    Invalid = 9,
    /// The job is closed.
    Closed = 10,
    /// The daemon is about to end.
    Draining = 11,
    /// Another job has the name.
    Taken = 12,
}

/// How a daemon is.
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    /// Its process.
    #[prost(uint32, tag = "1")]
    pub pid: u32,
    /// Its release.
    #[prost(string, tag = "2")]
    pub release: String,
    /// Nanoseconds since it started.
    #[prost(uint64, tag = "3")]
    pub up_ns: u64,
    /// Bytes it may use.
    #[prost(uint64, tag = "4")]
    pub memory: u64,
    /// Bytes it uses.
    #[prost(uint64, tag = "5")]
    pub bytes: u64,
    /// The most it used.
    #[prost(uint64, tag = "6")]
    pub peak_bytes: u64,
    /// Its threads.
    #[prost(uint64, tag = "7")]
    pub threads: u64,
    /// Nanoseconds that they had nothing to do.
    #[prost(uint64, tag = "8")]
    pub idle_ns: u64,
    /// Jobs.
    #[prost(message, repeated, tag = "9")]
    pub jobs: Vec<StatusJob>,
    /// Shared streams.
    #[prost(message, repeated, tag = "10")]
    pub streams: Vec<StatusStream>,
    /// It ends as soon as nothing is asked for.
    #[prost(bool, tag = "11")]
    pub draining: bool,
    /// Bytes of files and of pixels that it keeps.
    #[prost(uint64, tag = "12")]
    pub encoded_bytes: u64,
    /// See `encoded_bytes`.
    #[prost(uint64, tag = "13")]
    pub decoded_bytes: u64,
    /// Bytes of files on the local disk.
    #[prost(uint64, tag = "14")]
    pub disk_bytes: u64,
    /// The most there may be; 0 where no disk is used.
    #[prost(uint64, tag = "15")]
    pub disk_limit: u64,
    /// Reads and writes of the disk that failed.
    #[prost(uint64, tag = "16")]
    pub disk_errors: u64,
    /// It is written no more.
    #[prost(bool, tag = "17")]
    pub disk_stopped: bool,
    /// What memory is planned with, and what was decided, as JSON.
    #[prost(string, tag = "18")]
    pub planning: String,
}

/// One job.
#[derive(Clone, PartialEq, Message)]
pub struct StatusJob {
    /// What it is called.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its process.
    #[prost(uint32, tag = "2")]
    pub pid: u32,
    /// Its folder.
    #[prost(bytes = "vec", tag = "3")]
    pub root: Vec<u8>,
    /// Samples in a batch.
    #[prost(uint64, tag = "4")]
    pub batch: u64,
    /// The epoch it is in.
    #[prost(uint64, tag = "5")]
    pub epoch: u64,
    /// Samples that it says it received of it.
    #[prost(uint64, tag = "6")]
    pub received: u64,
    /// Samples that it takes in an epoch.
    #[prost(uint64, tag = "7")]
    pub samples: u64,
    /// Slots it holds.
    #[prost(uint64, tag = "8")]
    pub lent: u64,
    /// Its counters.
    #[prost(message, repeated, tag = "9")]
    pub numbers: Vec<Number>,
    /// Nanoseconds since it joined.
    #[prost(uint64, tag = "10")]
    pub age_ns: u64,
}

/// One shared stream.
#[derive(Clone, PartialEq, Message)]
pub struct StatusStream {
    /// Its folder.
    #[prost(bytes = "vec", tag = "1")]
    pub root: Vec<u8>,
    /// Jobs that draw from it.
    #[prost(uint64, tag = "2")]
    pub jobs: u64,
    /// Copies in its pool.
    #[prost(uint64, tag = "3")]
    pub copies: u64,
    /// Copies that it may hold.
    #[prost(uint64, tag = "4")]
    pub slots: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_join_or_start_with_nothing_after_it_may_be_long() {
        let long = |ask: Ask| Request::may_be_long(&Request { id: 300, ask: Some(ask) }.encode_to_vec());
        let start = || Ask::Start(Start { epoch: 1, received: "x".repeat(1000), ..Start::default() });
        assert!(long(start()));
        assert!(long(Ask::Join(Join { recipe: "x".repeat(1000), ..Join::default() })));
        assert!(!long(Ask::Quarantine(Failures { failures: vec![Failure::default(); 1000] })));
        assert!(!long(Ask::Feed(Feed { samples: vec![7; 1000], end: false })));
        let whole = Request { id: 300, ask: Some(start()) }.encode_to_vec();
        assert!(!Request::may_be_long(&whole[..whole.len() - 1]));
        let more = Request { id: 0, ask: Some(Ask::Quarantine(Failures::default())) }.encode_to_vec();
        assert!(!Request::may_be_long(&[&whole[..], &more].concat()));
        assert!(!Request::may_be_long(&[]));
    }
}
