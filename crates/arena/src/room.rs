//! How much memory is left before the kernel starts to kill.
//!
//! A memory file beyond free memory is no error: the kernel kills processes, small innocent ones first. So
//! what the machine and every cgroup above this process leave is read before each slot. Page cache counts
//! as free, but only `active_file` and `inactive_file`: the larger `file` contains shared memory, which is
//! what fills up here and which nothing can reclaim.

use std::fmt;
use std::fs;
use std::path::Path;

use thiserror::Error;

/// Stays free at least, or [`SHARE`] of the whole if that is more.
const LEAST: u64 = 64 << 20;
/// 2 %.
const SHARE: u64 = 50;
/// Where version 1 says "no limit" it writes the largest whole number of pages, near 2^63.
const NO_LIMIT: u64 = 1 << 60;
/// What a machine is taken to have that does not tell.
const TOTAL: u64 = 4 << 30;

/// What machine and cgroups had and used at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    machine: Machine,
    groups: Vec<Group>,
}

/// Too little memory is left. Its text shows the sum, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "a slot of {} does not fit: {place}, and {} stay free; {}",
    Size(*need), Size(place.margin()), place.cure()
)]
pub struct Short {
    need: u64,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Machine {
    total: u64,
    /// Without it, only the cgroups say no.
    available: Option<u64>,
}

/// A cgroup with a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    path: String,
    limit: u64,
    used: u64,
    reclaimable: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Machine(Machine),
    Group(Group),
}

/// The names under which a version of cgroups keeps its figures.
struct Version {
    limit: &'static str,
    used: &'static str,
    reclaimable: [&'static str; 2],
}

const V1: Version = Version {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
};
const V2: Version =
    Version { limit: "memory.max", used: "memory.current", reclaimable: ["inactive_file", "active_file"] };

impl Room {
    /// What this machine and this process's cgroups leave now.
    pub fn now() -> Self {
        Self::read(Path::new("/"))
    }

    /// The same from the files below `root`, which stands for `/`.
    pub fn read(root: &Path) -> Self {
        let meminfo = text(&root.join("proc/meminfo"));
        let kib = |name| field(&meminfo, name).map(|kib| kib << 10);
        let machine = Machine { total: kib("MemTotal:").unwrap_or(TOTAL), available: kib("MemAvailable:") };
        let mut groups = Vec::new();
        let mounts = root.join("sys/fs/cgroup");
        for line in text(&root.join("proc/self/cgroup")).lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            if controllers.is_empty() {
                add_groups(&mut groups, &mounts, path, &V2);
                // Where both versions are mounted, the second has a folder of its own.
                add_groups(&mut groups, &mounts.join("unified"), path, &V2);
            } else if controllers.split(',').any(|controller| controller == "memory") {
                add_groups(&mut groups, &mounts.join("memory"), path, &V1);
            }
        }
        Room { machine, groups }
    }

    /// What this process may use in all, free or not: the least of the machine's memory and all limits.
    pub fn allowed(&self) -> u64 {
        self.groups.iter().map(|group| group.limit).fold(self.machine.total, u64::min)
    }

    /// Refuses `need` more bytes where they, and a margin, are more than the machine or a cgroup has left.
    pub fn check(&self, need: u64) -> Result<(), Short> {
        let machine = Place::Machine(self.machine);
        let groups = self.groups.iter().cloned().map(Place::Group);
        match std::iter::once(machine).chain(groups).min_by_key(Place::left) {
            Some(place) if need > place.left() => Err(Short { need, place }),
            _ => Ok(()),
        }
    }
}

