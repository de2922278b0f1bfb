//! What happened, counted where it happens. Relaxed atomics: nothing is decided by them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// One number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The value so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds the nanoseconds of core time since `start` and returns the present, so that stages can be chained.
    pub fn spend(&self, start: CoreTime) -> CoreTime {
        let now = CoreTime::now();
        self.add(now.since(start));
        now
    }

    /// Adds the nanoseconds since `start` and returns the present.
    pub fn lap(&self, start: Instant) -> Instant {
        let now = Instant::now();
        self.add((now - start).as_nanos() as u64);
        now
    }
}

/// A point in the time that this thread has had of a core. Plans reckon with it: the clock on the wall runs on
/// while others have the core.
#[derive(Debug, Clone, Copy)]
pub struct CoreTime(u64);

impl CoreTime {
    /// The present.
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        CoreTime(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    /// Nanoseconds since `start`, on the same thread.
    pub fn since(self, start: CoreTime) -> u64 {
        self.0.saturating_sub(start.0)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of one job.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub $name: Counter,)* }

        impl Counters {
            /// Every counter with its name.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }
        }
    };
}

counters! {
    /// Files read.
    reads,
    /// Those that were not in the system's memory.
    device_reads,
    /// Bytes of all of them.
    read_bytes,
    /// Files that were on the local disk.
    disk_hits,
    /// Reads and writes of it that failed, and records that were damaged.
    disk_errors,
    /// Samples whose file was kept in memory.
    encoded_hits,
    /// Samples whose pixels were kept in memory.
    decoded_hits,
    /// Images decoded.
    decodes,
    /// Those of which all was decoded, for a form that is kept.
    whole_decodes,
    /// Pixels that decoding made.
    decoded_pixels,
    /// Augmented copies made.
    preparations,
    /// Samples given to the job.
    deliveries,
    /// Batches given to the job.
    batches,
    /// Batches copied out because the job held two already.
    copied_batches,
    /// Samples that could not be made.
    failures,
    /// Time reading; of files on the local disk only core time.
    read_ns,
    /// Of that, time waiting for a device.
    device_ns,
    /// Core time decoding.
    decode_ns,
    /// Of that, decoding all of an image.
    whole_ns,
    /// Core time augmenting.
    augment_ns,
    /// Core time finishing.
    finish_ns,
    /// Time the job waited for a batch.
    wait_ns,
}

/// Bytes held now, and the most there ever were.
#[derive(Debug, Default)]
pub struct Gauge {
    now: AtomicU64,
    peak: AtomicU64,
}

impl Gauge {
    /// Adds bytes.
    pub fn add(&self, bytes: u64) {
        let now = self.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    /// Takes bytes away.
    pub fn sub(&self, bytes: u64) {
        self.now.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes held now.
    pub fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// The most there were.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}
