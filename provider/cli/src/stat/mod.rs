//! `metaroce stat`: what every process on this host that uses metaroce is doing, again and again.
//!
//! [`find`] finds their sockets, [`ask`] asks them all at once, [`rates`] compares with the sample before, [`text`]
//! shows it to people; `--json` prints one object a sample, a line each. Nothing here waits for a process that does not
//! answer longer than [`ask`] allows.

mod ask;
pub(crate) mod find;
mod rates;
mod sample;
mod text;

use anyhow::{Result, bail};
use sample::Sample;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Least time between two samples: asking takes a millisecond of each process.
const LEAST_INTERVAL_S: f64 = 0.05;
/// A day.
const LONGEST_INTERVAL_S: f64 = 86_400.0;
/// Cursor home, clear the screen: what `watch` does.
const CLEAR: &str = "\x1b[H\x1b[2J\x1b[3J";

/// What to show.
#[derive(clap::Args, Debug)]
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
}

/// Samples until the count is reached or nobody reads any more.
///
/// # Errors
/// The list of sockets cannot be read.
pub(crate) fn run(options: &Options) -> Result<()> {
    let samples = if options.once { Some(1) } else { options.count };
    let interval = Duration::from_secs_f64(options.interval);
    let clears = !options.json && !options.once && std::io::stdout().is_terminal();
    let mut before: Option<Sample> = None;
    let mut taken = 0;
    let mut due = Instant::now();
    loop {
        let sample = sample::take(options, before.as_ref())?;
        let shown = if options.json {
            sample.json(before.as_ref()).to_string() + "\n"
        } else {
            let text = text::show(&sample, before.as_ref(), options.brief);
            match (clears, taken) {
                (true, _) => format!("{CLEAR}{text}"),
                (false, 0) => text,
                (false, _) => format!("\n{text}"),
            }
        };
        if !write(&shown)? {
            return Ok(());
        }
        taken += 1;
        if samples.is_some_and(|samples| taken >= samples) {
            return Ok(());
        }
        before = Some(sample);
        // Steady, but never two at once after a sample that took long.
        due = (due + interval).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// Writes to stdout; false if nobody reads any more (`metaroce stat | head`).
fn write(text: &str) -> Result<bool> {
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => bail!("cannot write: {error}"),
    }
}

#[cfg(test)]
mod tests;
