//! How large packets may be: what both ends take, less where a route carries less.
//!
//! Smaller at once when the kernel or a router says so, or when a path has a hole (`path/pmtu.rs`). Segments that were cut
//! larger are dealt with as they get lost: `tx.rs` begins their messages anew. Larger again by a search, a size at a time:
//! a FILL padded to the full size, first on one path, then on every path that is in use, so that one route that carries
//! less than the others is not forgotten. A FILL and not a NOP: it has a PSN, so it is known to have arrived or not, in the
//! midst of a stream too; an echo names the latest transmission only. No data depends on it (WIRE 4.25 to 4.28).

use std::net::SocketAddr;

use crate::conn::tx::Wire;
use crate::conn::{Connection, Context};
use crate::stream::SegmentRef;
use crate::telemetry::log::What;
use crate::train::Train;
use crate::types::Time;
use crate::wire::DATA_HEADER_BYTES;

/// Payload sizes that are tried: the least that is of use, IPv6's least MTU, tunnels over 1,500, 1,500, and halves of what
/// a jumbo frame takes. What both ends take is another one.
const PAYLOAD_STEPS_BYTES: [u16; 8] = [512, FALLBACK_BYTES, 1280, 1336, 1384, 2048, 3072, 4096];

/// Payload after a hole was found: with 64 bytes of header it fits wherever IPv6 does.
const FALLBACK_BYTES: u16 = 1152;

/// UDP payload of ACKs (without padding) and CONTROL at most: their losses would not show that they are too large.
pub(super) const UNSUSPECTED_PACKET_BYTES: usize = FALLBACK_BYTES as usize + DATA_HEADER_BYTES;

/// From a reduction to the search for the largest size that passes: what was cut larger is out of the way by then.
const SEARCH_AFTER_NS: u64 = 10_000_000;

/// From an end of the search to the next (RFC 8899, PMTU_RAISE_TIMER).
const RAISE_AFTER_NS: u64 = 600_000_000_000;

/// Losses of a search packet on one path that end the search: at 10 % random loss one path in a hundred thousand is wronged.
const SEARCH_LOSSES_MAX: u8 = 5;

/// What the connection knows of sizes, besides the one in use.
#[derive(Debug)]
pub(super) struct Sizes {
    /// Payload that both ends take.
    most_bytes: u16,
    search: Option<Search>,
    /// When a larger size is tried.
    search_at: Option<Time>,
    /// As soon as there is something to send again: nothing ticks for ever.
    search_owed: bool,
}

/// A size that is being tried.
#[derive(Debug)]
struct Search {
    payload_bytes: u16,
    /// Sets of paths, a bit each: a packet is to be sent, one is under way, to be tried when these are done.
    due: u64,
    asked: u64,
    later: u64,
}

impl Sizes {
    pub(super) fn new(payload_bytes: u16) -> Self {
        Self {
            most_bytes: payload_bytes,
            search: None,
            search_at: None,
            search_owed: false,
        }
    }

    /// Payload that both ends take; the one in use may be smaller.
    pub(super) fn most_bytes(&self) -> u16 {
        self.most_bytes
    }

    pub(super) fn search_at(&self) -> Option<Time> {
        self.search_at
    }

    /// A size is being tried.
    pub(super) fn is_searching(&self) -> bool {
        self.search.is_some()
    }

    /// A packet of the search is due.
    pub(super) fn wants_packet(&self) -> bool {
        self.search.as_ref().is_some_and(|search| search.due != 0)
    }
}

impl Connection {
    /// Both ends take so much. Only before anything was sent.
    pub(super) fn set_payload(&mut self, payload_bytes: u16) {
        self.sizes = Sizes::new(payload_bytes);
        self.payload_bytes = payload_bytes;
        self.window.set_payload(payload_bytes);
    }

    /// Packets to `destination` must not be as large as `bytes` (UDP payload): the kernel, or a router, says so.
    pub(crate) fn handle_too_large(
        &mut self,
        cx: &mut Context<'_>,
        destination: SocketAddr,
        bytes: u32,
    ) {
        let concerns = |lane: &crate::path::entropy::Lane| lane.destination == destination;
        if !self.routes.lanes().iter().any(concerns) {
            return;
        }
        let limit_bytes = bytes.saturating_sub(DATA_HEADER_BYTES as u32 + 1);
        let beyond = |payload_bytes: u16| u32::from(payload_bytes) > limit_bytes;
        let sizes = &mut self.sizes;
        if sizes
            .search
            .as_ref()
            .is_some_and(|search| beyond(search.payload_bytes))
        {
            self.end_search(cx.now);
        }
        if beyond(self.payload_bytes) {
            let fits = PAYLOAD_STEPS_BYTES
                .iter()
                .rev()
                .find(|step| !beyond(**step));
            self.shrink_payload(cx, *fits.unwrap_or(&PAYLOAD_STEPS_BYTES[0]));
        }
    }

    /// Path `at` carries small packets, and nothing of `bytes` (UDP payload).
    pub(super) fn handle_hole(&mut self, cx: &mut Context<'_>, at: usize, bytes: u32) {
        // Others were sent before the last reduction, or belong to a search.
        if bytes as usize > self.packet_bytes() {
            return;
        }
        if self.payload_bytes <= PAYLOAD_STEPS_BYTES[0] {
            self.handle_narrow(cx, at, bytes);
            return;
        }
        cx.shared.counters.holes_found += 1;
        let payload_bytes = if self.payload_bytes > FALLBACK_BYTES {
            FALLBACK_BYTES
        } else {
            PAYLOAD_STEPS_BYTES[0]
        };
        self.shrink_payload(cx, payload_bytes);
    }

