//! What others may ask a path, and the settings that come from outside.

use crate::cc::PathWindow;
use crate::path::{PathTx, RoundTrip, SPAN_PACKETS};
use crate::types::Time;
use crate::wire::{Epoch, PathId, Psn};

impl<R: Copy> PathTx<R> {
    /// How many paths of the connection share the window's growth.
    pub fn set_paths(&mut self, paths: u32) {
        self.window.set_paths(paths);
    }

    /// The round trip that the host knows of this peer: used until there is a sample.
    pub fn set_rtt_hint(&mut self, rtt_ns: u64) {
        self.rtt.set_hint(rtt_ns);
    }

    /// Number of the path.
    #[must_use]
    pub fn id(&self) -> PathId {
        self.id
    }

    /// Epoch of the present route.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// PSN of the next new packet.
    #[must_use]
    pub fn next_psn(&self) -> Psn {
        self.ring.next_psn()
    }

    /// Packets sent and not acknowledged, lost ones included.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.ring.unacked().count()
    }

    /// Whether nothing is outstanding: [`Self::outstanding`] is 0.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.ring.is_empty()
    }

    /// Packets in flight: outstanding and not declared lost.
    #[must_use]
    pub fn packets_in_flight(&self) -> u32 {
        self.ring.packets_in_flight()
    }

    /// Their bytes.
    #[must_use]
    pub fn bytes_in_flight(&self) -> u64 {
        self.ring.bytes_in_flight()
    }

    /// How often an outstanding packet was sent.
    #[must_use]
    pub fn transmissions(&self, psn: Psn) -> Option<u16> {
        self.ring.get(psn).map(|slot| slot.transmissions)
    }

    /// Whether a packet more can be numbered, whatever the window says.
    #[must_use]
    pub fn has_psn(&self) -> bool {
        self.ring.span() < SPAN_PACKETS
    }

    /// Round-trip estimate.
    #[must_use]
    pub fn rtt(&self) -> &RoundTrip {
        &self.rtt
    }

    /// Smoothed round trip, once there is a sample.
    #[must_use]
    pub fn srtt_ns(&self) -> Option<u64> {
        self.rtt.smoothed_ns()
    }

    /// Least round trip on this route.
    #[must_use]
    pub fn min_rtt_ns(&self) -> Option<u64> {
        self.rtt.min_ns()
    }

    /// The path's window.
    #[must_use]
    pub fn window(&self) -> &PathWindow {
        &self.window
    }

    /// How long verdicts by order wait at present; 0 where order holds.
    #[must_use]
    pub fn reorder_tolerance_ns(&self) -> u64 {
        self.loss.tolerance_ns()
    }

    /// No new packets: two probes stayed unanswered, or a new port is being proved.
    #[must_use]
    pub fn is_resting(&self) -> bool {
        self.probe.is_resting()
    }

    /// Since when it waits for news of what it sent.
    #[must_use]
    pub fn silent_since(&self) -> Time {
        self.probe.silent_since()
    }

    /// When the oldest packet in flight was sent, or since when the caller waits: what left later by other paths and is
    /// answered shows that this route is to blame.
    #[must_use]
    pub fn waits_since(&self) -> Time {
        let oldest = [self.ring.oldest_older(), self.ring.oldest_recent()];
        let sent = oldest.iter().flatten().map(|(_, slot)| slot.sent_at);
        sent.min().unwrap_or(self.silent_since())
    }

    /// Distance of its probes at present.
    #[must_use]
    pub fn probe_spacing_ns(&self) -> u64 {
        self.probe.spacing_ns(&self.rtt)
    }

    /// Probes unanswered since the route last worked.
    #[must_use]
    pub fn probes_unanswered(&self) -> u32 {
        self.probe.unanswered()
    }

    /// When something sent on the *present* route was last acknowledged: the path with the newest such time shows
    /// others where to move.
    #[must_use]
    pub fn last_ack_time(&self) -> Option<Time> {
        self.last_ack
    }

    /// When something was last sent.
    #[must_use]
    pub fn last_sent_time(&self) -> Option<Time> {
        self.last_sent
    }
}
