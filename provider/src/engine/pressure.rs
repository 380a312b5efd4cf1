//! How full the socket's buffers are: asked of the kernel now and then, and told to the core, which measures by it what
//! this host can take in. Called by `core.rs` after every turn that received something.

use super::Inner;
use metaroce_proto::endpoint::Endpoint;
use metaroce_proto::types::Time;
use metaroce_udp::{LocalIndex, MAX_LOCALS};

/// Between two questions, each a system call for every address: much less than a buffer takes to fill.
const INTERVAL_NS: u64 = 200_000;
/// The same for each of many addresses, which have a buffer each.
const INTERVAL_ADDRESS_NS: u64 = 50_000;

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    next_at: Time,
    drops: [u32; MAX_LOCALS],
}

impl Pressure {
    /// Something was received.
    pub(super) fn look(&mut self, inner: &Inner, endpoint: &mut Endpoint, now: Time) {
        if now < self.next_at {
            return;
        }
        let locals = inner.sockets.local_count();
        self.next_at = now + INTERVAL_NS.max(INTERVAL_ADDRESS_NS * locals as u64);
        let (mut fill_per_mille, mut drops) = (0, 0);
        for index in 0..locals {
            let Ok(fill) = inner.sockets.receive_fill(LocalIndex(index as u8)) else {
                continue;
            };
            let per_mille = fill.used_bytes as u64 * 1_000 / fill.limit_bytes.max(1) as u64;
            fill_per_mille = fill_per_mille.max(per_mille);
            drops += fill.drops.wrapping_sub(self.drops[index]);
            self.drops[index] = fill.drops;
        }
        endpoint.set_receive_pressure(now, fill_per_mille, drops);
    }
}
