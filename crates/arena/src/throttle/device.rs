//! What a simulated device can do, and when it has done it: [`Device::schedule`].
//!
//! A request takes one of `inflight` lanes, waits for its first byte, and then has the link alone until its
//! last one. Requests are served in the order in which they come. All of it is arithmetic on
//! nanoseconds, so that another language can do the same and come to the same times.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Lanes beyond this make the state slow to read.
pub(super) const MOST_INFLIGHT: u32 = 1024;
const SECOND: u64 = 1_000_000_000;
const NAMES: &str = "hdd, nfs, s3";

/// A device's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// Bytes per second over the link, of all requests together.
    pub bandwidth: u64,
    /// From the start of a request to its first byte; requests in flight wait at the same time.
    pub latency_ns: u64,
    /// What the only head needs for a read that does not begin where the last one ended.
    pub seek_ns: u64,
    /// Requests at the same time; more of them queue.
    pub inflight: u32,
}

/// What of a device's future is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// When the link has sent all it was asked for.
    pub link_free_ns: u64,
    /// File and offset where the head stands; a file of zeros is none.
    pub head: ((u64, u64), u64),
    /// When each lane is free.
    pub lanes_free_ns: Vec<u64>,
    /// What was asked for so far.
    pub counted: Counted,
}

/// What was asked of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Requests.
    pub requests: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Requests that did not go on where the last one ended.
    pub seeks: u64,
}

/// When a request is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Booked {
    /// It has a lane.
    pub start_ns: u64,
    /// Its last byte is there.
    pub done_ns: u64,
}

/// Text that names no device.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{0:?} is no device: {1}; write one of {NAMES}, or bandwidth=200MB/s,latency=1ms,inflight=64,seek=0ms"
)]
pub struct BadDevice(String, String);

impl Device {
    /// One head: 8 ms for a seek, 150 MB/s.
    pub const HDD: Device = Device { bandwidth: 150_000_000, latency_ns: 0, seek_ns: 8_000_000, inflight: 1 };
    /// A file server: 1 ms for a request, 64 at a time, 250 MB/s.
    pub const NFS: Device =
        Device { bandwidth: 250_000_000, latency_ns: 1_000_000, seek_ns: 0, inflight: 64 };
    /// An object store: 20 ms to the first byte, 64 at a time, 200 MB/s.
    pub const S3: Device =
        Device { bandwidth: 200_000_000, latency_ns: 20_000_000, seek_ns: 0, inflight: 64 };

    /// A device with nothing to do.
    pub fn idle(&self) -> State {
        State {
            link_free_ns: 0,
            head: ((0, 0), 0),
            lanes_free_ns: vec![0; self.inflight as usize],
            counted: Counted::default(),
        }
    }

    /// Takes the time that a read of `bytes` at `offset` of `file`, asked for at `now_ns`, needs.
    ///
    /// Calls in the order of `now_ns` give times that never decrease.
    pub fn schedule(
        &self,
        state: &mut State,
        now_ns: u64,
        file: (u64, u64),
        offset: u64,
        bytes: u64,
    ) -> Booked {
        let free = state.lanes_free_ns.iter_mut().min().expect("a device has at least one lane");
        let start_ns = now_ns.max(*free);
        let moves = state.head != (file, offset);
        let seek_ns = if moves { self.seek_ns } else { 0 };
        let begin_ns = state.link_free_ns.max(start_ns.saturating_add(self.latency_ns));
        let done_ns = begin_ns.saturating_add(seek_ns).saturating_add(self.transfer_ns(bytes));
        *free = done_ns;
        state.link_free_ns = done_ns;
        state.head = (file, offset.saturating_add(bytes));
        state.counted.requests += 1;
        state.counted.bytes += bytes;
        state.counted.seeks += u64::from(moves);
        Booked { start_ns, done_ns }
    }

    /// What the link needs for so many bytes, rounded up.
    pub fn transfer_ns(&self, bytes: u64) -> u64 {
        let exact = (u128::from(bytes) * u128::from(SECOND)).div_ceil(u128::from(self.bandwidth));
        u64::try_from(exact).unwrap_or(u64::MAX)
    }

    /// Requests per second that `readers` get together, each with one request of `bytes` after another, all of
    /// them in other places (or, with `goes_on`, where the last one ended).
    pub fn nominal(&self, readers: usize, bytes: u64, goes_on: bool) -> f64 {
        let seconds = |ns: u64| ns as f64 / SECOND as f64;
        let link = seconds(self.transfer_ns(bytes)) + if goes_on { 0.0 } else { seconds(self.seek_ns) };
        let lanes = readers.clamp(1, self.inflight as usize) as f64;
        (lanes / (seconds(self.latency_ns) + link)).min(1.0 / link)
    }

