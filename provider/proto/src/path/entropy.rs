//! Which routes paths take: the first spread, and where to move when a route does not answer.
//!
//! A *lane* is a pair of a local and a remote address on the same plane; within a lane the source socket is the only
//! entropy that ECMP sees. `conn/` builds the lanes from both ends' HELLO and calls this with a random generator.

use std::net::SocketAddr;

use rand::Rng;
use smallvec::SmallVec;

use crate::types::{LocalIndex, Route, SourceSlot};

/// A pair of addresses that can reach each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lane {
    /// Plane: the number that both ends have for it, or else the only one of them that has it.
    pub plane: u8,
    /// Where from.
    pub local: LocalIndex,
    /// Where to.
    pub destination: SocketAddr,
}

impl Lane {
    /// Whether a route is on it.
    #[inline]
    #[must_use]
    pub fn has(&self, route: &Route) -> bool {
        self.local == route.local && self.destination == route.destination
    }

    /// The route over it with that source.
    #[must_use]
    pub fn over(&self, source: SourceSlot) -> Route {
        Route {
            local: self.local,
            source,
            destination: self.destination,
        }
    }
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
    /// Places of the lanes that may be chosen; never empty.
    open: SmallVec<[u8; 4]>,
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
        let open = (0..lanes.len()).map(|at| at as u8).collect();
        Self { lanes, open, slots }
    }

    /// From now on only lanes for which `is_open` is true (of their place) are chosen; all, if it is true of none.
    pub fn set_open(&mut self, is_open: impl Fn(usize) -> bool) {
        let all = 0..self.lanes.len();
        self.open = all.filter(|at| is_open(*at)).map(|at| at as u8).collect();
        if self.open.is_empty() {
            self.open = (0..self.lanes.len()).map(|at| at as u8).collect();
        }
    }

    /// The lanes that may be chosen.
    pub fn open(&self) -> impl ExactSizeIterator<Item = &Lane> + Clone {
        self.open.iter().map(|at| &self.lanes[usize::from(*at)])
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
        let first = random.random_range(0..self.open.len());
        let mut offsets: Vec<u8> = self
            .open
            .iter()
            .map(|_| random.random_range(0..self.slots))
            .collect();
        (0..usize::from(paths))
            .map(|path| {
                let turn = (first + path) % self.open.len();
                let slot = offsets[turn];
                offsets[turn] = (slot + 1) % self.slots;
                self.route(turn, slot)
            })
            .collect()
    }

    /// Where a path on `present` moves when its route does not answer (WIRE 4.18). `newest_acked` is the route of the path whose
    /// present route was acknowledged last: its plane works. On another plane the path takes that plane with a port
    /// of its own choice; on the same plane the port must be what is broken, so it takes that port as well. Without
    /// such a path, or where its plane is not open: a random route other than the present one.
    pub fn move_from(
        &self,
        present: Route,
        newest_acked: Option<Route>,
        random: &mut impl Rng,
    ) -> Move {
        let fits = |shown: &Route| *shown != present && self.is_open(shown);
        if let Some(shown) = newest_acked.filter(fits) {
            let copied = self.lane_of(shown) == self.lane_of(present);
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

    /// Place of the lane of a route.
    #[must_use]
    pub fn lane_of(&self, route: Route) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.has(&route))
    }

    fn is_open(&self, route: &Route) -> bool {
        self.open().any(|lane| lane.has(route))
    }

    /// A random route other than `present`, where there is another.
    pub fn any_other(&self, present: Route, random: &mut impl Rng) -> Route {
        let slots = usize::from(self.slots);
        let start = random.random_range(0..self.open.len() * slots);
        let route = self.route(start / slots, (start % slots) as u8);
        if route != present {
            return route;
        }
        let next = (start + 1) % (self.open.len() * slots);
        self.route(next / slots, (next % slots) as u8)
    }

    fn route(&self, turn: usize, slot: u8) -> Route {
        self.lanes[usize::from(self.open[turn])].over(SourceSlot(slot))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    fn chooser(planes: u8, slots: u8) -> RouteChooser {
        let lane = |plane| Lane {
            plane,
            local: LocalIndex(plane),
            destination: SocketAddr::from(([10, plane, 0, 2], 24791)),
        };
        RouteChooser::new((0..planes).map(lane).collect(), slots)
    }

    fn random() -> SmallRng {
        SmallRng::seed_from_u64(7)
    }

    #[test]
    fn only_open_lanes_are_chosen_unless_there_are_none() {
        let mut chooser = chooser(4, 2);
        let lanes = |chooser: &RouteChooser, routes: &[Route]| -> HashSet<_> {
            let lane_of = |route: &Route| chooser.lane_of(*route).unwrap();
            routes.iter().map(lane_of).collect()
        };
        let before = chooser.spread(4, &mut random());
        chooser.set_open(|at| at % 2 == 1);
        let random = &mut random();
        let open = HashSet::from([1, 3]);
        assert_eq!(lanes(&chooser, &chooser.spread(16, random)), open);
        // What was heard last came over a plane that is closed now.
        let shown = before.iter().find(|one| one.local == LocalIndex(2));
        let moved: Vec<Route> = (0..50)
            .flat_map(|_| {
                [
                    chooser.any_other(before[0], random),
                    chooser.move_from(before[0], None, random).route,
                    chooser.move_from(before[0], shown.copied(), random).route,
                ]
            })
            .collect();
        assert_eq!(lanes(&chooser, &moved), open);
        chooser.set_open(|_| false);
        assert_eq!(lanes(&chooser, &chooser.spread(16, random)).len(), 4);
    }

    #[test]
    fn the_first_spread_uses_every_plane_evenly_and_every_port_once() {
        let chooser = chooser(4, 16);
        let routes = chooser.spread(16, &mut random());
        assert_eq!(routes.iter().collect::<HashSet<_>>().len(), 16);
        for plane in 0..4 {
            let on_plane = routes
                .iter()
                .filter(|route| chooser.lane_of(**route) == Some(plane));
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
            on_plane[chooser.lane_of(first).unwrap()] += 1;
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
            chooser.lane_of(other_plane.route),
            chooser.lane_of(routes[1])
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