/// Adds the group at `path` and its ancestors, those that have a limit. In a container the path may be the
/// one outside, which is not there; the root of the mount, always an ancestor, is then the container's own.
fn add_groups(groups: &mut Vec<Group>, mount: &Path, path: &str, version: &Version) {
    let mut path = path.trim_end_matches('/');
    loop {
        let folder = mount.join(path.trim_start_matches('/'));
        let number = |name| text(&folder.join(name)).trim().parse::<u64>().ok();
        if let Some(limit) = number(version.limit).filter(|&limit| limit < NO_LIMIT) {
            let stat = text(&folder.join("memory.stat"));
            groups.push(Group {
                path: if path.is_empty() { "/".into() } else { path.into() },
                limit,
                used: number(version.used).unwrap_or(0),
                reclaimable: version.reclaimable.iter().filter_map(|name| field(&stat, name)).sum(),
            });
        }
        let Some(end) = path.rfind('/') else { break };
        path = &path[..end];
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The number behind `name`, in a file of one name and number a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == name).then(|| words.next()?.parse().ok())?
    })
}

impl Place {
    fn margin(&self) -> u64 {
        let whole = match self {
            Place::Machine(machine) => machine.total,
            Place::Group(group) => group.limit,
        };
        LEAST.max(whole / SHARE)
    }

    fn left(&self) -> u64 {
        let free = match self {
            Place::Machine(machine) => machine.available.unwrap_or(u64::MAX),
            Place::Group(group) => group.limit.saturating_sub(group.used.saturating_sub(group.reclaimable)),
        };
        free.saturating_sub(self.margin())
    }

    fn cure(&self) -> &'static str {
        match self {
            Place::Machine(_) => "stop another process, or start with less --memory",
            Place::Group(_) => "stop another process, raise the limit, or start with less --memory",
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Machine(Machine { total, available }) => {
                let available = Size(available.unwrap_or(*total));
                write!(f, "the machine has {}, of which {available} are available", Size(*total))
            }
            Place::Group(Group { path, limit, used, reclaimable }) => write!(
                f,
                "the cgroup {path} allows {}, uses {}, of which {} are reclaimable page cache",
                Size(*limit),
                Size(*used),
                Size(*reclaimable)
            ),
        }
    }
}

