//! Processes of the bench, and what Linux counts for a process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::Result;

/// The bench program again in a role of its own, killed when this is dropped.
pub struct Helper(Child);

impl Helper {
    /// Returns with the first line that it prints.
    pub fn start(arguments: &[&str]) -> Result<(Self, String)> {
        let mut child = Command::new(std::env::current_exe()?)
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
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // See proc_pid_stat(5). The name may have spaces, so count from its end: utime and stime.
    let (_, fields) = stat.rsplit_once(") ").ok_or("no name")?;
    let times = fields.split(' ').skip(11).take(2);
    let ticks: f64 = times.filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    Ok(ticks / TICKS_PER_SECOND)
}
