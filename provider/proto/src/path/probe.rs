//! When to ask: the probe timer and the retransmission timeout of one path, and whether the path rests.
//!
//! The timer counts from the last news, from the last probe, or from when there was first something to wait for,
//! whichever is latest; sending more does not push it back, so a route that swallows everything is asked in time
//! however busy it is. Each news uses up a transmission, so news cannot push it back for ever either.
//! Sequence without any answer: probe, probe, move and probe, probe, move and probe, ... (WIRE 4.14 to 4.17, 4.20).
//! Used by `tx` only.

use crate::path::{
    PROBE_CEILING_NS, PROBE_UNKNOWN_NS, PathAction, RTO_CEILING_NS, RTO_FLOOR_NS, RoundTrip,
};
use crate::types::{Driving, Time};

/// Probes on one route: the second makes up for a loss of the first, then the route is given up.
const PROBES_PER_ROUTE: u32 = 2;
/// Unanswered probes after which their spacing doubles with each.
const PROBES_BEFORE_BACKOFF: u32 = 8;
/// Probe spacings of silence before the retransmission timeout: it comes after a move was tried.
const RTO_SPACINGS: u64 = 4;

#[derive(Debug)]
pub(super) struct ProbeTimer {
    driving: Driving,
    base: Time,
    /// The last news, or when there was first something to wait for.
    silent_since: Time,
    /// Until then the silence is everybody's.
    excused_until: Time,
    /// Unanswered since the last proof that a route works.
    unanswered: u32,
    /// Of these, on the present route.
    on_route: u32,
    /// Sent one after the other though answered, while nothing is outstanding and the caller waits; or left out because
    /// the caller had nothing to ask for.
    in_vain: u32,
    resting: bool,
    rto_base: Time,
    rto_doublings: u32,
}

/// What the timer needs to know of the path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// Packets are outstanding.
    pub(super) outstanding: bool,
    /// Packets are in flight (outstanding and not declared lost).
    pub(super) in_flight: bool,
    /// The caller waits for something else that the peer must tell.
    pub(super) caller: bool,
}

impl ProbeTimer {
    pub(super) fn new(driving: Driving, now: Time) -> Self {
        Self {
            driving,
            base: now,
            silent_since: now,
            excused_until: now,
            unanswered: 0,
            on_route: 0,
            in_vain: 0,
            resting: false,
            rto_base: now,
            rto_doublings: 0,
        }
    }

    /// Distance of probes at present.
    pub(super) fn spacing_ns(&self, rtt: &RoundTrip) -> u64 {
        let doublings = self
            .unanswered
            .max(self.in_vain)
            .saturating_sub(PROBES_BEFORE_BACKOFF)
            .min(20);
        let ceiling_ns = PROBE_CEILING_NS;
        (self.basic_spacing_ns(rtt) << doublings).min(ceiling_ns)
    }

    fn basic_spacing_ns(&self, rtt: &RoundTrip) -> u64 {
        let spacing_ns = match rtt.guess_ns() {
            Some(guess_ns) => {
                (2 * guess_ns + rtt.ack_delay_ns()).max(self.driving.probe_floor_ns())
            }
            None => PROBE_UNKNOWN_NS,
        };
        spacing_ns.min(PROBE_CEILING_NS)
    }

    fn rto_ns(&self, rtt: &RoundTrip) -> u64 {
        let smoothed_ns = rtt.smoothed_ns().unwrap_or(0);
        let quiet_ns = (smoothed_ns + 4 * rtt.variation_ns() + rtt.ack_delay_ns())
            .max(RTO_SPACINGS * self.basic_spacing_ns(rtt))
            .max(RTO_FLOOR_NS);
        (quiet_ns << self.rto_doublings.min(20)).min(RTO_CEILING_NS)
    }

    /// When the next probe is due. A path that rests is asked even if nothing waits for the answer: nobody else would
    /// ever end its rest.
    pub(super) fn probe_due(&self, waiting: Waiting, rtt: &RoundTrip) -> Option<Time> {
        let armed = waiting.outstanding || waiting.caller || self.resting;
        armed.then(|| (self.base + self.spacing_ns(rtt)).max(self.excused_until))
    }

    pub(super) fn rto_due(&self, waiting: Waiting, rtt: &RoundTrip) -> Option<Time> {
        waiting.in_flight.then(|| self.rto_base + self.rto_ns(rtt))
    }

    /// A probe is due and will be sent.
    pub(super) fn on_probe_due(&mut self, now: Time, waiting: Waiting) -> PathAction {
        self.base = now;
        self.unanswered = self.unanswered.saturating_add(1);
        self.in_vain = if waiting.outstanding {
            0
        } else {
            self.in_vain.saturating_add(1)
        };
        if self.on_route < PROBES_PER_ROUTE {
            self.on_route += 1;
            return PathAction::Probe;
        }
        self.on_route = 1;
        self.resting = true;
        PathAction::MoveAndProbe
    }