    fn shrink_payload(&mut self, cx: &mut Context<'_>, payload_bytes: u16) {
        if payload_bytes >= self.payload_bytes {
            return;
        }
        self.payload_bytes = payload_bytes;
        self.window.set_payload(payload_bytes);
        self.sizes.search = None;
        self.search_after(cx.now, SEARCH_AFTER_NS);
        self.log(cx.now, cx.shared, What::PayloadShrunk { payload_bytes });
    }

    fn search_after(&mut self, now: Time, ns: u64) {
        self.sizes.search_at = Some(now + ns);
        self.sizes.search_owed = false;
    }

    fn end_search(&mut self, now: Time) {
        self.sizes.search = None;
        self.search_after(now, RAISE_AFTER_NS);
    }

    /// It may be time to try a larger size.
    pub(super) fn search_timeout(&mut self, cx: &mut Context<'_>) {
        if self.sizes.search_at.is_none_or(|at| at > cx.now) {
            return;
        }
        self.sizes.search_at = None;
        if self.is_busy(cx.qps) {
            self.begin_search(cx.now);
        } else {
            self.sizes.search_owed = true;
        }
    }

    /// There is something to send again.
    #[inline]
    pub(super) fn resume_search(&mut self, now: Time) {
        if self.sizes.search_owed {
            self.search_after(now, 0);
        }
    }

    /// Tries the next larger size, if there is one.
    fn begin_search(&mut self, now: Time) {
        let most_bytes = self.sizes.most_bytes;
        if self.payload_bytes >= most_bytes {
            self.sizes.search = None;
            return;
        }
        let larger = PAYLOAD_STEPS_BYTES.iter().copied();
        let next_bytes = larger
            .filter(|step| *step > self.payload_bytes)
            .min()
            .map_or(most_bytes, |step| step.min(most_bytes));
        let mut paths = 0;
        for (at, path) in self.paths.iter_mut().enumerate() {
            path.search_losses = 0;
            paths |= u64::from(!path.tx.is_resting() && path.tx.has_psn()) << at;
        }
        if paths == 0 {
            self.sizes.search = None;
            self.search_after(now, SEARCH_AFTER_NS);
            return;
        }
        let first = paths & paths.wrapping_neg();
        self.sizes.search = Some(Search {
            payload_bytes: next_bytes,
            due: first,
            asked: 0,
            later: paths & !first,
        });
    }

    /// Builds a packet of the search that is due.
    pub(super) fn build_search(&mut self, cx: &mut Context<'_>, train: &mut Train) -> bool {
        while let Some(search) = &mut self.sizes.search {
            if search.due == 0 {
                return false;
            }
            let at = search.due.trailing_zeros() as usize;
            search.due &= search.due - 1;
            let payload_bytes = search.payload_bytes;
            if !self.paths[at].tx.has_psn() {
                // All its numbers are taken: it says nothing.
                self.settle_search(cx);
                continue;
            }
            search.asked |= 1 << at;
            let segment = SegmentRef::nothing(payload_bytes);
            let bytes = DATA_HEADER_BYTES as u32 + u32::from(payload_bytes);
            let path = self.path_mut(at);
            let sent = path.tx.send_new(cx.now, segment, bytes);
            path.counters.data_packets_sent += 1;
            cx.shared.counters.data_packets_sent += 1;
            cx.shared.counters.searches_sent += 1;
            let wire = Wire {
                padded_to: Some(bytes),
                again: false,
                last: false,
            };
            train.start(self.paths[at].route);
            self.push_packet(cx, at, &segment, &sent, &wire, train);
            cx.shared.counters.trains_sent += 1;
            // What comes behind it shows its loss.
            self.owe_markers(cx.now, at);
            self.wait_for_answers(cx, at);
            return true;
        }
        false
    }

    /// Path `at` has carried a packet of the search with `payload_bytes`.
    pub(super) fn search_arrived(&mut self, cx: &mut Context<'_>, at: usize, payload_bytes: u16) {
        if let Some(search) = &mut self.sizes.search
            && search.payload_bytes == payload_bytes
        {
            search.asked &= !(1 << at);
            self.settle_search(cx);
        }
    }

    /// Path `at` has lost a packet of the search with `payload_bytes`.
    pub(super) fn search_lost(&mut self, now: Time, at: usize, payload_bytes: u16) {
        let Some(search) = &mut self.sizes.search else {
            return;
        };
        if search.payload_bytes != payload_bytes || search.asked & 1 << at == 0 {
            return;
        }
        search.asked &= !(1 << at);
        self.paths[at].search_losses += 1;
        if self.paths[at].search_losses < SEARCH_LOSSES_MAX {
            search.due |= 1 << at;
        } else {
            self.end_search(now);
        }
    }

    /// One path less to wait for.
    fn settle_search(&mut self, cx: &mut Context<'_>) {
        let Some(search) = &mut self.sizes.search else {
            return;
        };
        if search.due | search.asked != 0 {
            return;
        }
        search.due = std::mem::take(&mut search.later);
        if search.due != 0 {
            return;
        }
        let payload_bytes = search.payload_bytes;
        self.payload_bytes = payload_bytes;
        self.log(cx.now, cx.shared, What::PayloadGrown { payload_bytes });
        self.window.set_payload(self.payload_bytes);
        for path in &mut self.paths {
            path.tx.forget_sizes();
        }
        self.begin_search(cx.now);
    }
}
