//! Processes of the bench, and what Linux counts for a process.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::Result;

/// The bench program, also when a build has replaced its file meanwhile.
pub const THIS_PROGRAM: &str = "/proc/self/exe";

/// The bench program again in a role of its own, killed when this is dropped.
pub struct Helper(Child);

impl Helper {
    /// Returns with the first line that it prints.
    pub fn start(arguments: &[&str]) -> Result<(Self, String)> {
        let mut child = Command::new(THIS_PROGRAM)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or("it has no output")?;
        let helper = Self(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        match line.trim() {
            "" => Err(format!("{arguments:?} ended early").into()),
            line => Ok((helper, line.to_owned())),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The most memory that a process had so far, in MB.
pub fn peak_mb(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: f64 = peak
        .ok_or("no VmHWM")?
        .trim()
        .trim_end_matches(" kB")
        .parse()?;
    Ok(kib / 1024.0)
}

/// CPU seconds that a process has used so far.
pub fn cpu_secs(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // User and system time.
    Ok(seconds(&stat, 2).ok_or("no times")?)
}

/// CPU seconds that all processes of this name have used so far, with their children that ended.
pub fn cpu_secs_of(name: &str) -> f64 {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats =
        processes.filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok());
    stats
        .filter(|stat| stat.contains(&format!("({name})")))
        // Those of the children too.
        .filter_map(|stat| seconds(&stat, 4))
        .sum()
}

/// Bytes on disk of a collection, without its write-ahead log, of a Qdrant that the tests or benches have
/// started.
pub fn collection_bytes(collection: &str) -> Option<u64> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let folders =
        processes.filter_map(|process| std::fs::read_link(process.path().join("cwd")).ok());
    let mut found = folders.map(|folder| folder.join("storage/collections").join(collection));
    Some(bytes_below(&found.find(|folder| folder.is_dir())?))
}

fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(folder) if folder.is_dir() && entry.file_name() != "wal" => bytes_below(&entry.path()),
        // Files may be sparse.
        Ok(file) if file.is_file() => 512 * file.blocks(),
        _ => 0,
    });
    bytes.sum()
}

/// The first of the times in `/proc/<pid>/stat`, see proc_pid_stat(5): utime, stime, cutime, cstime.
fn seconds(stat: &str, times: usize) -> Option<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    // The name may have spaces, so count from its end.
    let (_, fields) = stat.rsplit_once(") ")?;
    let times = fields.split(' ').skip(11).take(times);
    let ticks: f64 = times.filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    Some(ticks / TICKS_PER_SECOND)
}

/// The CPU that ELF's side, or the baseline's, Postgres and the engine use from a moment on.
pub struct Cpu {
    pid: u32,
    before: [f64; 3],
}

impl Cpu {
    pub const NAMES: [&str; 3] = ["process", "Postgres", "engine"];

    pub fn start(pid: u32) -> Result<Self> {
        Ok(Self {
            pid,
            before: Self::now(pid)?,
        })
    }

    fn now(pid: u32) -> Result<[f64; 3]> {
        Ok([
            cpu_secs(pid)?,
            cpu_secs_of("postgres"),
            cpu_secs_of("qdrant"),
        ])
    }

    /// Milliseconds of each since then, for one of so many chunks.
    pub fn millis_each(&self, chunks: usize) -> Result<[f64; 3]> {
        let now = Self::now(self.pid)?;
        let millis = |n: usize| 1e3 * (now[n] - self.before[n]) / chunks as f64;
        Ok([0, 1, 2].map(millis))
    }
}
