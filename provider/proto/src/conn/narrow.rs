//! Ways that swallow even the smallest packets that carry data, and answer smaller ones (WIRE 4.32): without this a message
//! that cannot pass would be sent again for ever, because the peer is not silent.
//!
//! A path finds such a hole as any other (`path/pmtu.rs`), when packets are the smallest already. Its plane is left alone
//! then if there is another. Where there is none, the bound of each queue pair decides, as with a peer that is silent
//! (`timer.rs`): here is from when on it counts.

use crate::conn::streams::List;
use crate::conn::{Connection, Context};
use crate::endpoint::qp::{Life, Phase};
use crate::types::Time;
use crate::wire::DATA_HEADER_BYTES;

/// A plane that swallowed the smallest full packets is left alone for so long: as a size that did not pass (4.26).
const LEFT_ALONE_NS: u64 = 600_000_000_000;

/// Findings further apart do not belong together: more than the longest pause between two probes.
const FINDINGS_GAP_NS: u64 = 1_000_000_000;

/// Bound of a queue pair that only answers, so that the program gave it none of its own.
const ANSWERS_BOUND_NS: u64 = 4_000_000_000;

/// What cannot pass, and since when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Narrow {
    /// UDP payload bytes of the smallest packets that were swallowed.
    pub bytes: u32,
    /// The first finding, or the last arrival of a packet as large.
    since: Time,
    /// The last finding.
    found_at: Time,
}

impl Narrow {
    /// Nobody drove this end for `ns`.
    pub(super) fn excuse(&mut self, now: Time, ns: u64) {
        self.since = now.min(self.since + ns);
    }

    /// Large packets were not tried any more, or nothing that was is lost.
    pub(super) fn is_over(&self, now: Time) -> bool {
        now.since_ns(self.found_at) > FINDINGS_GAP_NS
    }
}

impl Connection {
    /// Path `at` swallows packets of `bytes` (UDP payload), which are the smallest full ones or smaller.
    pub(super) fn handle_narrow(&mut self, cx: &mut Context<'_>, at: usize, bytes: u32) {
        if let Some(lane) = self.routes.lane_of(&self.paths[at].route)
            && self.routes.leave_alone(lane, cx.now + LEFT_ALONE_NS)
        {
            cx.shared.counters.holes_found += 1;
            self.leave_alone_until(cx.now + LEFT_ALONE_NS);
            self.leave_closed_lanes(cx);
            return;
        }
        match &mut self.narrow {
            Some(narrow) if !narrow.is_over(cx.now) => {
                narrow.bytes = narrow.bytes.min(bytes);
                narrow.found_at = cx.now;
            }
            none => {
                *none = Some(Narrow {
                    bytes,
                    since: cx.now,
                    found_at: cx.now,
                });
                cx.shared.counters.holes_found += 1;
                for place in 0..self.streams.of(List::Active).len() {
                    let id = self.streams.of(List::Active)[place];
                    self.watch_silence(cx, id);
                }
            }
        }
    }

    /// A packet of `bytes` (UDP payload) arrived, on whatever path.
    #[inline]
    pub(super) fn wide_enough_for(&mut self, now: Time, bytes: u32) {
        if let Some(narrow) = &mut self.narrow
            && bytes >= narrow.bytes
        {
            narrow.since = now;
        }
    }

    /// When it is too long for a life that nothing of what it has to send passes.
    pub(super) fn narrow_limit(&self, life: &Life) -> Option<Time> {
        let narrow = self.narrow.as_ref()?;
        if life.phase != Phase::Open {
            return None;
        }
        let stuck = |length: u32| {
            let payload_bytes = length.min(u32::from(self.payload_bytes));
            length > 0 && payload_bytes + DATA_HEADER_BYTES as u32 >= narrow.bytes
        };
        if stuck(life.requester.oldest_data_bytes())
            && let (Some(since), Some(bound_ns)) =
                (life.requester.waiting_since(), life.patience_ns())
        {
            return Some(since.max(narrow.since) + bound_ns);
        }
        let bound_ns = match life.send {
            Some(_) => life.patience_ns()?,
            None => ANSWERS_BOUND_NS,
        };
        stuck(life.responder.oldest_answer_bytes()).then_some(narrow.since + bound_ns)
    }
}
