//! Packets and bytes per plane, counted by a queue at the port where they leave.
//!
//! The count is of packets as they would be on a wire: a train counts as the packets in it, which the
//! counters of the device itself do not do. Differences of two readings are what a run did.

use std::fmt;
use std::ops::Sub;

use anyhow::{Context, Result};
use serde_json::Value;

use super::topology::Port;
use crate::tool;

/// What went through one port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets on the wire.
    pub packets: u64,
    /// Their bytes, with Ethernet headers.
    pub bytes: u64,
    /// Packets lost in the port's own queue, which is a congestion that nobody asked for.
    pub dropped: u64,
}

impl Sub for Traffic {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            packets: self.packets.saturating_sub(earlier.packets),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            dropped: self.dropped.saturating_sub(earlier.dropped),
        }
    }
}

/// The two directions of a plane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlaneCounters {
    /// From host a to host b.
    pub a_to_b: Traffic,
    /// From host b to host a.
    pub b_to_a: Traffic,
}

/// One reading of all planes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// By plane; plane 1 comes first.
    pub planes: Vec<PlaneCounters>,
}

impl Counters {
    /// What happened between `earlier` and this reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let planes = self
            .planes
            .iter()
            .zip(&earlier.planes)
            .map(|(now, then)| PlaneCounters {
                a_to_b: now.a_to_b - then.a_to_b,
                b_to_a: now.b_to_a - then.b_to_a,
            })
            .collect();
        Self { planes }
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = |side: fn(&PlaneCounters) -> Traffic| -> u64 {
            self.planes
                .iter()
                .map(|plane| side(plane).packets)
                .sum::<u64>()
                .max(1)
        };
        let (total_ab, total_ba) = (total(|plane| plane.a_to_b), total(|plane| plane.b_to_a));
        writeln!(
            formatter,
            "{:<6} {:>13} {:>15} {:>6}   {:>13} {:>15} {:>6}",
            "plane", "a to b packets", "bytes", "share", "b to a packets", "bytes", "share"
        )?;
        for (index, PlaneCounters { a_to_b, b_to_a }) in self.planes.iter().enumerate() {
            writeln!(
                formatter,
                "{:<6} {:>14} {:>15} {:>5.1}%   {:>14} {:>15} {:>5.1}%",
                index + 1,
                a_to_b.packets,
                a_to_b.bytes,
                share_percent(a_to_b.packets, total_ab),
                b_to_a.packets,
                b_to_a.bytes,
                share_percent(b_to_a.packets, total_ba)
            )?;
        }
        let dropped: u64 = self
            .planes
            .iter()
            .map(|plane| plane.a_to_b.dropped + plane.b_to_a.dropped)
            .sum();
        if dropped > 0 {
            writeln!(
                formatter,
                "queues of the planes overflowed: {dropped} packets lost there"
            )?;
        }
        Ok(())
    }
}

fn share_percent(part: u64, total: u64) -> f64 {
    // Precision beyond 52 bits does not show in one digit after the point.
    100.0 * part as f64 / total as f64
}

/// Reads the counters at the ports of all planes.
pub(super) fn read(planes: &[[Port; 2]]) -> Result<Counters> {
    let planes = planes
        .iter()
        .map(|[from_a, from_b]| {
            Ok(PlaneCounters {
                a_to_b: read_port(from_a)?,
                b_to_a: read_port(from_b)?,
            })
        })
        .collect::<Result<_>>()?;
    Ok(Counters { planes })
}

fn read_port(port: &Port) -> Result<Traffic> {
    let shown = tool::run_json(
        "tc",
        &[
            "-n",
            &port.namespace,
            "-s",
            "-j",
            "qdisc",
            "show",
            "dev",
            &port.device,
        ],
    )?;
    let queue = shown
        .get(0)
        .context("a port of the fabric has lost its queue")?;
    let number = |key: &str| {
        queue
            .get(key)
            .and_then(Value::as_u64)
            .with_context(|| format!("tc shows no `{key}`"))
    };
    Ok(Traffic {
        packets: number("packets")?,
        bytes: number("bytes")?,
        dropped: number("drops")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_the_difference_of_two_readings() {
        let at = |packets| Counters {
            planes: vec![PlaneCounters {
                a_to_b: Traffic {
                    packets,
                    bytes: packets * 100,
                    dropped: 0,
                },
                b_to_a: Traffic::default(),
            }],
        };
        let run = at(7).since(&at(3));
        assert_eq!(
            run.planes[0].a_to_b,
            Traffic {
                packets: 4,
                bytes: 400,
                dropped: 0
            }
        );
        assert!(run.to_string().contains("100.0%"), "{run}");
    }
}
