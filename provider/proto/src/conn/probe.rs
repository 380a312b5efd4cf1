//! Does the route work, and is the peer there at all? Moves of paths to other routes (WIRE 4.15 to 4.21), probes that ask
//! for a stream block (WIRE 6.4), and what follows from ICMP errors (WIRE 3.18).

use std::net::SocketAddr;

use smallvec::SmallVec;

use crate::conn::planes::PLANE_RETRY_NS;
use crate::conn::streams::List;
use crate::conn::{Connection, Context};
use crate::endpoint::qp::{Phase, QpTable};
use crate::path::entropy::Lane;
use crate::path::{Bare, PROBE_CEILING_NS, PathAction};
use crate::telemetry::log::{MoveCause, What};
use crate::train::Train;
use crate::types::{Driving, QpId, Route, SourceSlot, Time};
use crate::wire::{Qpn, Token};

/// Routes that must all be reported unreachable, one at least of each plane in use, before the silence that follows proves the
/// peer dead. What counts is any packet's error: a train that met a dead peer may have used up the errors that its kernel sends.
const SUSPICION_ROUTES: usize = 3;

/// A suspicion that is not confirmed is forgotten after this. Kernels send few errors after a burst, about one a second.
const SUSPICION_NS: u64 = 10_000_000_000;

/// The probes are repeated when an error comes so long after them.
const SUSPICION_PROBES_NS: u64 = 100_000_000;

/// After that a peer that is alive has so long to answer the probes, and two round trips more: a few forged errors, or a
/// firewall that rejects for a moment, end nothing.
const ANSWER_NS: u64 = 10_000_000;
const ANSWER_BUSY_NS: u64 = 100_000;

/// Least silence before the peer is asked whether it knows the connection, and between two such questions.
const ASK_INTERVAL_NS: u64 = 400_000;

/// A loss makes tails be marked for so long: at 0.1 % loss some messages of a few packets have none.
const LOSSY_NS: u64 = 1_000_000_000;

/// Streams that one probe asks for, each in a packet of its own.
const STREAMS_PER_PROBE: u8 = 4;

/// Active streams that are looked at when somebody is to be asked for. The next ones have their turn with the next probe:
/// with thousands of streams, looking at all of them for each probe would take longer than the probes are apart.
const STREAMS_PER_LOOK: usize = 256;

/// Where more streams are active the end of waiting is found when the timer looks, not with an ACK.
const STREAMS_PER_ACK: usize = 4;

/// The peer may be dead: what ICMP said since it was last heard.
#[derive(Clone, Debug)]
pub(crate) struct Suspicion {
    until: Time,
    /// Routes that an error was reported for.
    reported: SmallVec<[(SocketAddr, Option<SourceSlot>); SUSPICION_ROUTES]>,
    /// Routes that a probe has to be sent on.
    to_probe: SmallVec<[Route; SUSPICION_ROUTES]>,
    probed_at: Time,
    /// Enough was reported: if nothing is heard until then, the peer is dead.
    proves_at: Option<Time>,
}

impl Suspicion {
    /// An error was reported for a packet to `destination`. One without a route counts for one of its own.
    fn note(&mut self, destination: SocketAddr, source: Option<SourceSlot>) {
        let there = self.reported.iter().filter(|(to, _)| *to == destination);
        let known = source.is_some() && self.reported.contains(&(destination, source));
        if !known && there.count() < SUSPICION_ROUTES {
            self.reported.push((destination, source));
        }
    }

    fn is_reported(&self, lane: &Lane) -> bool {
        let mut reported = self.reported.iter();
        reported.any(|(destination, _)| *destination == lane.destination)
    }
}

impl Connection {
    // ---- Moves ----

