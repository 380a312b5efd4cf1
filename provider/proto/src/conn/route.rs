//! What paths may travel on: the lanes (plane, own address, peer's address) between the two endpoints, and the source
//! ports. A connection begins with one lane, between the GIDs that its queue pairs use; the peer's HELLO adds one for
//! every other plane that both ends are on. Which of them a path takes is decided in `path/entropy.rs`.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use rand::rngs::SmallRng;
use smallvec::SmallVec;

use crate::endpoint::ConnectError;
use crate::endpoint::table::Key;
use crate::path::entropy::{Lane, Move, RouteChooser};
use crate::types::{EndpointConfig, LocalAddress, LocalIndex, Route, SourceSlot};
use crate::wire::{Gid, HELLO_ADDRESSES_MAX, PlaneAddress, PlaneId};

/// The routes of a connection; see the file's head.
#[derive(Debug)]
pub(crate) struct Routes {
    chooser: RouteChooser,
    slots: u8,
    /// Addresses that packets of the peer may come from.
    peers: SmallVec<[IpAddr; 4]>,
}

/// Whether `ip` may be the address of one host.
fn may_be_a_host(ip: IpAddr) -> bool {
    let is_broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !ip.is_unspecified() && !ip.is_multicast() && !is_broadcast
}

/// Whether two addresses can send to each other as far as their kind tells.
fn same_kind(a: IpAddr, b: IpAddr) -> bool {
    match (a, b) {
        (IpAddr::V4(_), IpAddr::V4(_)) => true,
        (IpAddr::V6(a), IpAddr::V6(b)) => a.is_unicast_link_local() == b.is_unicast_link_local(),
        _ => false,
    }
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
            slots,
            peers: SmallVec::from_slice(&[dest]),
        })
    }

    /// Takes the addresses of the peer's HELLO: a lane for every plane that both ends are on.
    pub(crate) fn learn(&mut self, config: &EndpointConfig, addresses: &[PlaneAddress]) {
        let first = self.first();
        let mut lanes = vec![first];
        self.peers.truncate(1);
        for address in addresses.iter().take(HELLO_ADDRESSES_MAX) {
            let ip = address.gid.to_ip();
            if !may_be_a_host(ip) {
                continue;
            }
            if !self.peers.contains(&ip) {
                self.peers.push(ip);
            }
            let plane = address.plane.0;
            if lanes.iter().any(|lane| lane.plane == plane) {
                continue;
            }
            let own = config
                .locals
                .iter()
                .position(|local| local.plane == plane && same_kind(local.ip, ip));
            let Some(own) = own.filter(|own| *own <= usize::from(u8::MAX)) else {
                continue;
            };
            let destination = socket_address(ip, first.destination.port(), &config.locals[own]);
            lanes.push(Lane {
                plane,
                local: LocalIndex(own as u8),
                destination,
            });
        }
        self.chooser = RouteChooser::new(lanes, self.slots);
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

    /// The `turn`-th of a sequence of routes: lanes in turn, and another source port each time that all were taken.
    pub(crate) fn nth(&self, turn: usize) -> Route {
        let lanes = self.chooser.all();
        let lane = &lanes[turn % lanes.len()];
        Route {
            local: lane.local,
            source: self.slot(turn / lanes.len()),
            destination: lane.destination,
        }
    }

    /// A route over a certain lane.
    pub(crate) fn over(&self, lane: &Lane, turn: usize) -> Route {
        Route {
            local: lane.local,
            source: self.slot(turn),
            destination: lane.destination,
        }
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
            })
    }
}
