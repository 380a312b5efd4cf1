//! Throughput over time, as the bytes that arrive at an interface, and how deep and how long it dips when something
//! breaks.
//!
//! A thread reads the kernel's counters of the interface every 20 ms, which costs nothing beside the programs that are
//! measured. What it shows on a busy machine is also the machine's own noise: compare a dip with [`Series::dip`] of a
//! stretch of time in which nothing was broken. Used by the cases in which planes die.

use std::fmt;
use std::fs;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::interrupt;

/// Time between two readings: many trains, and shorter than what a user would call an interruption.
const SAMPLE_EVERY: Duration = Duration::from_millis(20);

/// More than any exchange of addresses before a transfer.
const FLOWING_BYTES: u64 = 4 << 20;

/// One reading.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    bytes: u64,
}

/// A thread that takes readings until it is told to stop.
#[derive(Debug)]
pub struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    samples: Mutex<Vec<Sample>>,
    stop: AtomicBool,
}

impl Sampler {
    /// Begins to count what arrives at `interface` (several with `+` between them are summed), in the network namespace of process `pid`.
    pub fn start(pid: u32, interface: &str) -> Self {
        let shared = Arc::new(Shared::default());
        let (theirs, interface) = (Arc::clone(&shared), interface.to_owned());
        let thread = std::thread::spawn(move || take_samples(&theirs, pid, &interface));
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// Waits until a transfer is under way.
    ///
    /// # Errors
    /// None was within that time, or the user interrupted.
    pub fn wait_flowing(&self, within: Duration) -> Result<()> {
        let end = Instant::now() + within;
        while Instant::now() < end {
            interrupt::check()?;
            let samples = self.samples();
            if let (Some(first), Some(last)) = (samples.first(), samples.last())
                && last.bytes - first.bytes > FLOWING_BYTES
            {
                return Ok(());
            }
            drop(samples);
            std::thread::sleep(SAMPLE_EVERY);
        }
        bail!("no transfer was under way within {} s", within.as_secs())
    }

    /// The readings until now.
    pub fn finish(mut self) -> Series {
        self.stop();
        let samples = std::mem::take(&mut *self.samples());
        Series { samples }
    }

    fn samples(&self) -> std::sync::MutexGuard<'_, Vec<Sample>> {
        let samples = self.shared.samples.lock();
        samples.unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Reads until told to stop, or the process is gone.
fn take_samples(shared: &Shared, pid: u32, interface: &str) {
    let path = format!("/proc/{pid}/net/dev");
    while !shared.stop.load(Ordering::Relaxed) {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let at = Instant::now();
        let names = interface.split('+');
        let Some(bytes) = names.map(|name| received_bytes(&text, name)).sum() else {
            return;
        };
        let mut samples = shared
            .samples
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        samples.push(Sample { at, bytes });
        drop(samples);
        std::thread::sleep(SAMPLE_EVERY);
    }
}

/// The first number behind the interface's name in /proc/net/dev.
pub(crate) fn received_bytes(text: &str, interface: &str) -> Option<u64> {
    let numbers = text.lines().find_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        (name.trim() == interface).then_some(numbers)
    })?;
    numbers.split_whitespace().next()?.parse().ok()
}

/// Readings in the order of time.
#[derive(Debug, Clone, Default)]
pub struct Series {
    samples: Vec<Sample>,
}

impl Series {
    /// Rates in bytes per second with the seconds for which each held, within `window`.
    fn rates(&self, window: &Range<Instant>) -> Vec<(f64, f64)> {
        let pairs = self.samples.windows(2).filter_map(|pair| match pair {
            [before, after] => Some((before, after)),
            _ => None,
        });
        pairs
            .filter_map(|(before, after)| {
                let seconds = after.at.duration_since(before.at).as_secs_f64();
                let inside = after
                    .at
                    .min(window.end)
                    .saturating_duration_since(before.at.max(window.start))
                    .as_secs_f64();
                let rate = after.bytes.saturating_sub(before.bytes) as f64 / seconds;
                (inside > 0.0).then_some((rate, inside))
            })
            .collect()
    }

    /// Bytes that arrived within `window`, to the precision of a reading.
    pub fn bytes(&self, window: Range<Instant>) -> f64 {
        let rates = self.rates(&window).into_iter();
        rates.map(|(rate, seconds)| rate * seconds).sum()
    }

