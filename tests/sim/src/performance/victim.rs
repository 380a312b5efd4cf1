//! `victim`: two hosts far apart, one of which sends to the other, beside hosts of the same two leaves that all send to one
//! and fill its link. There are as many spines as hosts on a leaf: the two have links enough for themselves.

use super::looks::{all_at_work, goodputs};
use super::{LINK_BITS_PER_S, Measured, Options, PAYLOAD_SHARE, host, writes};
use crate::NodeId;
use crate::fabric::{FabricConfig, Shape};
use crate::scenario::Scenario;

const MESSAGE_BYTES: u32 = 64 << 10;
const DEPTH: u32 = 16;

/// Of the senders together: some 5 ms of the receiver's link.
const MESSAGES: u32 = 960;
const MESSAGES_MIN: u32 = 8;

/// Of the victim: so long at the full rate that it outlasts them.
const VICTIM_MESSAGES: u32 = 2_000;

/// Within this time all begin; the victim is at work before.
const STARTS_NS: u64 = 400_000;

/// `lost_fraction`: what the victim gets less while the others are at work than in the same time alone.
pub(super) fn measure(options: &Options) -> Result<Measured, String> {
    let mut measured = Measured::new(options);
    let both = measured.run(&scenario(options, options.senders))?;
    let at_work = all_at_work(&both, 0..options.senders + 1)?;
    let alone = measured.run(&scenario(options, 0))?;
    let with = goodputs(&both, options.senders + 1, &at_work)[0];
    let without = goodputs(&alone, 1, &at_work)[0];
    measured.values = vec![("lost_fraction", 1.0 - with / without)];
    measured.asides = vec![
        ("link_share", with / LINK_BITS_PER_S / PAYLOAD_SHARE),
        (
            "alone_link_share",
            without / LINK_BITS_PER_S / PAYLOAD_SHARE,
        ),
        ("drops", both.links.overflows as f64),
        ("at_work_us", (at_work.end - at_work.start) as f64 / 1e3),
    ];
    Ok(measured)
}

/// The victim's pair is the first. On the first leaf are the two receivers, on the second all who send.
fn scenario(options: &Options, senders: usize) -> Scenario {
    let per_leaf = options.senders + 1;
    let (incast, victim) = (NodeId(0), NodeId(1));
    let mut pairs = vec![[NodeId(per_leaf), victim]];
    pairs.extend((1..=senders).map(|sender| [NodeId(per_leaf + sender), incast]));
    let shape = Shape::LeafSpine {
        leaves: 2,
        spines: per_leaf,
    };
    let fabric = FabricConfig::new(1, shape, options.rtt_ns());
    let messages = (MESSAGES / options.senders as u32).max(MESSAGES_MIN);
    let mut incast_writes = writes(MESSAGE_BYTES, DEPTH, messages);
    incast_writes.idle_ns = STARTS_NS;
    let mut scenario = super::scenario("victim", options.seed, fabric, &incast_writes, &pairs);
    scenario.hosts = vec![host(1); 2 * per_leaf];
    let victim = &mut scenario.pairs[0].workloads[0];
    (victim.idle_ns, victim.messages) = (0, VICTIM_MESSAGES);
    scenario
}