    /// The numbers for a reader.
    pub fn describe(&self) -> String {
        let mut parts = vec![format!("{} MB/s", self.bandwidth as f64 / 1e6)];
        if self.latency_ns > 0 {
            parts.push(format!("{} ms to the first byte", self.latency_ns as f64 / 1e6));
        }
        if self.seek_ns > 0 {
            parts.push(format!("{} ms to seek unless a read goes on", self.seek_ns as f64 / 1e6));
        }
        parts.push(match self.inflight {
            1 => "one request at a time".into(),
            many => format!("{many} requests in flight"),
        });
        parts.join(", ")
    }

    pub(super) fn is_sound(&self) -> bool {
        self.bandwidth > 0 && (1..=MOST_INFLIGHT).contains(&self.inflight)
    }
}

impl fmt::Display for Device {
    /// As [`Device::from_str`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Device { bandwidth, latency_ns, seek_ns, inflight } = self;
        write!(f, "bandwidth={bandwidth}B/s,latency={latency_ns}ns,inflight={inflight},seek={seek_ns}ns")
    }
}

impl FromStr for Device {
    type Err = BadDevice;

    /// Reads a name, numbers, or a name and the numbers that differ: `hdd`, `bandwidth=200MB/s,latency=1ms`,
    /// `nfs,bandwidth=1GB/s`. What is not said costs nothing; 64 requests are in flight.
    fn from_str(text: &str) -> Result<Self, BadDevice> {
        let bad = |why: String| BadDevice(text.into(), why);
        let mut device = Device { bandwidth: 0, latency_ns: 0, seek_ns: 0, inflight: 64 };
        for (at, part) in text.split(',').map(str::trim).enumerate() {
            let wrong = || bad(format!("{part:?} is not understood"));
            match (part.split_once('='), at) {
                (Some(("bandwidth", value)), _) => {
                    device.bandwidth = bytes(value.strip_suffix("/s").unwrap_or(value)).ok_or_else(wrong)?;
                }
                (Some(("latency", value)), _) => device.latency_ns = time_ns(value).ok_or_else(wrong)?,
                (Some(("seek", value)), _) => device.seek_ns = time_ns(value).ok_or_else(wrong)?,
                (Some(("inflight", value)), _) => device.inflight = value.parse().map_err(|_| wrong())?,
                (None, 0) => {
                    device = match part {
                        "hdd" => Device::HDD,
                        "nfs" => Device::NFS,
                        "s3" => Device::S3,
                        _ => return Err(wrong()),
                    }
                }
                _ => return Err(wrong()),
            }
        }
        if !device.is_sound() {
            return Err(bad(format!("it needs a bandwidth and 1 to {MOST_INFLIGHT} requests in flight")));
        }
        Ok(device)
    }
}