    /// Asks path `at` what is due and does it.
    pub(super) fn path_timeout(&mut self, cx: &mut Context<'_>, at: usize) {
        let window = self.window_if_logged(cx, at);
        let rested = self.paths[at].tx.is_resting();
        let excused_until = self.excused_until(cx.now, at);
        if excused_until.is_some() {
            self.excused_paths |= 1 << at;
        }
        if excused_until.is_none() && self.paths[at].tx.is_probe_due(cx.now) {
            // If not, it is not due any more.
            self.has_probe_turn(cx, at);
        }
        let path = &mut self.path_mut(at).tx;
        match path.handle_timeout(cx.now, excused_until) {
            PathAction::None => {}
            PathAction::Lost(packets) => {
                self.count_lost(cx, at, packets);
                self.lost_paths |= 1 << at;
                self.log_cut(cx, at, window, 0, packets);
            }
            PathAction::Rto => {
                cx.shared.counters.rtos += 1;
                self.paths[at].counters.rtos += 1;
                self.count_lost(cx, at, 1);
                let outstanding_packets = self.paths[at].tx.outstanding();
                let what = What::Timeout {
                    outstanding_packets,
                };
                self.log_path(cx, at, what);
                self.log_cut(cx, at, window, 0, 1);
                self.lost_paths |= 1 << at;
            }
            PathAction::Probe => {
                self.note_asking(at);
                self.probe(cx, at);
            }
            PathAction::MoveAndProbe => {
                self.note_asking(at);
                self.move_path(cx, at);
                if !rested {
                    self.log_path(cx, at, What::PathRests);
                }
                self.probe(cx, at);
            }
        }
    }

    /// WIRE 4.29: until when path `at` need not ask, as all paths wait: others ask, or the last answers took as long.
    fn excused_until(&self, now: Time, at: usize) -> Option<Time> {
        let path = &self.paths[at].tx;
        if self.paths.len() == 1 || self.answered_sent_at > path.waits_since() {
            return None;
        }
        // A peer that was stopped made a round trip of seconds: no probe is later than any other may be (WIRE 4.16).
        let slow_ns = (2 * self.latest_rtt_ns).min(PROBE_CEILING_NS);
        let slow_until = path.silent_since() + slow_ns;
        if slow_until > now {
            return Some(slow_until);
        }
        let asking = &self.paths[self.first_asking?].tx;
        // One asks, then two, with its second probe four, and so on.
        let doublings = asking.probes_unanswered().min(6);
        let others_ask = (self.asking_paths & !(1 << at)).count_ones() >= 1 << doublings;
        let excused = others_ask && self.asking_paths & (1 << at) == 0;
        (excused && asking.poll_timeout().is_some()).then(|| now + asking.probe_spacing_ns())
    }

    /// Path `at` asks for all that are silent.
    fn note_asking(&mut self, at: usize) {
        self.first_asking.get_or_insert(at);
        self.asking_paths |= 1 << at;
    }

    /// Somebody is answered.
    pub(super) fn end_asking(&mut self) {
        (self.first_asking, self.asking_paths) = (None, 0);
    }

    /// What left then is answered: paths that were excused and wait for longer ask now.
    pub(super) fn note_answer(&mut self, sent_at: Time) {
        self.end_asking();
        if sent_at <= self.answered_sent_at {
            return;
        }
        self.answered_sent_at = sent_at;
        let mut excused = self.excused_paths;
        while excused != 0 {
            let at = excused.trailing_zeros() as usize;
            excused &= excused - 1;
            if self.paths[at].tx.waits_since() < sent_at {
                self.excused_paths &= !(1 << at);
                self.path_mut(at).tx.end_excuse();
            }
        }
    }

    pub(super) fn log_move(&self, cx: &mut Context<'_>, at: usize, why: MoveCause, from: Route) {
        let path = &self.paths[at];
        let what = What::PathMoved {
            why,
            from,
            to: path.route,
            epoch: path.tx.epoch().0,
        };
        self.log_path(cx, at, what);
    }

    /// The window of path `at`, for [`Self::log_cut`].
    pub(super) fn window_if_logged(&self, cx: &Context<'_>, at: usize) -> Option<f64> {
        let logged = cx.shared.log.is_on();
        logged.then(|| self.paths[at].tx.window().packets())
    }

    /// Takes down that the window of path `at` was cut, if it is smaller than it was.
    pub(super) fn log_cut(
        &self,
        cx: &mut Context<'_>,
        at: usize,
        before: Option<f64>,
        marked: u16,
        lost: u32,
    ) {
        let to_packets = self.paths[at].tx.window().packets();
        if let Some(from_packets) = before.filter(|before| to_packets < *before) {
            let what = What::WindowCut {
                from_packets,
                to_packets,
                marked,
                lost,
            };
            self.log_path(cx, at, what);
        }
    }

