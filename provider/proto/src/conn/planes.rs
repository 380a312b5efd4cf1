//! Planes: those that work again or for the first time get their share of the paths, and paths leave what went down, or
//! what the program switched off (WIRE 4.21, 4.30, 4.31). That a route does not answer is found out in `probe.rs`.

use smallvec::SmallVec;

use crate::conn::{Connection, Context, State};
use crate::endpoint::SteerError;
use crate::path::entropy::Lane;
use crate::telemetry::LaneInfo;
use crate::telemetry::log::MoveCause;
use crate::types::{EndpointConfig, Route, Time};

/// A plane on which no path works is tried this often (WIRE 4.21).
pub(super) const PLANE_RETRY_NS: u64 = 20_000_000;

impl Connection {
    /// Path `at` goes to `route`; what it sent until now stays where it was.
    pub(super) fn set_route(&mut self, at: usize, route: Route) {
        let path = self.path_mut(at);
        let present = std::mem::replace(&mut path.route, route);
        let total_bytes = path.counters.data_bytes_sent;
        let sent_bytes = total_bytes - path.sent_elsewhere_bytes;
        path.sent_elsewhere_bytes = total_bytes;
        if let Some(lane) = self.routes.lane_of(&present) {
            self.routes.state_mut(lane).sent_bytes += sent_bytes;
        }
    }

