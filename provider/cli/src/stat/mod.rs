//! `metaroce stat`: what every process on this host that uses metaroce is doing, again and again.
//!
//! [`find`] finds their sockets, [`ask`] asks them all at once, [`rates`] compares with the sample before, [`text`]
//! shows it to people, [`screen`] on a terminal; `--json` prints one object a sample, a line each. Nothing here waits
//! for a process that does not answer longer than [`ask`] allows.

mod ask;
pub(crate) mod find;
mod legend;
mod nothing;
mod rates;
mod sample;
mod screen;
mod text;

use crate::print;
use anyhow::{Result, bail, ensure};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use sample::Sample;
use std::fs::{File, metadata};
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Least time between two samples: asking takes a millisecond of each process.
const LEAST_INTERVAL_S: f64 = 0.05;
/// A day.
const LONGEST_INTERVAL_S: f64 = 86_400.0;

/// What to show.
#[derive(clap::Args, Debug)]
#[command(after_help = legend::SHORT, after_long_help = legend::LONG)]
pub(crate) struct Options {
    /// Seconds between two samples.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// End after so many samples [default: never].
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// One sample: totals since each process began.
    #[arg(long, conflicts_with_all = ["count", "interval"])]
    once: bool,
    /// One JSON object a sample, a line each.
    #[arg(long)]
    json: bool,
    /// Without the tables of paths.
    #[arg(short, long)]
    brief: bool,
    /// Only this process; may be given more than once.
    #[arg(short, long, value_name = "PID")]
    pid: Vec<u32>,
    /// Only this device; may be given more than once.
    #[arg(short, long, value_name = "NAME")]
    device: Vec<String>,
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (LEAST_INTERVAL_S..=LONGEST_INTERVAL_S).contains(&seconds) => Ok(seconds),
        _ => Err(format!(
            "it must be a number of seconds from {LEAST_INTERVAL_S} to {LONGEST_INTERVAL_S}"
        )),
    }
}

impl Options {
    fn wants(&self, pids: &[u32], device: &str) -> bool {
        (self.pid.is_empty() || self.pid.iter().any(|pid| pids.contains(pid)))
            && (self.device.is_empty() || self.device.iter().any(|wanted| wanted == device))
    }

    /// The filters, as they were given; none if there are none.
    fn filter(&self) -> Option<String> {
        let pids = self.pid.iter().map(|pid| format!("--pid {pid}"));
        let devices = self.device.iter().map(|name| format!("--device {name}"));
        let filters: Vec<String> = pids.chain(devices).collect();
        (!filters.is_empty()).then(|| filters.join(" "))
    }
}

/// Samples until the count is reached or nobody reads any more.
///
/// # Errors
/// The list of sockets cannot be read, stdout cannot be written, or no sample had a process that the filters match.
pub(crate) fn run(options: &Options) -> Result<()> {
    let samples = if options.once { Some(1) } else { options.count };
    let interval = Duration::from_secs_f64(options.interval);
    let live = !options.json && !options.once && std::io::stdout().is_terminal();
    if samples.is_none() && may_be_closed(std::io::stdout()) {
        bail!(
            "cannot write to standard output: it is closed, or /dev/null (--count N ends by itself)"
        );
    }
    let mut before: Option<Sample> = None;
    let mut taken = 0;
    let mut matched = options.filter().is_none();
    let mut due = Instant::now();
    loop {
        let sample = sample::take(options, before.as_ref())?;
        matched |= !sample.is_empty();
        taken += 1;
        let last = samples.is_some_and(|samples| taken >= samples);
        // People are told once, by the error.
        let speaks = options.json || matched || !last;
        if speaks && !print(&shown(&sample, before.as_ref(), options, live))? {
            return Ok(());
        }
        if last {
            ensure!(matched, nothing::explain(&sample, options));
            return Ok(());
        }
        before = Some(sample);
        // Steady, but never two at once after a sample that took long.
        due = (due + interval).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// A sample as it is written: over the one before on a `live` screen, else below it.
fn shown(sample: &Sample, before: Option<&Sample>, options: &Options, live: bool) -> String {
    if options.json {
        return sample.json(before).to_string() + "\n";
    }
    let text = text::show(sample, before, options);
    match before {
        _ if live => screen::frame(&text, screen::Size::of_stdout()),
        Some(_) => format!("\n{text}"),
        None => text,
    }
}

/// Whether this is what Rust's runtime puts in the place of a descriptor that was closed when the program began:
/// /dev/null, opened to read and write, where all that is written is lost without an error. (Shells open /dev/null
/// to write only.)
fn may_be_closed(output: impl AsFd) -> bool {
    let output = output.as_fd();
    let is_null = || -> std::io::Result<bool> {
        let file = File::from(output.try_clone_to_owned()?);
        Ok(file.metadata()?.rdev() == metadata("/dev/null")?.rdev())
    };
    let reads_and_writes = fcntl(output, FcntlArg::F_GETFL)
        .is_ok_and(|flags| OFlag::from_bits_retain(flags) & OFlag::O_ACCMODE == OFlag::O_RDWR);
    reads_and_writes && is_null().unwrap_or(false)
}

#[cfg(test)]
mod tests;
