//! One simulated device for all processes of a machine, so that loaders can be measured on slow storage.
//!
//! [`Throttle`] is a small file with a [`Device`]'s numbers and its [`State`]. Who reads a file of a dataset
//! first takes its time on the device, under the file's lock, and then sleeps until that time is over. The
//! times are of the clock that all processes share (`CLOCK_MONOTONIC`), in nanoseconds.
//!
//! ```text
//! magic 8 | version u32 | inflight u32 | bandwidth | latency_ns | seek_ns
//! link_free_ns | head device | head inode | head offset | requests | bytes | seeks | lane_free_ns × inflight
//! ```
//! Numbers are little-endian, 8 bytes where nothing else is said.
//!
//! The file is opened anew for each request and locked with `flock`. So threads exclude each other as
//! processes do, a forked child has no lock of its parent's, and the lock of a process that dies is gone. The
//! state is read and written whole and not mapped: a process that is killed leaves no half of a change.

mod device;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;
use rustix::time::{ClockId, clock_gettime};

pub use device::{BadDevice, Booked, Counted, Device, State};

const MAGIC: &[u8; 8] = b"FBTHROT\0";
const VERSION: u32 = 1;
const HEADER: usize = 96;
/// Nobody books so far ahead: such a file is from before the machine was started.
const STALE_NS: u64 = 3_600_000_000_000;

/// Bytes of one request; larger reads are several, one after another.
pub const WINDOW: u64 = 4 << 20;

/// A device that all who open the same file share.
#[derive(Debug)]
pub struct Throttle {
    path: PathBuf,
    device: Device,
}

impl Throttle {
    /// Makes an idle device in a new file; one that is there is replaced.
    pub fn create(path: &Path, device: Device) -> io::Result<Self> {
        if !device.is_sound() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{device} is no device")));
        }
        let path = std::path::absolute(path)?;
        let mut fresh = path.clone().into_os_string();
        fresh.push(format!(".{}.new", std::process::id()));
        fs::write(&fresh, to_bytes(&device, &device.idle()))?;
        fs::rename(&fresh, &path)?;
        Self::open(&path)
    }

    /// The device in a file that is there.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let (device, state) = Locked::open(&path)?.load()?;
        if state.link_free_ns > now_ns().saturating_add(STALE_NS) {
            return Err(foreign("its times are of another run of the machine; make it anew"));
        }
        Ok(Throttle { path, device })
    }

    /// Its numbers.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Waits as long as a read of `bytes` at `offset` of a file (its device and inode) takes, as one request.
    pub fn wait(&self, file: (u64, u64), offset: u64, bytes: u64) -> io::Result<()> {
        let booked = self.book(now_ns(), file, offset, bytes)?;
        sleep_until(booked.done_ns);
        Ok(())
    }

    /// Waits as long as a reader takes that asks for one [`WINDOW`] after another.
    pub fn read(&self, file: (u64, u64), offset: u64, bytes: u64) -> io::Result<()> {
        let end = offset.saturating_add(bytes);
        let mut at = offset;
        while at < end {
            let part = (end - at).min(WINDOW);
            self.wait(file, at, part)?;
            at += part;
        }
        Ok(())
    }

    /// Takes the time of a request that is made at `now_ns`, and does not wait.
    pub fn book(&self, now_ns: u64, file: (u64, u64), offset: u64, bytes: u64) -> io::Result<Booked> {
        self.change(|device, state| device.schedule(state, now_ns, file, offset, bytes))
    }

    /// What all processes asked for since the last [`reset`](Self::reset).
    pub fn counted(&self) -> io::Result<Counted> {
        Ok(Locked::open(&self.path)?.load()?.1.counted)
    }

    /// Counts from zero; gives what was counted before.
    pub fn reset(&self) -> io::Result<Counted> {
        self.change(|_, state| std::mem::take(&mut state.counted))
    }

    fn change<T>(&self, change: impl FnOnce(&Device, &mut State) -> T) -> io::Result<T> {
        let file = Locked::open(&self.path)?;
        let (device, mut state) = file.load()?;
        let result = change(&device, &mut state);
        file.0.write_all_at(&to_bytes(&device, &state), 0)?;
        Ok(result)
    }
}

/// Nanoseconds of the clock that all processes share.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn sleep_until(done_ns: u64) {
    while let Some(left @ 1..) = done_ns.checked_sub(now_ns()) {
        std::thread::sleep(Duration::from_nanos(left));
    }
}

/// The file, ours alone until dropped.
struct Locked(File);

