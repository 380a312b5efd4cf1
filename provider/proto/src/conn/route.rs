//! What paths may travel on: the lanes (plane, own address, peer's address) between the two endpoints, and the source
//! ports. A connection begins with one lane, between the GIDs that its queue pairs use; the peer's HELLO adds those of
//! `lanes.rs`. Which of them a path takes is decided in `path/entropy.rs`, among those that are open: up, proved and
//! switched on.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use rand::rngs::SmallRng;
use smallvec::SmallVec;

use crate::conn::lanes::{self, LaneState, Told};
use crate::endpoint::table::Key;
use crate::endpoint::{ConnectError, SteerError};
use crate::path::entropy::{Lane, Move, RouteChooser};
use crate::types::{EndpointConfig, LocalAddress, LocalIndex, LocalSet, Route, SourceSlot, Time};
use crate::wire::{Gid, HELLO_ADDRESSES_MAX, PlaneAddress, PlaneId};

/// The routes of a connection; see the file's head.
#[derive(Debug)]
pub(crate) struct Routes {
    chooser: RouteChooser,
    /// How the lanes are, by their places.
    states: SmallVec<[LaneState; 1]>,
    slots: u8,
    /// Addresses that packets of the peer may come from.
    peers: SmallVec<[IpAddr; 4]>,
}

/// Whether `ip` may be the address of one host.
fn may_be_a_host(ip: IpAddr) -> bool {
    let is_broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !ip.is_unspecified() && !ip.is_multicast() && !is_broadcast
}

/// `ip` and `port`, with the scope of the own address that reaches it.
pub(super) fn socket_address(ip: IpAddr, port: u16, local: &LocalAddress) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddrV6::new(v6, port, 0, local.scope_id).into()
        }
        _ => SocketAddr::new(ip, port),
    }
}

impl Routes {
    /// The one lane between the GIDs of `key`.
    pub(crate) fn new(config: &EndpointConfig, key: &Key) -> Result<Self, ConnectError> {
        let (source, dest) = (key.source.to_ip(), key.dest.to_ip());
        let local = config.locals.iter().position(|local| local.ip == source);
        let Some(index) = local.filter(|index| *index <= usize::from(u8::MAX)) else {
            return Err(ConnectError::UnknownSourceGid);
        };
        let local = &config.locals[index];
        if key.dest.is_zero() || !may_be_a_host(dest) {
            return Err(ConnectError::UnroutableDestination);
        }
        // A global address may reach a link-local one of the same link, which the host's routing decides.
        if source.is_ipv4() != dest.is_ipv4() {
            return Err(ConnectError::UnroutableDestination);
        }
        let destination = socket_address(dest, key.peer_port, local);
        let lane = Lane {
            plane: local.plane,
            local: LocalIndex(index as u8),
            destination,
        };
        let slots = config.source_slots.max(1);
        let chooser = RouteChooser::new(vec![lane], slots);
        Ok(Self {
            chooser,
            states: SmallVec::from_elem(LaneState::joined(0), 1),
            slots,
            peers: SmallVec::from_slice(&[dest]),
        })
    }

    /// Takes the addresses of the peer's HELLO: a lane for every plane of either end (WIRE 4.30), over those of our addresses
    /// that are `usable` now.
    pub(crate) fn learn(
        &mut self,
        config: &EndpointConfig,
        usable: LocalSet,
        addresses: &[PlaneAddress],
    ) {
        let addresses = &addresses[..addresses.len().min(HELLO_ADDRESSES_MAX)];
        let told: SmallVec<[Told; 4]> = addresses
            .iter()
            .map(|address| Told {
                ip: address.gid.to_ip(),
                plane: address.plane.0,
                speed_mbps: address.speed_mbps,
            })
            .filter(|told| may_be_a_host(told.ip))
            .collect();
        self.peers.truncate(1);
        for address in &told {
            if !self.peers.contains(&address.ip) {
                self.peers.push(address.ip);
            }
        }
        let lanes = lanes::between(self.first(), &config.locals, &told);
        self.states = lanes.iter().map(|(_, state)| *state).collect();
        let lanes = lanes.into_iter().map(|(lane, _)| lane).collect();
        self.chooser = RouteChooser::new(lanes, self.slots);
        self.set_usable(usable);
    }

    /// Our addresses that packets can leave from have changed.
    pub(crate) fn set_usable(&mut self, usable: LocalSet) {
        for (lane, state) in self.chooser.all().iter().zip(&mut self.states) {
            state.up = usable.has(lane.local);
        }
        self.choose_open();
    }

    /// The lane at `at` has been shown to work.
    pub(crate) fn prove(&mut self, at: usize) {
        let state = &mut self.states[at];
        if !std::mem::replace(&mut state.proved, true) {
            self.choose_open();
        }
    }

    /// The lane at `at` is to be left alone until then. False if it cannot be: there is no other that works.
    pub(crate) fn leave_alone(&mut self, at: usize, until: Time) -> bool {
        self.states[at].left_alone_until = Some(until);
        self.choose_open();
        let lane = self.lanes()[at];
        !self.open().any(|open| *open == lane)
    }

