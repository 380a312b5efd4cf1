//! The speed of links: an htb instead of the plain queue at the port where the traffic leaves.
//!
//! A limited port has a queue of bytes, as switches have, and of a size that fits its speed; what it cannot
//! hold is lost, whole trains at a time. Putting the limit there, or taking it away, loses what waits in the
//! queue at that moment; changing a limit loses nothing. Called by `fabric::Fabric`.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;

use super::counters::{self, Retired};
use super::state::State;
use super::topology::{Port, QUEUE_PACKETS};
use crate::tool;

/// A link cannot be slower, or its queue would hold seconds.
const MIN_BITS: u64 = 1_000_000;

/// Faster than any virtual link.
const MAX_BITS: u64 = 400_000_000_000;

/// How long a full queue takes to drain, at middling speeds.
const QUEUE_MS: u64 = 5;

/// The queue holds some trains (64 KiB each) even at low speeds …
const MIN_QUEUE_BYTES: u64 = 256 << 10;

/// … and no more than large switches have for a port.
const MAX_QUEUE_BYTES: u64 = 4 << 20;

/// What may go out at once: at least a train, and enough that late timers cost no speed.
const MIN_BURST_BYTES: u64 = 64 << 10;

/// How late a timer may be.
const TIMER_SLACK_US: u64 = 500;

/// A speed, in bits per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    /// So many megabits per second.
    ///
    /// # Errors
    /// No link can be that slow or fast.
    pub fn mbit(megabits: u64) -> Result<Self, String> {
        Self::new(megabits.saturating_mul(1_000_000))
    }

    fn new(bits: u64) -> Result<Self, String> {
        if !(MIN_BITS..=MAX_BITS).contains(&bits) {
            return Err(format!(
                "a link cannot have {bits} bit/s: {} to {}",
                Self(MIN_BITS),
                Self(MAX_BITS)
            ));
        }
        Ok(Self(bits))
    }

    /// Bits per second.
    pub fn bits_per_second(self) -> u64 {
        self.0
    }

    /// Bytes that a port of this speed queues.
    pub fn queue_bytes(self) -> u64 {
        (self.0 / 8 * QUEUE_MS / 1000).clamp(MIN_QUEUE_BYTES, MAX_QUEUE_BYTES)
    }

    fn burst_bytes(self) -> u64 {
        (self.0 / 8 * TIMER_SLACK_US / 1_000_000).max(MIN_BURST_BYTES)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, factor) in [("gbit", 1_000_000_000), ("mbit", 1_000_000)] {
            if self.0.is_multiple_of(factor) {
                return write!(formatter, "{}{unit}", self.0 / factor);
            }
        }
        write!(formatter, "{}kbit", self.0 / 1000)
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no speed: write it as 2gbit, 2.5gbit or 500mbit");
        let (number, factor) = [("gbit", 1e9), ("mbit", 1e6)]
            .into_iter()
            .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
            .ok_or_else(wrong)?;
        let bits = number.trim().parse::<f64>().map_err(|_| wrong())? * factor;
        if !bits.is_finite() || bits < 0.0 {
            return Err(wrong());
        }
        // Saturates, and what is too much is refused then.
        Self::new(bits.round() as u64)
    }
}

/// Limits what leaves at `port`.
pub(super) fn set(state: &State, port: &Port, rate: Rate) -> Result<()> {
    let device = port.device.as_str();
    let mut lines = String::new();
    let before = counters::queue(port)?;
    if before.as_ref().is_none_or(|queue| !queue.limited) {
        lines += &format!("qdisc replace dev {device} root handle 1: htb default 1\n");
    }
    let (bits, burst, bytes) = (rate.0, rate.burst_bytes(), rate.queue_bytes());
    lines += &format!(
        "class replace dev {device} parent 1: classid 1:1 htb rate {bits}bit burst {burst} cburst {burst} \
         quantum 60000\n\
         qdisc replace dev {device} parent 1:1 handle 10: bfifo limit {bytes}\n"
    );
    tool::run_with_input("tc", &["-n", &port.namespace, "-batch", "-"], &lines)?;
    match before {
        Some(queue) if !queue.limited => Retired::add_queue(state, port, queue.traffic),
        _ => Ok(()),
    }
}

/// Takes the limit away; nothing to do where there is none.
pub(super) fn clear(state: &State, port: &Port) -> Result<()> {
    let Some(queue) = counters::queue(port)?.filter(|queue| queue.limited) else {
        return Ok(());
    };
    let place = [
        "qdisc",
        "replace",
        "dev",
        &port.device,
        "root",
        "pfifo",
        "limit",
        QUEUE_PACKETS,
    ];
    tool::run("tc", &[&["-n", &port.namespace][..], &place].concat())?;
    Retired::add_queue(state, port, queue.traffic)
}

/// The limit in force at `port`.
pub(super) fn in_force(port: &Port) -> Result<Option<Rate>> {
    let place = ["class", "show", "dev", &port.device, "classid", "1:1"];
    let shown = tool::run("tc", &[&["-n", &port.namespace][..], &place].concat())?;
    Ok(shown.lines().find_map(rate_of_class))
}

/// The rate in a line such as `class htb 1:1 root leaf 10: prio 0 rate 2Gbit ceil 2Gbit …`.
fn rate_of_class(line: &str) -> Option<Rate> {
    let (_, after) = line.strip_prefix("class htb 1:1 ")?.split_once(" rate ")?;
    let shown = after.split_whitespace().next()?.to_ascii_lowercase();
    if let Some(kilobits) = shown.strip_suffix("kbit") {
        return kilobits
            .parse::<u64>()
            .ok()
            .map(|number| Rate(number * 1000));
    }
    shown.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_as_people_write_them() {
        for (text, bits) in [
            ("2gbit", 2_000_000_000),
            ("2.5gbit", 2_500_000_000),
            ("500mbit", 500_000_000),
            ("1 gbit", 1_000_000_000),
        ] {
            assert_eq!(
                text.parse::<Rate>().unwrap().bits_per_second(),
                bits,
                "{text}"
            );
        }
        for text in [
            "", "2", "2g", "gbit", "-1gbit", "0mbit", "1000gbit", "nangbit", "infgbit",
        ] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        assert_eq!("2500mbit".parse::<Rate>().unwrap().to_string(), "2500mbit");
    }

    #[test]
    fn queues_fit_speeds() {
        let queue = |text: &str| text.parse::<Rate>().unwrap().queue_bytes();
        assert_eq!(queue("10mbit"), 256 << 10);
        assert_eq!(queue("2gbit"), 1_250_000);
        assert_eq!(queue("100gbit"), 4 << 20);
    }

    #[test]
    fn the_limit_in_force_is_read() {
        let line = "class htb 1:1 root leaf 10: prio 0 rate 2Gbit ceil 2Gbit burst 250000b cburst 250000b ";
        assert_eq!(rate_of_class(line), Rate::mbit(2000).ok());
        assert_eq!(rate_of_class("class htb 1:2 root prio 0 rate 2Gbit"), None);
        let line = "class htb 1:1 root leaf 10: prio 0 rate 2500500Kbit ceil";
        assert_eq!(rate_of_class(line).unwrap().to_string(), "2500500kbit");
    }
}