    /// Packets of path `at` were found lost.
    pub(super) fn count_lost(&mut self, cx: &mut Context<'_>, at: usize, packets: u32) {
        self.lossy_until = Some(cx.now + LOSSY_NS);
        cx.shared.counters.packets_lost += u64::from(packets);
        self.paths[at].counters.packets_lost += u64::from(packets);
    }

    /// The peer does not answer: a HELLO asks whether it still knows the connection. If it does, and we know that, it
    /// keeps silent; if it does not, it answers with a RESET.
    pub(super) fn ask_if_known(&mut self, now: Time) {
        let since = self
            .asked_at
            .map_or(self.last_heard, |asked_at| asked_at.max(self.last_heard));
        if self.is_open() && now.since_ns(since) >= ASK_INTERVAL_NS {
            self.asked_at = Some(now);
            self.hello_due = true;
        }
    }

    /// A probe leaves on path `at`, or several if several streams wait for their block.
    fn probe(&mut self, cx: &mut Context<'_>, at: usize) {
        let waiting = self.streams_in_turn().filter(|id| wants_probe(cx.qps, *id));
        let count = waiting.take(usize::from(STREAMS_PER_PROBE)).count() as u8;
        if count == 0 {
            self.ask_turn = self.ask_turn.wrapping_add(STREAMS_PER_LOOK);
        }
        // Not with the first one: a peer that is only slow would be asked all the time.
        let unanswered = self.paths[at].tx.probes_unanswered().saturating_sub(1);
        if unanswered > 0 {
            self.ask_if_known(cx.now);
            self.log_path(cx, at, What::ProbeUnanswered { unanswered });
        }
        self.paths[at].probes_due = count.max(1);
        self.bare_paths |= 1 << at;
    }

    /// Path `at` takes another route.
    fn move_path(&mut self, cx: &mut Context<'_>, at: usize) {
        let present = self.paths[at].route;
        let newest = self
            .paths
            .iter()
            .enumerate()
            .filter(|(other, path)| *other != at && !path.tx.is_resting())
            .filter_map(|(_, path)| Some((path.tx.last_ack_time()?, path.route)))
            .max_by_key(|(time, _)| *time)
            .map(|(_, route)| route);
        let to = self.routes.move_from(present, newest, &mut cx.shared.rng);
        self.set_route(at, to.route);
        let path = self.path_mut(at);
        path.copied = to.copied;
        path.counters.moves += 1;
        path.tx.move_to(cx.now);
        cx.shared.counters.moves += 1;
        self.log_move(cx, at, MoveCause::Silence, present);
        let check_at = cx.now + PLANE_RETRY_NS;
        if self.plane_check_at.is_none_or(|at| at > check_at) && self.has_lane_to_try() {
            self.plane_check_at = Some(check_at);
        }
    }

    /// Path `at` takes a port that no other has, proved by a probe first.
    pub(super) fn take_port(&mut self, cx: &mut Context<'_>, at: usize, why: MoveCause) {
        let taken: SmallVec<[Route; 64]> = self.paths.iter().map(|path| path.route).collect();
        let route = self
            .routes
            .fresh_port(self.paths[at].route, &taken, &mut cx.shared.rng);
        self.try_route(cx, at, why, route);
    }

    /// Path `at` goes to a route that nobody has tried, and sends nothing new until a probe is answered there.
    pub(super) fn try_route(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
        why: MoveCause,
        route: Route,
    ) {
        let present = self.paths[at].route;
        let rested = self.paths[at].tx.is_resting();
        self.set_route(at, route);
        let path = self.path_mut(at);
        path.copied = false;
        path.counters.moves += 1;
        path.tx.move_to(cx.now);
        self.log_move(cx, at, why, present);
        if self.paths.len() > 1 {
            self.path_mut(at).tx.rest_until_proved(cx.now);
        }
        if !rested && self.paths[at].tx.is_resting() {
            self.log_path(cx, at, What::PathRests);
        }
        self.paths[at].probes_due = 1;
        self.bare_paths |= 1 << at;
        cx.shared.counters.moves += 1;
    }

    // ---- Streams that wait ----

