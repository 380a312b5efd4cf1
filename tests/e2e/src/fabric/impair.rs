//! Impairing single packets: loss, holes for large ones, CE marks, and naming those that come late, by an XDP program at the ingress
//! of a port (`bpf/impair.c`).
//!
//! Attached when a port is first given such an impairment. Settings change without re-attaching, so counts go
//! on; while it is attached the link carries single packets instead of trains, also with all settings at 0.
//! Called by `fabric::Fabric`; `bpf` talks to the program, `late` makes the detour of packets named late.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::bpf::{self, Program};
use super::counters::{Retired, Traffic};
use super::link;
use super::state::State;
use super::topology::{Port, is_host};
use crate::tool;

/// The BPF program, compiled on the machine where it runs.
const SOURCE: &str = include_str!("../../bpf/impair.c");

/// Its ELF section; the loader derives "may see packets in several pieces" from this name.
const SECTION: &str = "xdp.frags";

/// Probabilities are counted in these.
const PARTS: u64 = 1_000_000;

/// How many of a million packets vanish, by protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LossRates {
    /// Of the UDP packets.
    pub udp_ppm: u64,
    /// Of the TCP packets.
    pub tcp_ppm: u64,
}

impl LossRates {
    /// The same rate for both protocols.
    pub fn all(ppm: u64) -> Self {
        Self {
            udp_ppm: ppm,
            tcp_ppm: ppm,
        }
    }

    /// UDP only: set-up connections over TCP are spared.
    pub fn udp(ppm: u64) -> Self {
        Self {
            udp_ppm: ppm,
            tcp_ppm: 0,
        }
    }
}

/// Packets that the program has judged since it was attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LossCounts {
    /// UDP packets let through.
    pub udp_passed: u64,
    /// UDP packets dropped.
    pub udp_dropped: u64,
    /// TCP packets let through.
    pub tcp_passed: u64,
    /// TCP packets dropped.
    pub tcp_dropped: u64,
}

impl std::ops::Add for LossCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            udp_passed: self.udp_passed + other.udp_passed,
            udp_dropped: self.udp_dropped + other.udp_dropped,
            tcp_passed: self.tcp_passed + other.tcp_passed,
            tcp_dropped: self.tcp_dropped + other.tcp_dropped,
        }
    }
}

/// All that the program counted, in the order of its map.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Passed and dropped.
    pub loss: LossCounts,
    /// Packets whose sender knows ECN, marked or not.
    pub markable: u64,
    /// Packets marked here.
    pub marked: u64,
    /// Packets that were made late.
    pub late: u64,
}

/// What can be set at a port, most of it of a million packets; the order is that of the program's map.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// UDP and TCP packets that vanish.
    pub loss: LossRates,
    /// Packets of senders that know ECN which are marked CE.
    pub ce_ppm: u64,
    /// Packets that come late.
    pub late_ppm: u64,
    /// Bytes of the largest packet that passes, with its IP header; 0 is no limit.
    pub largest_bytes: u64,
}

/// One change of the rates at a port.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    Loss(LossRates),
    Ce(u64),
    Late(u64),
    Largest(u64),
}

impl Change {
    /// Keys and values in the map of settings.
    fn elements(self) -> Vec<(u32, u64)> {
        match self {
            Self::Loss(rates) => vec![(0, rates.udp_ppm), (1, rates.tcp_ppm)],
            Self::Ce(ppm) => vec![(2, ppm)],
            Self::Late(ppm) => vec![(3, ppm)],
            Self::Largest(bytes) => vec![(4, bytes)],
        }
    }
}

/// Parses a probability such as `1%`, `0.1 %`, `250ppm` or `0`.
///
/// # Errors
/// It is none, or not between 0 and 100 %.
pub fn parts_per_million(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no share of packets: write it as 1%, 0.1%, 250ppm or 0");
    let (number, factor) = match (text.strip_suffix('%'), text.strip_suffix("ppm")) {
        (Some(number), _) => (number, 10_000.0),
        (None, Some(number)) => (number, 1.0),
        (None, None) if text.trim() == "0" => ("0", 1.0),
        (None, None) => return Err(wrong()),
    };
    let parts = number.trim().parse::<f64>().map_err(|_| wrong())? * factor;
    if !(0.0..=1_000_000.0).contains(&parts) {
        return Err(format!("`{text}` is no share of packets: 0 to 100 %"));
    }
    // In range, so the cast is exact after rounding.
    Ok(parts.round() as u64)
}

/// Bytes of an IP packet, headers included, that every link of the Internet carries unfragmented (RFC 791, 3.2); Linux allows no
/// smaller MTU for IPv4. IPv4 and UDP headers are 28 of them.
pub const LEAST_MTU_BYTES: u64 = 68;

/// Parses the bytes of the largest packet that shall pass; 0 is no limit.
///
/// # Errors
/// It is no number, or less than any link carries.
pub fn largest_packet(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(bytes @ 1..LEAST_MTU_BYTES) => Err(format!(
            "no link carries less than IP packets of {LEAST_MTU_BYTES} bytes (RFC 791): IPv4 and UDP headers alone are 28, \
             so nothing would pass at {bytes}. --blackhole does that; 0 ends the limit"
        )),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(format!("`{text}` is no number of bytes")),
    }
}