fn bytes(text: &str) -> Option<u64> {
    scaled(text, &[("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("KB", 1e3), ("B", 1.0), ("", 1.0)])
}

fn time_ns(text: &str) -> Option<u64> {
    scaled(text, &[("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)])
        .or_else(|| (text == "0").then_some(0))
}

/// A number with the first unit that fits.
fn scaled(text: &str, units: &[(&str, f64)]) -> Option<u64> {
    let (number, factor) =
        units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    let value = number.trim().parse::<f64>().ok()? * factor;
    (0.0..1e15).contains(&value).then_some(value.round() as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    struct Request {
        after_ns: u64,
        file: u64,
        offset: u64,
        bytes: u64,
    }

    fn devices() -> impl Strategy<Value = Device> {
        (1_000_000u64..1_000_000_000, 0u64..30_000_000, 0u64..10_000_000, 1u32..70).prop_map(
            |(bandwidth, latency_ns, seek_ns, inflight)| Device { bandwidth, latency_ns, seek_ns, inflight },
        )
    }

    fn requests() -> impl Strategy<Value = Vec<Request>> {
        let one =
            (0u64..3_000_000, 0u64..4, 0u64..4, 0u64..400_000).prop_map(|(after_ns, file, offset, bytes)| {
                Request { after_ns, file, offset: offset * 100_000, bytes }
            });
        prop::collection::vec(one, 1..200)
    }

    fn run(device: Device, requests: &[Request]) -> Vec<(u64, Booked)> {
        let (mut state, mut now) = (device.idle(), 5);
        let mut serve = |one: &Request| {
            now += one.after_ns;
            (now, device.schedule(&mut state, now, (1, one.file), one.offset, one.bytes))
        };
        requests.iter().map(&mut serve).collect()
    }

    proptest! {
        #[test]
        fn no_time_sees_more_bytes_than_the_link_carries(device in devices(), asked in requests()) {
            let served = run(device, &asked);
            for first in 0..served.len() {
                let mut sum = 0;
                // All bytes of these requests went over the link after `first` was asked for.
                for last in first..served.len() {
                    sum += u128::from(asked[last].bytes);
                    let time = u128::from(served[last].1.done_ns - served[first].0);
                    prop_assert!(sum * 1_000_000_000 <= time * u128::from(device.bandwidth));
                }
            }
        }

        #[test]
        fn never_more_in_flight_than_allowed(device in devices(), asked in requests()) {
            let served = run(device, &asked);
            for (_, one) in &served {
                let at = one.start_ns;
                let beside = served.iter().filter(|(_, b)| b.start_ns <= at && at < b.done_ns).count();
                prop_assert!(beside <= device.inflight as usize, "{beside}");
            }
        }

        #[test]
        fn none_is_done_before_it_could_be_and_none_overtakes(device in devices(), asked in requests()) {
            let served = run(device, &asked);
            for ((now, booked), one) in served.iter().zip(&asked) {
                prop_assert!(booked.start_ns >= *now);
                let least = device.latency_ns + device.transfer_ns(one.bytes);
                prop_assert!(booked.done_ns >= booked.start_ns + least);
            }
            prop_assert!(served.is_sorted_by_key(|(_, b)| b.done_ns));
            prop_assert!(served.is_sorted_by_key(|(_, b)| b.start_ns));
        }

        #[test]
        fn a_read_that_goes_on_pays_no_seek(device in devices(), sizes in prop::collection::vec(1u64..300_000, 2..50)) {
            let mut state = device.idle();
            let (mut now, mut offset) = (0, 7);
            for (i, &bytes) in sizes.iter().enumerate() {
                let done = device.schedule(&mut state, now, (1, 1), offset, bytes).done_ns;
                let seek = if i == 0 { device.seek_ns } else { 0 };
                prop_assert_eq!(done - now, device.latency_ns + seek + device.transfer_ns(bytes));
                (now, offset) = (done, offset + bytes);
            }
            prop_assert_eq!(state.counted.seeks, 1);
        }

        #[test]
        fn many_readers_get_the_nominal_rate(device in devices(), readers in 1usize..80, bytes in 1u64..300_000) {
            // Each reader asks again when it has what it asked for.
            let mut state = device.idle();
            let mut due = vec![0u64; readers];
            let (rounds, mut last) = (40 * readers as u64, 0);
            for i in 0..rounds {
                let reader = due.iter_mut().min().expect("readers");
                last = device.schedule(&mut state, *reader, (1, i), 0, bytes).done_ns;
                *reader = last;
            }
            let rate = rounds as f64 / (last as f64 / 1e9);
            let nominal = device.nominal(readers, bytes, false);
            prop_assert!((0.9..=1.0001).contains(&(rate / nominal)), "{rate} {nominal}");
        }

        #[test]
        fn what_is_printed_is_read_again(device in devices()) {
            prop_assert_eq!(device.to_string().parse(), Ok(device));
        }
    }

    #[test]
    fn devices_read_as_people_write_them() {
        assert_eq!("hdd".parse(), Ok(Device::HDD));
        let custom = Device { bandwidth: 200_000_000, latency_ns: 1_000_000, seek_ns: 0, inflight: 64 };
        assert_eq!("bandwidth=200MB/s,latency=1ms,inflight=64,seek=0ms".parse(), Ok(custom));
        assert_eq!("nfs,bandwidth=1.5GB/s".parse(), Ok(Device { bandwidth: 1_500_000_000, ..Device::NFS }));
        for bad in ["", "tape", "hdd,tape", "latency=1ms", "bandwidth=0MB/s", "nfs,inflight=0", "nfs,seek=5"]
        {
            assert!(bad.parse::<Device>().is_err(), "{bad:?}");
        }
        let said = "tape".parse::<Device>().expect_err("no device").to_string();
        assert!(said.contains("\"tape\" is no device") && said.contains("hdd, nfs, s3"), "{said}");
        assert_eq!(
            Device::HDD.describe(),
            "150 MB/s, 8 ms to seek unless a read goes on, one request at a time"
        );
        assert_eq!(Device::S3.describe(), "200 MB/s, 20 ms to the first byte, 64 requests in flight");
    }
}
