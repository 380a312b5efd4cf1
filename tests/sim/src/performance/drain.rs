//! `drain`: several hosts send to one whose software takes in less than its link brings. No switch marks anything: only the
//! receiver knows, and what it knows of itself may be wrong.

use super::looks::{all_at_work, grown, placed_bits_per_s};
use super::{Measured, Options, PACKET_SHARE, PAYLOAD_SHARE, writes};
use crate::NodeId;
use crate::fabric::{FabricConfig, Shape};

const MESSAGE_BYTES: u32 = 64 << 10;
const DEPTH: u32 = 8;

/// What the software takes in, as payload.
const DRAIN_BITS_PER_S: f64 = 30e9;

/// So long everything takes at that rate.
const LASTS_S: f64 = 0.015;
const MESSAGES_MIN: f64 = 8.0;

/// Within this time all begin.
const STARTS_NS: u64 = 200_000;
const SAMPLE_NS: u64 = 20_000;

/// Of the time when all are at work the first part is not counted for the rate; drops count always.
const GROWING_PART: f64 = 0.2;

/// Datagrams that the software reads in one go, and the buffer before it: that of a socket.
const BATCH: usize = 8;
const BUFFER_BYTES: u64 = 4 << 20;

/// `of_drain`: goodput against what the software could take in; `drop_fraction`: of all datagrams that reached its socket or
/// its port, those for which there was no room.
pub(super) fn measure(options: &Options) -> Result<Measured, String> {
    let senders = options.senders;
    let pairs: Vec<[NodeId; 2]> = (1..=senders)
        .map(|sender| [NodeId(sender), NodeId(0)])
        .collect();
    let mut fabric = FabricConfig::new(1, Shape::SingleSwitch, options.rtt_ns());
    fabric.to_host.mark_bytes = u64::MAX;
    let each = DRAIN_BITS_PER_S * LASTS_S / 8.0 / f64::from(MESSAGE_BYTES) / senders as f64;
    let mut writes = writes(MESSAGE_BYTES, DEPTH, each.max(MESSAGES_MIN) as u32);
    writes.idle_ns = STARTS_NS;
    let mut scenario = super::scenario("drain", options.seed, fabric, &writes, &pairs);
    scenario.sample_ns = SAMPLE_NS;
    let receiver = &mut scenario.hosts[0];
    receiver.intake_ns = (f64::from(receiver.payload_bytes) * 8e9 / DRAIN_BITS_PER_S) as u64;
    (receiver.batch, receiver.receive_buffer_bytes) = (BATCH, BUFFER_BYTES);
    let drain = DRAIN_BITS_PER_S * PACKET_SHARE / PAYLOAD_SHARE;
    receiver.drain_bits_per_s = Some((drain * (1.0 + options.estimate_error)) as u64);
    let mut measured = Measured::new(options);
    let outcome = measured.run(&scenario)?;
    let during = grown(&all_at_work(&outcome, 0..senders)?, GROWING_PART);
    let goodput = placed_bits_per_s(&outcome.samples, &during)?;
    let last = &outcome.samples[outcome.samples.len() - 1].into_first;
    let drops = outcome.socket_drops + last.overflows;
    measured.values = vec![
        ("of_drain", goodput / DRAIN_BITS_PER_S),
        (
            "drop_fraction",
            drops as f64 / (last.packets + last.overflows) as f64,
        ),
    ];
    measured.asides = vec![
        ("socket_drops", outcome.socket_drops as f64),
        ("port_drops", last.overflows as f64),
        ("longest_inbox_bytes", outcome.longest_inbox_bytes as f64),
        ("longest_queue_bytes", last.longest_queue_bytes as f64),
    ];
    Ok(measured)
}