impl Locked {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
        Ok(Locked(file))
    }

    fn load(&self) -> io::Result<(Device, State)> {
        let mut bytes = vec![0; HEADER + 8 * device::MOST_INFLIGHT as usize];
        let mut filled = 0;
        loop {
            match self.0.read_at(&mut bytes[filled..], filled as u64)? {
                0 => break,
                more => filled += more,
            }
        }
        from_bytes(&bytes[..filled])
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing is not enough: a child that was forked meanwhile has the file too.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

fn foreign(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a throttle: {why}"))
}

fn to_bytes(device: &Device, state: &State) -> Vec<u8> {
    let State { link_free_ns, head: (file, offset), lanes_free_ns, counted } = state;
    let mut bytes = Vec::with_capacity(HEADER + 8 * lanes_free_ns.len());
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(device.inflight.to_le_bytes());
    let numbers = [
        [device.bandwidth, device.latency_ns, device.seek_ns, *link_free_ns, file.0],
        [file.1, *offset, counted.requests, counted.bytes, counted.seeks],
    ];
    for number in numbers.as_flattened().iter().chain(lanes_free_ns) {
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

fn from_bytes(bytes: &[u8]) -> io::Result<(Device, State)> {
    if bytes.len() < HEADER || &bytes[..8] != MAGIC {
        return Err(foreign("it was made by something else"));
    }
    let short = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if short(8) != VERSION {
        return Err(foreign(&format!("its version is {}, this Forebay knows {VERSION}", short(8))));
    }
    let mut numbers = bytes[16..].as_chunks::<8>().0.iter().map(|eight| u64::from_le_bytes(*eight));
    let mut next = || numbers.next().unwrap_or_default();
    let device = Device { inflight: short(12), bandwidth: next(), latency_ns: next(), seek_ns: next() };
    if !device.is_sound() || bytes.len() != HEADER + 8 * device.inflight as usize {
        return Err(foreign("its numbers are damaged"));
    }
    let state = State {
        link_free_ns: next(),
        head: ((next(), next()), next()),
        counted: Counted { requests: next(), bytes: next(), seeks: next() },
        lanes_free_ns: numbers.collect(),
    };
    Ok((device, state))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn temporary(device: Device) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("throttle");
        Throttle::create(&path, device).expect("a new file");
        (dir, path)
    }

    #[test]
    fn all_who_open_it_get_together_what_the_device_gives() {
        let (_dir, path) = temporary(Device::NFS);
        let (readers, each, bytes) = (4u64, 50u64, 100_000u64);
        let begun = now_ns();
        let last = thread::scope(|scope| {
            let one = |reader: u64| {
                let throttle = Throttle::open(&path).expect("it is there");
                let book =
                    |i| throttle.book(begun, (1, reader * each + i), 0, bytes).expect("booked").done_ns;
                (0..each).map(book).max()
            };
            let readers: Vec<_> = (0..readers).map(|reader| scope.spawn(move || one(reader))).collect();
            readers.into_iter().filter_map(|reader| reader.join().expect("no panic")).max()
        });
        let seconds = (last.expect("requests") - begun) as f64 / 1e9;
        let nominal = (readers * each * bytes) as f64 / Device::NFS.bandwidth as f64;
        assert!((seconds - nominal - 0.001).abs() < 1e-6, "{seconds} {nominal}");
        let counted = Throttle::open(&path).expect("it is there").reset().expect("reset");
        assert_eq!((counted.requests, counted.bytes), (readers * each, readers * each * bytes));
        assert_eq!(Throttle::open(&path).expect("it is there").counted().expect("read"), Counted::default());
    }

    #[test]
    fn a_wait_ends_when_its_time_is_over() {
        let (_dir, path) = temporary(Device { latency_ns: 3_000_000, ..Device::NFS });
        let throttle = Throttle::open(&path).expect("it is there");
        let begun = now_ns();
        throttle.wait((1, 1), 0, 1000).expect("booked");
        assert!(now_ns() >= begun + 3_000_000 + 4_000);
        // Two windows and a bit.
        throttle.reset().expect("reset");
        throttle.read((1, 1), 1000, 2 * WINDOW + 1).expect("booked");
        let counted = throttle.counted().expect("read");
        assert_eq!((counted.requests, counted.bytes, counted.seeks), (3, 2 * WINDOW + 1, 0));
    }

    #[test]
    fn what_is_no_throttle_is_refused() {
        let (dir, path) = temporary(Device::HDD);
        let good = fs::read(&path).expect("bytes");
        let damage = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        let late = {
            let state = State { link_free_ns: u64::MAX / 2, ..Device::HDD.idle() };
            to_bytes(&Device::HDD, &state)
        };
        let cases = [
            (Vec::new(), "something else"),
            (b"not at all what it should be".repeat(9), "something else"),
            (damage(8, 2), "version is 2"),
            (damage(12, 0), "damaged"),
            (good[..HEADER].to_vec(), "damaged"),
            ([&good[..], b"more"].concat(), "damaged"),
            (late, "make it anew"),
        ];
        for (bytes, why) in cases {
            fs::write(&path, bytes).expect("written");
            let error = Throttle::open(&path).expect_err("refused");
            assert!(error.to_string().contains(why), "{error}");
        }
        let absent = Throttle::open(&dir.path().join("absent")).expect_err("refused");
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
        let none = Device { bandwidth: 0, ..Device::HDD };
        assert!(Throttle::create(&path, none).is_err());
    }

    #[test]
    fn a_lock_of_a_forked_child_does_not_outlive_its_parents() {
        let (_dir, path) = temporary(Device::HDD);
        let held = Locked::open(&path).expect("locked");
        // What a forked child has: the same open file.
        let inherited = held.0.try_clone().expect("a second descriptor");
        drop(held);
        Throttle::open(&path).expect("free again");
        drop(inherited);
    }
}