    /// Something was sent on path `at` that the peer has to answer: one path of the connection asks if it does not.
    #[inline]
    pub(super) fn wait_for_answers(&mut self, cx: &Context<'_>, at: usize) {
        let now = cx.now;
        if self.waiting_path.is_none() {
            self.waiting_path = Some(at);
            self.path_mut(at).tx.set_waiting(now, true);
        }
        if let Some(reroll) = &mut self.reroll {
            reroll.arm(now);
        }
        if self.paths.len() > 1 {
            let driving = cx.shared.config.driving;
            self.spread.arm(now, driving, self.window.min_rtt_ns());
        }
        self.resume_search(now);
        if self.plane_check_owed {
            self.plane_check_owed = false;
            self.plane_check_at = Some(now);
        }
    }

    /// Before the waiting path is asked for its timeout: does anybody still wait?
    pub(super) fn waiting_timeout(&mut self, cx: &mut Context<'_>) {
        let Some(at) = self.waiting_path else { return };
        let path = &self.paths[at].tx;
        if !path.is_idle() || path.poll_timeout().is_none_or(|due| due > cx.now) {
            return;
        }
        let owed = self.is_owed(cx.qps);
        // A cold connection that may send nothing waits for the answer to its announcement.
        let cold = owed && !self.window.is_warm() && self.bytes_in_flight() == 0;
        if cold || self.streams_in_turn().any(|id| wants_probe(cx.qps, id)) {
            return;
        }
        self.ask_turn = self.ask_turn.wrapping_add(STREAMS_PER_LOOK);
        // Not now: others are still in flight, or nobody waits at all.
        let silent = self.last_heard < self.looked_at;
        self.looked_at = cx.now;
        let path = &mut self.path_mut(at).tx;
        if owed && silent {
            // Their own paths ask. As long as the peer says nothing there is less and less to look for.
            path.wait_longer(cx.now);
            return;
        }
        path.set_waiting(cx.now, false);
        if owed {
            path.set_waiting(cx.now, true);
        } else {
            self.waiting_path = None;
        }
    }

    /// An ACK came: if that was all that anybody waited for, nobody has to look later whether it came.
    pub(super) fn end_waiting(&mut self, cx: &Context<'_>) {
        let Some(at) = self.waiting_path else { return };
        let few = self.streams.of(List::Active).len() <= STREAMS_PER_ACK;
        if few && self.paths[at].tx.is_idle() && !self.is_owed(cx.qps) {
            self.path_mut(at).tx.set_waiting(cx.now, false);
            self.waiting_path = None;
        }
    }

    /// Whether the peer owes any stream the end of a request.
    fn is_owed(&self, qps: &QpTable) -> bool {
        self.streams.of(List::Active).iter().any(|id| {
            let life = qps.get(*id).and_then(|qp| qp.life.as_deref());
            life.is_some_and(|life| {
                life.phase == Phase::Open && life.requester.waiting_since().is_some()
            })
        })
    }

    /// A stream of ours whose packets are all acknowledged but not executed: QPN and life at the peer.
    pub(super) fn stream_to_ask(&mut self, cx: &mut Context<'_>) -> Option<(Qpn, Token)> {
        let mut step = 0;
        let id = self.streams_in_turn().find(|id| {
            step += 1;
            wants_probe(cx.qps, *id)
        })?;
        self.ask_turn = self.ask_turn.wrapping_add(step);
        let life = cx.qps.life_mut(id)?;
        Some((life.params.dest_qpn, life.peer_token))
    }

