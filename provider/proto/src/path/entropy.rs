//! Which routes paths take: the first spread, and where to move when a route does not answer.
//!
//! A *lane* is a pair of a local and a remote address on the same plane; within a lane the source socket is the only
//! entropy that ECMP sees. `conn/` builds the lanes from both ends' HELLO and calls this with a random generator.

use std::net::{IpAddr, SocketAddr};

use rand::Rng;

use crate::types::{LocalAddress, LocalIndex, Route, SourceSlot};

/// A pair of addresses that can reach each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lane {
    /// Plane, as the local end numbers it.
    pub plane: u8,
    /// Where from.
    pub local: LocalIndex,
    /// Where to.
    pub destination: SocketAddr,
}

/// Where a path moves to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// The new route.
    pub route: Route,
    /// It is the route of another path, port and all: take a fresh port when nothing is outstanding any more.
    pub copied: bool,
}

/// Chooses routes of one connection.
#[derive(Clone, Debug)]
pub struct RouteChooser {
    lanes: Vec<Lane>,
    slots: u8,
}

impl RouteChooser {
    /// Over `lanes`, with `slots` source sockets for each local address. Nothing to choose from is an error of the
    /// caller's, who must not open a connection to a peer that it has no route to.
    ///
    /// # Panics
    /// If there is no lane or no source socket.
    #[must_use]
    pub fn new(lanes: Vec<Lane>, slots: u8) -> Self {
        assert!(!lanes.is_empty() && slots > 0, "no route to choose");
        Self { lanes, slots }
    }

    /// The lanes between two ends: pairs of one address family on planes of the same number. Ends that number their
    /// planes differently are taken to be joined everywhere.
    #[must_use]
    pub fn lanes(locals: &[LocalAddress], remotes: &[(IpAddr, u8)], port: u16) -> Vec<Lane> {
        let pairs = |same_plane: bool| -> Vec<Lane> {
            let mut lanes = Vec::new();
            for (index, local) in locals.iter().enumerate() {
                for (ip, plane) in remotes {
                    let reachable = local.ip.is_ipv4() == ip.is_ipv4();
                    if reachable && (!same_plane || *plane == local.plane) {
                        lanes.push(Lane {
                            plane: local.plane,
                            local: LocalIndex(index as u8),
                            destination: SocketAddr::new(*ip, port),
                        });
                    }
                }
            }
            lanes
        };
        let joined = pairs(true);
        if joined.is_empty() {
            pairs(false)
        } else {
            joined
        }
    }

    /// All lanes.
    #[must_use]
    pub fn all(&self) -> &[Lane] {
        &self.lanes
    }

    /// First routes of `paths` paths: lanes in turn, so that planes share them evenly, and for the paths of one lane
    /// different source sockets in random order, as long as there are enough. The first lane is random too: of a
    /// connection that sends little the first path carries most, and those of a host must not all meet on one plane.
    pub fn spread(&self, paths: u8, random: &mut impl Rng) -> Vec<Route> {
        let first = random.random_range(0..self.lanes.len());
        let mut offsets: Vec<u8> = self
            .lanes
            .iter()
            .map(|_| random.random_range(0..self.slots))
            .collect();
        (0..usize::from(paths))
            .map(|path| {
                let lane = (first + path) % self.lanes.len();
                let slot = offsets[lane];
                offsets[lane] = (slot + 1) % self.slots;
                self.route(lane, slot)
            })
            .collect()
    }

    /// Where a path on `present` moves when its route does not answer (WIRE 4.18). `newest_acked` is the route of the path whose
    /// present route was acknowledged last: its plane works. On another plane the path takes that plane with a port
    /// of its own choice; on the same plane the port must be what is broken, so it takes that port as well. Without
    /// such a path: a random route other than the present one.
    pub fn move_from(
        &self,
        present: Route,
        newest_acked: Option<Route>,
        random: &mut impl Rng,
    ) -> Move {
        if let Some(shown) = newest_acked.filter(|shown| *shown != present) {
            let copied = self.plane_of(shown) == self.plane_of(present);
            let mut route = shown;
            if !copied {
                route.source = SourceSlot(random.random_range(0..self.slots));
            }
            return Move { route, copied };
        }
        Move {
            route: self.any_other(present, random),
            copied: false,
        }
    }

    /// A port for a path that copied its route (WIRE 4.19): another one on the same lane, of those that `taken` does not name if
    /// there are such.
    pub fn fresh_port(&self, present: Route, taken: &[Route], random: &mut impl Rng) -> Route {
        let start = random.random_range(0..self.slots);
        let candidates = (0..self.slots)
            .map(|step| Route {
                source: SourceSlot(
                    ((u16::from(start) + u16::from(step)) % u16::from(self.slots)) as u8,
                ),
                ..present
            })
            .filter(|route| *route != present);
        candidates
            .clone()
            .find(|route| !taken.contains(route))
            .or_else(|| candidates.clone().next())
            .unwrap_or(present)
    }