/// Attaches the program to `port` unless it is there, and makes a change.
pub(super) fn set(state: &State, port: &Port, change: Change) -> Result<()> {
    let elements = change.elements();
    if let Some((_, rate)) = elements.iter().find(|&&(_, rate)| rate > PARTS) {
        bail!("{rate} in a million packets are more than all");
    }
    let program = match open(port)? {
        Some(program) => program,
        None => {
            attach(state, port)?;
            open(port)?.context("the XDP program vanished right after it was attached")?
        }
    };
    program.write("settings", &elements)
}

/// Ends an impairment where the program is attached, and takes it off if it has nothing left to do.
pub(super) fn end(state: &State, port: &Port, change: Change) -> Result<()> {
    let Some(program) = open(port)? else {
        return Ok(());
    };
    let zeros: Vec<(u32, u64)> = (change.elements().iter())
        .map(|&(key, _)| (key, 0))
        .collect();
    program.write("settings", &zeros)?;
    if rates_of(&program)? == Rates::default() {
        detach(state, port, &program)?;
    }
    Ok(())
}

/// Takes the program off; nothing to do where it is not.
pub(super) fn clear(state: &State, port: &Port) -> Result<()> {
    match open(port)? {
        Some(program) => detach(state, port, &program),
        None => Ok(()),
    }
}

/// The program at `port`, if it is attached.
pub(super) fn open(port: &Port) -> Result<Option<Program>> {
    let link = link::link(port)?;
    let number = link.pointer("/xdp/prog/id").and_then(Value::as_u64);
    number.map(Program::open).transpose()
}

/// What a program counted.
pub(super) fn counts_of(program: &Program) -> Result<Counts> {
    let [
        udp_passed,
        udp_dropped,
        tcp_passed,
        tcp_dropped,
        markable,
        marked,
        late,
    ] = program.read("counts")?;
    let loss = LossCounts {
        udp_passed,
        udp_dropped,
        tcp_passed,
        tcp_dropped,
    };
    Ok(Counts {
        loss,
        markable,
        marked,
        late,
    })
}

/// The rates of a program.
pub(super) fn rates_of(program: &Program) -> Result<Rates> {
    let [udp_ppm, tcp_ppm, ce_ppm, late_ppm, largest_bytes] = program.read("settings")?;
    Ok(Rates {
        loss: LossRates { udp_ppm, tcp_ppm },
        ce_ppm,
        late_ppm,
        largest_bytes,
    })
}

impl From<Counts> for Traffic {
    fn from(counts: Counts) -> Self {
        Self {
            lost: counts.loss.udp_dropped + counts.loss.tcp_dropped,
            marked: counts.marked,
            late: counts.late,
            ..Self::default()
        }
    }
}

fn attach(state: &State, port: &Port) -> Result<()> {
    let object = bpf::compile(&state.files(), "impair", SOURCE)?;
    let object = object.to_string_lossy();
    let (namespace, device) = (port.namespace.as_str(), port.device.as_str());
    // xdpdrv: the generic mode would linearise packets, and would not have the veth cut trains.
    let arguments = [
        "-n", namespace, "link", "set", "dev", device, "xdpdrv", "obj", &object, "sec", SECTION,
    ];
    tool::run("ip", &arguments).context(
        "the kernel did not take the XDP program; it needs BPF (CONFIG_BPF_SYSCALL), and in a container \
         CAP_BPF and CAP_NET_ADMIN",
    )?;
    merge_into_trains(state, port, true)
}

/// Has the kernel merge what passed into trains again (GRO), or not.
///
/// A veth with a program does so by itself, but forgets it when its peer is given one, too. At a port that
/// forwards, UDP is merged only when asked for; the host then gets trains as from a lossless link.
fn merge_into_trains(state: &State, port: &Port, on: bool) -> Result<()> {
    let on = if on { "on" } else { "off" };
    let ethtool = tool::require("ethtool")?;
    let ethtool = ethtool.to_string_lossy();
    let mut arguments = vec![
        "netns",
        "exec",
        &port.namespace,
        &ethtool,
        "-K",
        &port.device,
    ];
    arguments.extend(["gro", on]);
    if !is_host(&state.name, &port.namespace) {
        arguments.extend(["rx-udp-gro-forwarding", on]);
    }
    tool::run("ip", &arguments).map(drop)
}

/// Takes the program off; what it counted is kept.
fn detach(state: &State, port: &Port, program: &Program) -> Result<()> {
    let counts = counts_of(program)?;
    let place = ["link", "set", "dev", &port.device, "xdp", "off"];
    tool::run("ip", &[&["-n", &port.namespace][..], &place].concat())?;
    merge_into_trains(state, port, false)?;
    Retired::add_filter(state, port, counts.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_people_write_them() {
        for (text, expected) in [
            ("1%", 10_000),
            ("0.1 %", 1_000),
            ("10%", 100_000),
            ("250ppm", 250),
            ("0", 0),
            ("100%", 1_000_000),
        ] {
            assert_eq!(parts_per_million(text), Ok(expected), "{text}");
        }
        for text in ["", "1", "x%", "101%", "-1%", "nan%"] {
            assert!(parts_per_million(text).is_err(), "{text}");
        }
    }

    #[test]
    fn no_link_carries_less_than_rfc_791_says() {
        for (text, bytes) in [("0", 0), ("68", 68), ("1500", 1500)] {
            assert_eq!(largest_packet(text), Ok(bytes));
        }
        for text in ["1", "28", "67"] {
            let why = largest_packet(text).unwrap_err();
            assert!(why.contains("68 bytes") && why.contains("28"), "{why}");
        }
        assert!(largest_packet("-1").is_err() && largest_packet("x").is_err());
    }
}