    /// Places of the lanes that paths ought to be on, with those that have not been proved.
    fn wanted_lanes(&self) -> impl Iterator<Item = usize> + '_ {
        let all = 0..self.routes.lanes().len();
        all.filter(|at| {
            let state = self.routes.state(*at);
            state.enabled && state.up && state.left_alone_until.is_none()
        })
    }

    /// Whether a lane might work that no working path is on.
    pub(super) fn has_lane_to_try(&self) -> bool {
        self.wanted_lanes().any(|lane| !self.works(lane))
    }

    fn works(&self, lane: usize) -> bool {
        let lane = &self.routes.lanes()[lane];
        let on_it = |path: &crate::conn::schedule::TxPath| lane.has(&path.route);
        let mut paths = self.paths.iter();
        paths.any(|path| on_it(path) && !path.tx.is_resting())
    }

    /// Planes that no working path is on are tried again, with a path that others can spare.
    pub(super) fn plane_timeout(&mut self, cx: &mut Context<'_>) {
        if self.plane_check_at.is_none_or(|at| at > cx.now) {
            return;
        }
        self.plane_check_at = self.routes.end_leaving_alone(cx.now);
        let lanes: SmallVec<[usize; 16]> = self.wanted_lanes().collect();
        for at in lanes {
            if self.works(at) {
                continue;
            }
            // Tried again until it works, but only while there is something to send: nothing ticks for ever.
            self.plane_check_at = Some(cx.now + PLANE_RETRY_NS);
            if !self.is_busy(cx.qps) {
                continue;
            }
            let lane = self.routes.lanes()[at];
            if self.paths.iter().any(|path| lane.has(&path.route)) {
                // A path rests there and probes by itself.
                continue;
            }
            if let Some(spare) = self.path_to_spare()
                && self.routes.state_mut(at).try_now(cx.now)
            {
                self.try_lane(cx, spare, &lane, MoveCause::PlaneTried);
            }
        }
        if !self.is_busy(cx.qps) {
            self.plane_check_at = None;
            self.plane_check_owed = true;
        }
    }

    /// Path `at` works again. Where its plane has fewer paths than another one, which took them over when this one was dead,
    /// a path comes back; when that is proved it is this path's turn, and so on until all planes have their share.
    pub(super) fn even_out(&mut self, cx: &mut Context<'_>, at: usize) {
        let Some(lane) = self.routes.lane_of(&self.paths[at].route) else {
            return;
        };
        self.routes.prove(lane);
        let lane = self.routes.lanes()[lane];
        if !self.routes.open().any(|open| *open == lane) {
            // It was switched off, or went down, meanwhile.
            self.leave_closed_lanes(cx);
            return;
        }
        let own = self.paths_on(&lane.over(self.routes.slot(0)));
        let crowded = self
            .paths
            .iter()
            .enumerate()
            .filter(|(_, path)| !path.tx.is_resting() && self.paths_on(&path.route) > own + 1)
            .max_by_key(|(at, path)| {
                let crowd = self.paths_on(&path.route);
                (crowd, std::cmp::Reverse((path.tx.outstanding(), *at)))
            });
        if let Some((spare, _)) = crowded {
            self.try_lane(cx, spare, &lane, MoveCause::PlaneTried);
        }
    }

    fn try_lane(&mut self, cx: &mut Context<'_>, at: usize, lane: &Lane, why: MoveCause) {
        let turn = at + self.paths[at].tx.epoch().0 as usize;
        let route = self.routes.over(lane, turn);
        self.try_route(cx, at, why, route);
    }

    /// Paths on the lane of `route`.
    fn paths_on(&self, route: &Route) -> usize {
        let on_it =
            |other: &Route| other.local == route.local && other.destination == route.destination;
        self.paths.iter().filter(|path| on_it(&path.route)).count()
    }

    /// The path with the least in flight on a lane that has at least two working ones.
    fn path_to_spare(&self) -> Option<usize> {
        let working = |path: &&crate::conn::schedule::TxPath| !path.tx.is_resting();
        let crowded = |route: &Route| {
            let on_it = |path: &&crate::conn::schedule::TxPath| {
                path.route.local == route.local && path.route.destination == route.destination
            };
            self.paths.iter().filter(working).filter(on_it).count() > 1
        };
        let candidates = self.paths.iter().enumerate();
        candidates
            .filter(|(_, path)| working(path) && crowded(&path.route))
            .min_by_key(|(_, path)| path.tx.outstanding())
            .map(|(at, _)| at)
    }

    /// The own addresses that packets can leave from have changed.
    pub(crate) fn usable_changed(&mut self, cx: &mut Context<'_>) {
        self.routes.set_usable(cx.shared.usable);
        self.follow_lanes(cx);
    }

    /// Switches a plane on or off for everything that this end sends on the connection, but acknowledgements.
    pub(crate) fn steer(
        &mut self,
        cx: &mut Context<'_>,
        plane: u8,
        enabled: bool,
    ) -> Result<(), SteerError> {
        self.routes.steer(plane, enabled)?;
        self.follow_lanes(cx);
        Ok(())
    }

    /// Lanes were opened or closed.
    fn follow_lanes(&mut self, cx: &mut Context<'_>) {
        if self.state != State::Open {
            return;
        }
        self.leave_closed_lanes(cx);
        if self.has_lane_to_try() {
            self.plane_check_owed = !self.is_busy(cx.qps);
            self.plane_check_at = (!self.plane_check_owed).then_some(cx.now);
        }
    }

    /// Paths on lanes that are not open go to those that are, where the fewest are, and prove their new routes.
    pub(super) fn leave_closed_lanes(&mut self, cx: &mut Context<'_>) {
        for at in 0..self.paths.len() {
            let route = self.paths[at].route;
            if self.routes.open().any(|lane| lane.has(&route)) {
                continue;
            }
            let paths = |lane: &&Lane| self.paths_on(&lane.over(self.routes.slot(0)));
            if let Some(lane) = self.routes.open().min_by_key(paths).copied() {
                self.try_lane(cx, at, &lane, MoveCause::PlaneClosed);
            }
        }
    }

    /// A plane may be tried again at `at`.
    pub(super) fn leave_alone_until(&mut self, at: Time) {
        self.plane_check_at = Some(self.plane_check_at.map_or(at, |other| other.min(at)));
    }

    /// How its lanes are.
    pub(super) fn lane_infos(&self, config: &EndpointConfig) -> Vec<LaneInfo> {
        // Route, whether it rests, and bytes sent since it came to its lane.
        let awake = self.paths.iter().map(|path| {
            let bytes = path.counters.data_bytes_sent - path.sent_elsewhere_bytes;
            (path.route, path.tx.is_resting(), bytes)
        });
        let parked = self.parked_paths().iter().map(|path| {
            let bytes = path.counters.data_bytes_sent - path.sent_elsewhere_bytes;
            (path.route(&self.routes), false, bytes)
        });
        let all = awake.chain(parked);
        let info = |(at, lane): (usize, &Lane)| {
            let state = self.routes.state(at);
            let here = all.clone().filter(|(route, ..)| lane.has(route));
            let own = config.locals.get(usize::from(lane.local.0));
            LaneInfo {
                plane: lane.plane,
                local: lane.local,
                destination: lane.destination,
                joined: state.joined,
                up: state.up,
                enabled: state.enabled,
                proved: state.proved,
                speed_mbps: own.map_or(0, |own| own.speed_mbps),
                peer_speed_mbps: state.peer_speed_mbps,
                paths: here.clone().count() as u32,
                resting_paths: here.clone().filter(|(_, rests, _)| *rests).count() as u32,
                data_bytes_sent: state.sent_bytes + here.map(|(.., bytes)| bytes).sum::<u64>(),
            }
        };
        self.routes.lanes().iter().enumerate().map(info).collect()
    }
}