    /// A probe is due, but others are not answered either: it counts as sent, and the next one waits.
    pub(super) fn excuse(&mut self, until: Time) {
        self.excused_until = until;
        self.on_route = self.on_route.max(1);
    }

    /// Others are answered meanwhile: the probe that was due is.
    pub(super) fn end_excuse(&mut self) {
        self.excused_until = Time::ZERO;
    }

    /// Many ask: this probe has its turn at `until`, and the last resort comes after it as ever.
    pub(super) fn postpone(&mut self, until: Time) {
        self.excused_until = self.excused_until.max(until);
        self.rto_base = self.rto_base.max(until);
    }

    /// Its turn has come.
    pub(super) fn end_postponement(&mut self, now: Time) {
        self.excused_until = self.excused_until.min(now);
        self.rto_base = self.rto_base.min(now);
    }

    /// The last news, or when there was first something to wait for.
    pub(super) fn silent_since(&self) -> Time {
        self.silent_since
    }

    /// The retransmission timeout is over.
    pub(super) fn on_rto(&mut self, now: Time) {
        self.rto_base = now;
        self.rto_doublings = self.rto_doublings.saturating_add(1);
    }

    /// There is something to wait for and there was nothing: what was asked before, for some other reason, does not
    /// count against the route, unless the path rests.
    pub(super) fn on_first_outstanding(&mut self, now: Time) {
        self.rto_base = now;
        self.start_over(now);
    }

    /// Everything outstanding had been declared lost, and something is sent again.
    pub(super) fn on_flight_resumes(&mut self, now: Time) {
        self.rto_base = now;
    }

    fn start_over(&mut self, now: Time) {
        self.in_vain = 0;
        if !self.resting {
            self.base = now;
            self.silent_since = now;
            self.unanswered = 0;
            self.on_route = 0;
        }
    }

    /// The caller begins to wait; `idle` if nothing else kept the timer running.
    pub(super) fn on_caller_waits(&mut self, now: Time, idle: bool) {
        self.in_vain = 0;
        if idle {
            self.start_over(now);
        }
    }

    /// The caller waits and had nothing to ask for when the probe was due.
    pub(super) fn on_look_in_vain(&mut self, now: Time) {
        self.base = now;
        self.in_vain = self.in_vain.saturating_add(1);
    }

    /// The path is on another route: of the probes asked for, at most the one that goes with the move is on it.
    pub(super) fn on_move(&mut self) {
        self.on_route = self.on_route.min(1);
    }

    /// No new packets until the present route has proved itself; the first probe is sent by the caller.
    pub(super) fn rest(&mut self, now: Time) {
        self.base = now;
        self.on_route = 1;
        self.unanswered = self.unanswered.max(1);
        self.resting = true;
    }

    /// The peer told something new.
    pub(super) fn on_news(&mut self, now: Time) {
        self.base = now;
        self.silent_since = now;
    }

    /// Packets were acknowledged or proved lost.
    pub(super) fn on_progress(&mut self, now: Time) {
        self.rto_base = now;
        self.rto_doublings = 0;
    }

    /// Something sent on the present route arrived. True if the path rested.
    pub(super) fn on_route_works(&mut self) -> bool {
        self.unanswered = 0;
        self.on_route = 0;
        std::mem::replace(&mut self.resting, false)
    }

    pub(super) fn is_resting(&self) -> bool {
        self.resting
    }

    pub(super) fn unanswered(&self) -> u32 {
        self.unanswered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // WIRE 4.33
    #[test]
    fn a_probe_that_has_no_turn_takes_the_last_resort_along() {
        let ms = |ms: u64| Time::from_ns(ms * 1_000_000);
        let waiting = Waiting {
            outstanding: true,
            in_flight: true,
            caller: false,
        };
        let rtt = RoundTrip::new(ms(0));
        let mut timer = ProbeTimer::new(Driving::Sockets, ms(0));
        timer.on_first_outstanding(ms(0));
        let (probe, last) = (ms(1), ms(5));
        assert_eq!(timer.probe_due(waiting, &rtt), Some(probe));
        assert_eq!(timer.rto_due(waiting, &rtt), Some(last));
        timer.postpone(ms(30));
        assert_eq!(timer.probe_due(waiting, &rtt), Some(ms(30)));
        assert_eq!(timer.rto_due(waiting, &rtt), Some(ms(35)));
        // Others did not need their turns.
        timer.end_postponement(ms(10));
        assert_eq!(timer.probe_due(waiting, &rtt), Some(ms(10)));
        assert_eq!(timer.rto_due(waiting, &rtt), Some(ms(15)));
        // It was not asked meanwhile: this is the first probe.
        assert_eq!(timer.on_probe_due(ms(10), waiting), PathAction::Probe);
        assert_eq!(timer.on_probe_due(ms(11), waiting), PathAction::Probe);
        assert_eq!(
            timer.on_probe_due(ms(12), waiting),
            PathAction::MoveAndProbe
        );
    }
}