    /// Bytes per second which half of the time within `window` was exceeded; 0 without any reading there.
    pub fn median_rate(&self, window: Range<Instant>) -> f64 {
        let mut rates = self.rates(&window);
        rates.sort_by(|left, right| left.0.total_cmp(&right.0));
        let half = rates.iter().map(|(_, seconds)| seconds).sum::<f64>() / 2.0;
        let mut passed = 0.0;
        let median = rates.iter().find(|(_, seconds)| {
            passed += seconds;
            passed >= half
        });
        median.map_or(0.0, |(rate, _)| *rate)
    }

    /// How throughput fell within `window` below `normal` bytes per second.
    pub fn dip(&self, window: Range<Instant>, normal: f64) -> Dip {
        let mut dip = Dip {
            least: f64::INFINITY,
            ..Dip::default()
        };
        for (rate, seconds) in self.rates(&window) {
            let share = rate / normal;
            dip.least = dip.least.min(share);
            if share < 0.9 {
                dip.below_90 += seconds;
            }
            if share < 0.5 {
                dip.below_half += seconds;
            }
            if rate == 0.0 {
                dip.nothing += seconds;
            }
        }
        dip
    }
}

/// How throughput fell.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Dip {
    /// Seconds below half of normal.
    pub below_half: f64,
    /// Seconds below 90 % of normal.
    pub below_90: f64,
    /// Seconds in which nothing arrived.
    pub nothing: f64,
    /// The least share of normal, over one reading.
    pub least: f64,
}

impl fmt::Display for Dip {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "below 50 % for {:.0} ms, below 90 % for {:.0} ms, least {:.0} % (nothing for {:.0} ms)",
            1e3 * self.below_half,
            1e3 * self.below_90,
            100.0 * self.least,
            1e3 * self.nothing
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readings 20 ms apart with so many bytes between them.
    fn series(start: Instant, bytes: &[u64]) -> Series {
        let mut sum = 0;
        let mut samples = vec![Sample {
            at: start,
            bytes: 0,
        }];
        for (count, more) in (1..).zip(bytes) {
            sum += more;
            let at = start + count * SAMPLE_EVERY;
            samples.push(Sample { at, bytes: sum });
        }
        Series { samples }
    }

    #[test]
    fn a_dip_has_a_length_and_a_depth() {
        let start = Instant::now();
        let series = series(start, &[100, 110, 100, 80, 0, 20, 40, 100, 200]);
        let at = |samples: u32| start + samples * SAMPLE_EVERY;
        let normal = series.median_rate(start..at(3));
        assert!((normal - 5000.0).abs() < 1e-6, "{normal}");
        let dip = series.dip(at(3)..at(9), normal);
        assert_eq!(
            dip.to_string(),
            "below 50 % for 60 ms, below 90 % for 80 ms, least 0 % (nothing for 20 ms)"
        );
        // A window may begin and end between two readings.
        let part = at(4) + SAMPLE_EVERY / 2..at(5) + SAMPLE_EVERY / 2;
        assert_eq!(
            series.dip(part.clone(), normal).to_string(),
            "below 50 % for 20 ms, below 90 % for 20 ms, least 0 % (nothing for 10 ms)"
        );
        assert!((series.bytes(part) - 10.0).abs() < 1e-6);
        assert_eq!(series.median_rate(at(20)..at(30)), 0.0);
    }

    #[test]
    fn the_kernels_table_is_read_by_name() {
        let table = "Inter-| Receive\n face |bytes\n  lo: 1 2\neth0: 77 5 0\n eth01:9 0\n";
        assert_eq!(received_bytes(table, "eth0"), Some(77));
        assert_eq!(received_bytes(table, "eth01"), Some(9));
        assert_eq!(received_bytes(table, "eth1"), None);
    }

    #[test]
    fn a_sampler_ends_when_it_is_told() {
        let sampler = Sampler::start(std::process::id(), "lo");
        let began = Instant::now();
        assert!(sampler.wait_flowing(Duration::ZERO).is_err());
        while sampler.samples().len() < 2 && began.elapsed() < Duration::from_secs(5) {
            std::thread::yield_now();
        }
        assert!(sampler.finish().samples.len() >= 2);
    }
}