/// Always in MB, so that a reader can add up.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MB", self.0 as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal:        8388608 kB\nMemFree:  1 kB\nMemAvailable:    6291456 kB\n");

    fn room(files: &[(&str, &str)]) -> Room {
        let root = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        Room::read(root.path())
    }

    /// The most that `check` lets pass.
    fn most(room: &Room) -> u64 {
        let (mut fits, mut does_not) = (0, 1 << 50);
        while does_not - fits > 1 {
            let middle = fits + (does_not - fits) / 2;
            if room.check(middle).is_ok() { fits = middle } else { does_not = middle }
        }
        fits
    }

    #[test]
    fn without_limits_the_machine_decides() {
        let max = ("sys/fs/cgroup/a/memory.max", "max\n");
        let room = room(&[MEMINFO, ("proc/self/cgroup", "0::/a\n"), max]);
        assert_eq!(room.allowed(), 8 * GIB);
        assert_eq!(most(&room), 6 * GIB - 8 * GIB / 50);
    }

    #[test]
    fn page_cache_can_be_reclaimed_but_shared_memory_cannot() {
        let room = room(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "536870912\n"),
            ("sys/fs/cgroup/a/b/memory.current", "419430400\n"),
            // 300 MiB of `file`, of which 200 are shared memory.
            (
                "sys/fs/cgroup/a/b/memory.stat",
                "anon 5\nfile 314572800\nshmem 209715200\ninactive_file 73400320\nactive_file 31457280\n",
            ),
        ]);
        assert_eq!(room.allowed(), 512 * MIB);
        assert_eq!(most(&room), (512 - (400 - 100) - 64) * MIB);
    }

    #[test]
    fn the_tightest_ancestor_decides_and_the_refusal_shows_the_sum() {
        let room = room(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "400000000\n"),
            ("sys/fs/cgroup/a/b/memory.current", "1000000\n"),
            ("sys/fs/cgroup/a/memory.max", "512000000\n"),
            ("sys/fs/cgroup/a/memory.current", "490100000\n"),
            ("sys/fs/cgroup/a/memory.stat", "inactive_file 2000000\nactive_file 1000000\n"),
        ]);
        assert_eq!(room.allowed(), 400_000_000);
        assert_eq!(
            room.check(38_535_168).expect_err("too little").to_string(),
            "a slot of 38.5 MB does not fit: the cgroup /a allows 512.0 MB, uses 490.1 MB, of which \
             3.0 MB are reclaimable page cache, and 67.1 MB stay free; stop another process, raise the \
             limit, or start with less --memory"
        );
    }

    #[test]
    fn a_full_machine_refuses_too() {
        let meminfo = ("proc/meminfo", "MemTotal: 2000000 kB\nMemAvailable: 100000 kB\n");
        assert_eq!(
            room(&[meminfo]).check(38_535_168).expect_err("too little").to_string(),
            "a slot of 38.5 MB does not fit: the machine has 2048.0 MB, of which 102.4 MB are available, and \
             67.1 MB stay free; stop another process, or start with less --memory"
        );
    }

    #[test]
    fn version_1_counts_whole_hierarchies_and_knows_its_way_to_say_no_limit() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "4:memory:/docker/x\n3:cpuset:/\n"),
            ("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "1073741824\n"),
            ("sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes", "524288000\n"),
            (
                "sys/fs/cgroup/memory/docker/x/memory.stat",
                "inactive_file 1\nactive_file 1\ntotal_inactive_file 52428800\ntotal_active_file 52428800\n",
            ),
            ("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        let room = room(&files);
        assert_eq!(room.allowed(), GIB);
        assert_eq!(room.groups.len(), 1);
        assert_eq!(most(&room), (1024 - (500 - 100) - 64) * MIB);
    }

    #[test]
    fn both_versions_at_once_are_both_read() {
        let room = room(&[
            MEMINFO,
            ("proc/self/cgroup", "4:cpu,memory:/v1\n1:name=systemd:/s\n0::/v2\n"),
            ("sys/fs/cgroup/memory/v1/memory.limit_in_bytes", "3221225472\n"),
            ("sys/fs/cgroup/memory/v1/memory.usage_in_bytes", "0\n"),
            ("sys/fs/cgroup/unified/v2/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/unified/v2/memory.current", "1073741824\n"),
        ]);
        assert_eq!(room.groups.iter().map(|group| group.path.as_str()).collect::<Vec<_>>(), ["/v1", "/v2"]);
        assert_eq!(room.allowed(), 2 * GIB);
        assert_eq!(most(&room), GIB - 64 * MIB);
    }

    #[test]
    fn a_container_that_sees_only_itself_finds_its_limit_at_the_root() {
        for path in ["0::/system.slice/docker-x.scope\n", "0::/\n", "0::/../x\n"] {
            let limit = ("sys/fs/cgroup/memory.max", "1073741824\n");
            let room = room(&[MEMINFO, ("proc/self/cgroup", path), limit]);
            assert_eq!((room.allowed(), room.groups.len()), (GIB, 1), "{path}");
            assert_eq!(room.groups[0].path, "/");
        }
    }

    #[test]
    fn missing_and_broken_files_are_no_limits() {
        let nothing = room(&[]);
        assert_eq!(nothing.allowed(), TOTAL);
        assert!(nothing.check(GIB).is_ok());
        let broken =
            [("proc/meminfo", "MemTotal:\nnonsense"), ("proc/self/cgroup", "x\n0::\n::\n7:memory\n")];
        assert_eq!(room(&broken).allowed(), TOTAL);
        let only_a_limit =
            [MEMINFO, ("proc/self/cgroup", "0::/"), ("sys/fs/cgroup/memory.max", "1073741824")];
        assert_eq!(most(&room(&only_a_limit)), GIB - 64 * MIB);
    }

    #[test]
    fn a_group_over_its_limit_has_no_room_at_all() {
        let room = room(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/"),
            ("sys/fs/cgroup/memory.max", "1073741824"),
            ("sys/fs/cgroup/memory.current", "2073741824"),
        ]);
        assert!(room.check(1).is_err() && room.check(0).is_ok());
    }

    #[test]
    fn this_machine_allows_something() {
        let room = Room::now();
        assert!(room.allowed() > 64 * MIB);
        assert!(room.check(u64::MAX).is_err());
    }
}
