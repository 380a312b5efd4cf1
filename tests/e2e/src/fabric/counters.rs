//! Packets and bytes per plane, counted by a queue at the port where they leave.
//!
//! The count is of packets as they would be on a wire: a train counts as the packets in it, which the
//! counters of the device itself do not do. Differences of two readings are what a run did.

use std::fmt;
use std::ops::Sub;

use anyhow::{Context, Result};
use serde_json::Value;

use super::host::Host;
use super::state::State;
use super::topology::{Port, far_end};
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

/// The directions of a plane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlaneCounters {
    /// What went to each host, in their order.
    pub to: Vec<Traffic>,
}

impl PlaneCounters {
    /// What went to a host.
    pub fn to(&self, host: Host) -> Traffic {
        self.to.get(host.index()).copied().unwrap_or_default()
    }

    /// What went from host a to host b, where these are all.
    pub fn a_to_b(&self) -> Traffic {
        self.to(Host::B)
    }

    /// What went from host b to host a, where these are all.
    pub fn b_to_a(&self) -> Traffic {
        self.to(Host::A)
    }
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
                to: (now.to.iter().zip(&then.to))
                    .map(|(&now, &then)| now - then)
                    .collect(),
            })
            .collect();
        Self { planes }
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "{:<6} {:<7} {:>14} {:>15} {:>6} {:>9}",
            "plane", "to host", "packets", "bytes", "share", "overflow"
        )?;
        let hosts = self.planes.first().map_or(0, |plane| plane.to.len());
        for host in (0..hosts).filter_map(Host::nth) {
            let total: u64 = self.planes.iter().map(|plane| plane.to(host).packets).sum();
            for (index, plane) in self.planes.iter().enumerate() {
                let traffic = plane.to(host);
                writeln!(
                    formatter,
                    "{:<6} {:<7} {:>14} {:>15} {:>5.1}% {:>9}",
                    index + 1,
                    host,
                    traffic.packets,
                    traffic.bytes,
                    share_percent(traffic.packets, total.max(1)),
                    traffic.dropped
                )?;
            }
        }
        Ok(())
    }
}

fn share_percent(part: u64, total: u64) -> f64 {
    // Precision beyond 52 bits does not show in one digit after the point.
    100.0 * part as f64 / total as f64
}

/// Reads the counters at the ports of all planes.
pub(super) fn read(state: &State) -> Result<Counters> {
    let shape = state.shape();
    let planes = (1..=shape.planes())
        .map(|plane| {
            let to = shape
                .hosts()
                .map(|host| read_port(&far_end(&state.name, shape, host, plane)))
                .collect::<Result<_>>()?;
            Ok(PlaneCounters { to })
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
        .as_array()
        .and_then(|all| all.iter().find(|queue| queue.get("root").is_some()))
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
                to: vec![
                    Traffic::default(),
                    Traffic {
                        packets,
                        bytes: packets * 100,
                        dropped: 0,
                    },
                ],
            }],
        };
        let run = at(7).since(&at(3));
        assert_eq!(
            run.planes[0].a_to_b(),
            Traffic {
                packets: 4,
                bytes: 400,
                dropped: 0
            }
        );
        assert_eq!(run.planes[0].b_to_a(), Traffic::default());
        assert!(run.to_string().contains("100.0%"), "{run}");
    }
}