    /// Lanes that were left alone for long enough may be tried again. When the next one is.
    pub(crate) fn end_leaving_alone(&mut self, now: Time) -> Option<Time> {
        let mut ended = false;
        for state in &mut self.states {
            if state.left_alone_until.is_some_and(|until| until <= now) {
                state.left_alone_until = None;
                ended = true;
            }
        }
        if ended {
            self.choose_open();
        }
        let others = self
            .states
            .iter()
            .filter_map(|state| state.left_alone_until);
        others.min()
    }

    /// Switches the lanes of a plane on or off.
    pub(crate) fn steer(&mut self, plane: u8, enabled: bool) -> Result<(), SteerError> {
        let lanes = self.chooser.all().iter().zip(&mut self.states);
        let (of_plane, others): (Vec<_>, Vec<_>) = lanes.partition(|(lane, _)| lane.plane == plane);
        if of_plane.is_empty() {
            return Err(SteerError::UnknownPlane);
        }
        if !enabled && !others.iter().any(|(_, state)| state.enabled) {
            return Err(SteerError::LastPlane);
        }
        for (_, state) in of_plane {
            state.enabled = enabled;
        }
        self.choose_open();
        Ok(())
    }

    /// What paths may take: lanes that are up, proved and switched on, or what comes nearest to that.
    fn choose_open(&mut self) {
        let states = &self.states;
        let choices: [fn(&LaneState) -> bool; 4] = [
            |lane| lane.enabled && lane.proved && lane.up && lane.left_alone_until.is_none(),
            |lane| lane.enabled && lane.proved && lane.up,
            |lane| lane.enabled && lane.proved,
            |lane| lane.enabled,
        ];
        let best = choices.iter().find(|choice| states.iter().any(choice));
        if let Some(best) = best {
            self.chooser.set_open(|at| best(&states[at]));
        }
    }

    /// How the lane at `at` is.
    pub(crate) fn state(&self, at: usize) -> &LaneState {
        &self.states[at]
    }

    /// The same, to change what does not open or close it.
    pub(crate) fn state_mut(&mut self, at: usize) -> &mut LaneState {
        &mut self.states[at]
    }

    /// Place of the lane of a route.
    pub(crate) fn lane_of(&self, route: &Route) -> Option<usize> {
        self.chooser.lane_of(*route)
    }

    /// The lanes that paths may take now.
    pub(crate) fn open(&self) -> impl ExactSizeIterator<Item = &Lane> + Clone {
        self.chooser.open()
    }

    /// Whether a packet of the peer may come from `ip`.
    #[inline]
    pub(crate) fn is_peer(&self, ip: IpAddr) -> bool {
        self.peers.contains(&ip)
    }

    /// All lanes.
    pub(crate) fn lanes(&self) -> &[Lane] {
        self.chooser.all()
    }

    /// The lane between the GIDs of the connection.
    pub(crate) fn first(&self) -> Lane {
        self.chooser.all()[0]
    }

    /// First routes of `paths` paths.
    pub(crate) fn spread(&self, paths: usize, rng: &mut SmallRng) -> Vec<Route> {
        self.chooser
            .spread(paths.min(usize::from(u8::MAX)) as u8, rng)
    }

    /// The `turn`-th of a sequence of routes: open lanes in turn, and another source port each time that all were taken.
    pub(crate) fn nth(&self, turn: usize) -> Route {
        let mut lanes = self.chooser.open();
        let count = lanes.len();
        let lane = lanes.nth(turn % count).unwrap_or(&self.chooser.all()[0]);
        lane.over(self.slot(turn / count))
    }

    /// A route over a certain lane.
    pub(crate) fn over(&self, lane: &Lane, turn: usize) -> Route {
        lane.over(self.slot(turn))
    }

    /// Where a path on `present` moves; see [`RouteChooser::move_from`].
    pub(crate) fn move_from(
        &self,
        present: Route,
        newest_acked: Option<Route>,
        rng: &mut SmallRng,
    ) -> Move {
        self.chooser.move_from(present, newest_acked, rng)
    }

    /// Any route but `present`, if there is another.
    pub(crate) fn any_other(&self, present: Route, rng: &mut SmallRng) -> Route {
        self.chooser.any_other(present, rng)
    }

    /// A port for a path that copied its route.
    pub(crate) fn fresh_port(&self, present: Route, taken: &[Route], rng: &mut SmallRng) -> Route {
        self.chooser.fresh_port(present, taken, rng)
    }

    /// A source port for the `turn`-th of several packets.
    pub(crate) fn slot(&self, turn: usize) -> SourceSlot {
        SourceSlot((turn % usize::from(self.slots)) as u8)
    }

    /// The GIDs and planes that a HELLO lists.
    pub(crate) fn own_addresses(
        config: &EndpointConfig,
    ) -> impl Iterator<Item = PlaneAddress> + '_ {
        config
            .locals
            .iter()
            .take(HELLO_ADDRESSES_MAX)
            .map(|local| PlaneAddress {
                gid: Gid::from_ip(local.ip),
                plane: PlaneId(local.plane),
                speed_mbps: local.speed_mbps,
            })
    }
}
