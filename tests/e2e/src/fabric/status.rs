//! What is in force and what was counted, way by way: the contents of `cargo xtask fabric status`.

use std::fmt;

use anyhow::Result;
use serde::Serialize;

use super::counters::{Counters, Traffic};
use super::host::Host;
use super::impair::{self, LossRates, Rates};
use super::state::State;
use super::topology::{Port, far_end, near_end};
use super::{arrival, counters, link, rate};

/// One direction of one plane.
#[derive(Debug, Clone, Serialize)]
pub struct Way {
    /// The plane, from 1.
    pub plane: u8,
    /// `to` a host or `from` a host; between two hosts without a switch each way is named once, by `to`.
    pub way: String,
    /// Whether the plane's links are up.
    pub up: bool,
    /// What went there.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// All that did not arrive: the sum of `overflowed`, `lost` and `swallowed`.
    pub dropped: u64,
    /// What is in force there.
    pub impairment: Impairment,
}

/// What is in force one way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Impairment {
    /// Packets travel one by one instead of in trains.
    pub per_packet: bool,
    /// UDP packets lost, of a million.
    pub udp_loss_ppm: u64,
    /// TCP packets lost, of a million.
    pub tcp_loss_ppm: u64,
    /// Packets marked CE, of a million that can be.
    pub ce_ppm: u64,
    /// Packets made late, of a million.
    pub reorder_ppm: u64,
    /// Bytes of the largest packet that passes, with its IP header.
    pub largest_bytes: Option<u64>,
    /// The speed, in bits per second.
    pub rate_bits_per_second: Option<u64>,
    /// Nothing gets through.
    pub black_hole: bool,
}

impl fmt::Display for Impairment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // At most a million, so exact.
        let percent = |ppm: u64| ppm as f64 / 10_000.0;
        let mut parts = Vec::new();
        if self.udp_loss_ppm == self.tcp_loss_ppm && self.udp_loss_ppm > 0 {
            parts.push(format!("loss {}%", percent(self.udp_loss_ppm)));
        } else {
            for (name, ppm) in [("UDP", self.udp_loss_ppm), ("TCP", self.tcp_loss_ppm)] {
                if ppm > 0 {
                    parts.push(format!("{name} loss {}%", percent(ppm)));
                }
            }
        }
        for (name, ppm) in [("CE", self.ce_ppm), ("reorder", self.reorder_ppm)] {
            if ppm > 0 {
                parts.push(format!("{name} {}%", percent(ppm)));
            }
        }
        if let Some(bytes) = self.largest_bytes {
            parts.push(format!("nothing above {bytes} bytes"));
        }
        if let Some(bits) = self.rate_bits_per_second {
            parts.push(format!("rate {}mbit", bits as f64 / 1e6));
        }
        if self.black_hole {
            parts.push("black hole".to_owned());
        }
        if parts.is_empty() && self.per_packet {
            parts.push("packets one by one".to_owned());
        }
        formatter.write_str(&parts.join(", "))
    }
}

/// All ways of all planes.
pub(super) fn read(state: &State, counters: &Counters) -> Result<Vec<Way>> {
    let (name, shape) = (state.name.as_str(), state.shape());
    let up = link::planes_up(state)?;
    let mut ways = Vec::new();
    for (plane, counted) in (1..=shape.planes()).zip(&counters.planes) {
        let mut add = |way: String, out: &Port, arrival: &Port, traffic: Traffic| -> Result<()> {
            ways.push(Way {
                plane,
                way,
                up: up.contains(&plane),
                traffic,
                dropped: traffic.dropped(),
                impairment: impairment(out, arrival)?,
            });
            Ok(())
        };
        let ends = |host: Host| {
            let near = near_end(name, shape, host, plane);
            (near, far_end(name, shape, host, plane))
        };
        for host in shape.hosts() {
            let (near, far) = ends(host);
            add(format!("to {host}"), &far, &near, counted.to(host))?;
            if shape.has_switches() {
                add(format!("from {host}"), &near, &far, counted.from(host))?;
            }
        }
    }
    Ok(ways)
}

/// What is in force between the port where packets leave and the one where they come in.
fn impairment(out: &Port, arrival: &Port) -> Result<Impairment> {
    let single = impair::open(arrival)?;
    let rates = match &single {
        Some(program) => impair::rates_of(program)?,
        None => Rates::default(),
    };
    let LossRates { udp_ppm, tcp_ppm } = rates.loss;
    let limited = counters::queue(out)?.is_some_and(|queue| queue.limited);
    let rate = if limited { rate::in_force(out)? } else { None };
    let black_hole = match arrival::open(arrival)? {
        Some(program) => arrival::is_blackhole(&program)?,
        None => false,
    };
    Ok(Impairment {
        per_packet: single.is_some(),
        udp_loss_ppm: udp_ppm,
        tcp_loss_ppm: tcp_ppm,
        ce_ppm: rates.ce_ppm,
        reorder_ppm: rates.late_ppm,
        largest_bytes: Some(rates.largest_bytes).filter(|bytes| *bytes > 0),
        rate_bits_per_second: rate.map(rate::Rate::bits_per_second),
        black_hole,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_force_is_said_in_words() {
        let mut impairment = Impairment {
            per_packet: true,
            ..Impairment::default()
        };
        assert_eq!(impairment.to_string(), "packets one by one");
        impairment.udp_loss_ppm = 10_000;
        impairment.ce_ppm = 500;
        impairment.rate_bits_per_second = Some(2_500_000_000);
        impairment.largest_bytes = Some(1500);
        impairment.black_hole = true;
        assert_eq!(
            impairment.to_string(),
            "UDP loss 1%, CE 0.05%, nothing above 1500 bytes, rate 2500mbit, black hole"
        );
    }
}