    /// The active streams whose turn it is to be asked for.
    fn streams_in_turn(&self) -> impl Iterator<Item = QpId> + '_ {
        let active = self.streams.of(List::Active);
        let first = self.ask_turn % active.len().max(1);
        let (before, after) = active.split_at(first);
        after.iter().chain(before).copied().take(STREAMS_PER_LOOK)
    }

    // ---- Is the peer there? ----

    /// An ICMP error says that nobody listens at `destination`: the peer is asked, and [`Self::is_proved_dead`] when it should
    /// have answered.
    pub(crate) fn handle_unreachable(
        &mut self,
        cx: &mut Context<'_>,
        destination: SocketAddr,
        source: Option<SourceSlot>,
    ) {
        let concerns = self
            .routes
            .lanes()
            .iter()
            .any(|lane| lane.destination == destination);
        if !concerns || !self.is_open() {
            return;
        }
        let answer_ns = match cx.shared.config.driving {
            Driving::Sockets => ANSWER_NS,
            Driving::Busy => ANSWER_BUSY_NS,
        } + 2 * self.window.min_rtt_ns().unwrap_or(0);
        let all_routes =
            self.routes.lanes().len() * usize::from(cx.shared.config.source_slots.max(1));
        let fresh = || {
            Box::new(Suspicion {
                until: cx.now + SUSPICION_NS,
                reported: SmallVec::new(),
                to_probe: SmallVec::new(),
                probed_at: Time::ZERO,
                proves_at: None,
            })
        };
        let suspicion = match &mut self.suspicion {
            Some(suspicion) if suspicion.until > cx.now => suspicion,
            other => other.insert(fresh()),
        };
        suspicion.note(destination, source);
        // Where one plane leads to somebody else, or nowhere, the peer is alive as long as another plane works. Those that
        // all paths have left count for nothing.
        let routes = &self.routes;
        let in_use = |lane: &&Lane| self.paths.iter().any(|path| lane.has(&path.route));
        let everywhere = (routes.open().filter(in_use)).all(|lane| suspicion.is_reported(lane));
        let enough = everywhere && suspicion.reported.len() >= SUSPICION_ROUTES.min(all_routes);
        let newly_enough = enough && suspicion.proves_at.is_none();
        if newly_enough {
            suspicion.proves_at = Some(cx.now + answer_ns);
        }
        let repeats = cx.now.since_ns(suspicion.probed_at) >= SUSPICION_PROBES_NS;
        if !suspicion.to_probe.is_empty() || !(newly_enough || repeats) {
            return;
        }
        suspicion.probed_at = cx.now;
        // Each plane that says nothing, then routes that said nothing, then whatever there is.
        let planes = routes.open().filter(|lane| !suspicion.is_reported(lane));
        let mut to_probe: SmallVec<[Route; SUSPICION_ROUTES]> =
            planes.map(|lane| routes.over(lane, 0)).collect();
        let all = || (0..all_routes).map(|turn| routes.nth(turn));
        let is_new = |route: &Route| {
            let reported = (route.destination, Some(route.source));
            !suspicion.reported.contains(&reported)
        };
        for route in all().filter(is_new).chain(all()) {
            if to_probe.len() >= SUSPICION_ROUTES {
                break;
            }
            if !to_probe.contains(&route) {
                to_probe.push(route);
            }
        }
        suspicion.to_probe = to_probe;
    }

    /// When the peer should have answered, if enough of its routes were reported.
    pub(super) fn proved_dead_at(&self) -> Option<Time> {
        self.suspicion.as_ref()?.proves_at
    }

    /// Whether what ICMP said, and the silence since, prove the peer dead (WIRE 3.18).
    pub(crate) fn is_proved_dead(&self, now: Time) -> bool {
        self.is_open() && self.proved_dead_at().is_some_and(|at| at <= now)
    }

    /// For `ns` this end did not listen.
    pub(super) fn excuse_suspicion(&mut self, ns: u64) {
        if let Some(suspicion) = &mut self.suspicion {
            suspicion.proves_at = suspicion.proves_at.map(|at| at + ns);
        }
    }

    /// A probe of the suspicion is due.
    pub(super) fn suspicion_wants_probe(&self) -> bool {
        self.suspicion
            .as_ref()
            .is_some_and(|suspicion| !suspicion.to_probe.is_empty())
    }

    /// Builds such a probe: on the route that the suspicion names, whatever route its path is on.
    pub(super) fn build_suspicion_probe(
        &mut self,
        cx: &mut Context<'_>,
        train: &mut Train,
    ) -> bool {
        let Some(suspicion) = self.suspicion.as_mut() else {
            return false;
        };
        let Some(route) = suspicion.to_probe.pop() else {
            return false;
        };
        let at = suspicion.to_probe.len() % self.paths.len();
        cx.shared.counters.probes_sent += 1;
        self.paths[at].counters.probes_sent += 1;
        train.start(route);
        self.push_bare(cx, at, Bare::Probe, None, train);
        cx.shared.counters.trains_sent += 1;
        true
    }
}

/// All packets of a stream are acknowledged and something of it is not executed.
fn wants_probe(qps: &QpTable, id: QpId) -> bool {
    let life = qps.get(id).and_then(|qp| qp.life.as_deref());
    life.is_some_and(|life| life.phase == Phase::Open && life.requester.wants_probe())
}