    /// Plane of a route.
    #[must_use]
    pub fn plane_of(&self, route: Route) -> Option<u8> {
        self.lanes
            .iter()
            .find(|lane| lane.local == route.local && lane.destination == route.destination)
            .map(|lane| lane.plane)
    }

    /// A random route other than `present`, where there is another.
    pub fn any_other(&self, present: Route, random: &mut impl Rng) -> Route {
        let slots = usize::from(self.slots);
        let start = random.random_range(0..self.lanes.len() * slots);
        let route = self.route(start / slots, (start % slots) as u8);
        if route != present {
            return route;
        }
        let next = (start + 1) % (self.lanes.len() * slots);
        self.route(next / slots, (next % slots) as u8)
    }

    fn route(&self, lane: usize, slot: u8) -> Route {
        Route {
            local: self.lanes[lane].local,
            source: SourceSlot(slot),
            destination: self.lanes[lane].destination,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::Ipv4Addr;

    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    fn ip(plane: u8, host: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, plane, 0, host))
    }

    fn local(plane: u8) -> LocalAddress {
        LocalAddress {
            ip: ip(plane, 1),
            scope_id: 0,
            plane,
        }
    }

    fn chooser(planes: u8, slots: u8) -> RouteChooser {
        let locals: Vec<_> = (0..planes).map(local).collect();
        let remotes: Vec<_> = (0..planes).map(|plane| (ip(plane, 2), plane)).collect();
        RouteChooser::new(RouteChooser::lanes(&locals, &remotes, 24791), slots)
    }

    fn random() -> SmallRng {
        SmallRng::seed_from_u64(7)
    }

    #[test]
    fn lanes_join_equal_planes_or_else_all_of_one_family() {
        assert_eq!(chooser(4, 1).all().len(), 4);
        let lanes = RouteChooser::lanes(&[local(0), local(1)], &[(ip(9, 2), 9)], 1);
        assert_eq!(lanes.len(), 2);
        let six = "2001:db8::1".parse().unwrap();
        assert!(RouteChooser::lanes(&[local(0)], &[(six, 0)], 1).is_empty());
    }

    #[test]
    fn the_first_spread_uses_every_plane_evenly_and_every_port_once() {
        let chooser = chooser(4, 16);
        let routes = chooser.spread(16, &mut random());
        assert_eq!(routes.iter().collect::<HashSet<_>>().len(), 16);
        for plane in 0..4 {
            let on_plane = routes
                .iter()
                .filter(|route| chooser.plane_of(**route) == Some(plane));
            assert_eq!(on_plane.count(), 4);
        }
    }

    #[test]
    fn the_first_paths_of_many_connections_share_the_planes() {
        let chooser = chooser(4, 16);
        let mut random = random();
        let mut on_plane = [0; 4];
        for _ in 0..400 {
            let first = chooser.spread(16, &mut random)[0];
            on_plane[usize::from(chooser.plane_of(first).unwrap())] += 1;
        }
        assert!(on_plane.iter().all(|count| *count > 60), "{on_plane:?}");
    }

    // WIRE 4.18
    #[test]
    fn a_move_goes_to_the_plane_that_works() {
        let chooser = chooser(2, 8);
        let routes = chooser.spread(4, &mut random());
        let other_plane = chooser.move_from(routes[0], Some(routes[1]), &mut random());
        assert_eq!(
            chooser.plane_of(other_plane.route),
            chooser.plane_of(routes[1])
        );
        assert!(!other_plane.copied);
        let same_plane = chooser.move_from(routes[0], Some(routes[2]), &mut random());
        assert_eq!(same_plane.route, routes[2]);
        assert!(same_plane.copied);
    }

    // WIRE 4.18
    #[test]
    fn without_any_acknowledgement_a_move_goes_anywhere_else() {
        let chooser = chooser(2, 2);
        let present = chooser.spread(1, &mut random())[0];
        let mut random = random();
        let seen: HashSet<_> = (0..200)
            .map(|_| chooser.move_from(present, None, &mut random).route)
            .collect();
        assert_eq!(seen.len(), 3);
        assert!(!seen.contains(&present));
    }

    #[test]
    fn with_one_route_only_a_move_stays() {
        let chooser = chooser(1, 1);
        let present = chooser.spread(1, &mut random())[0];
        let stays = chooser.move_from(present, Some(present), &mut random());
        assert_eq!(stays.route, present);
        assert_eq!(chooser.fresh_port(present, &[], &mut random()), present);
    }

    // WIRE 4.19
    #[test]
    fn a_fresh_port_is_one_that_nobody_has_while_there_is_one() {
        let chooser = chooser(1, 4);
        let routes = chooser.spread(4, &mut random());
        let taken = &routes[..3];
        for _ in 0..20 {
            let fresh = chooser.fresh_port(routes[0], taken, &mut random());
            assert_eq!(fresh, routes[3]);
        }
        let crowded = chooser.fresh_port(routes[0], &routes, &mut random());
        assert_ne!(crowded, routes[0]);
    }
}
