//! One path over a model of a network, by random seeds: loss in both directions, routes of different length, moves,
//! dead routes, receivers that do not run, and, in the wildest profile, a network that breaks every promise of order.
//! Whatever happens, every packet is acknowledged exactly once, within bounded time, and a timer runs until then; where
//! the network keeps its promises, no retransmission is in vain.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rstest::rstest;

use super::*;
use crate::types::Time;
use crate::wire::{BaseFlags, PathBlock, PathId};

const RECORDS: u32 = 3_000;
const PACKET_NS: u64 = 300;
const ROUTES: usize = 4;
/// The receiver acknowledges this many packets together, or what it has after this time.
const ACK_PACKETS: u32 = 8;
const ACK_NS: u64 = 8_000;
const CHAOS_SEEDS: u64 = 200;

/// What the network and the receiver do to a path.
#[derive(Clone, Copy, Debug)]
struct Profile {
    loss: f64,
    ack_loss: f64,
    /// Largest difference between the delays of routes.
    skew_ns: u64,
    /// Largest additional delay of an acknowledgement: they overtake each other.
    ack_jitter_ns: u64,
    /// Largest additional delay of single packets, in violation of order.
    jitter_ns: u64,
    duplication: f64,
    /// Time between voluntary moves; 0 for none.
    move_every_ns: u64,
    /// Chance that a route dies when it is moved to, and for how long.
    death: f64,
    death_ns: u64,
    /// Chance, with each arrival, that the receiver stops, and for how long at most.
    pause: f64,
    pause_ns: u64,
}

const CALM: Profile = Profile {
    loss: 0.0,
    ack_loss: 0.0,
    skew_ns: 0,
    ack_jitter_ns: 0,
    jitter_ns: 0,
    duplication: 0.0,
    move_every_ns: 0,
    death: 0.0,
    death_ns: 0,
    pause: 0.0,
    pause_ns: 0,
};

#[derive(Clone, Copy, Debug)]
struct Flight {
    sent: Sent,
    psn: Option<Psn>,
    flags: BaseFlags,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrives(Flight),
    Told(PathBlock),
}

#[derive(Clone, Copy, Default)]
struct RouteState {
    delay_ns: u64,
    free_at: Time,
    last_arrival: Time,
    dead_until: Time,
}

struct Link {
    profile: Profile,
    random: SmallRng,
    now: Time,
    events: BinaryHeap<(Reverse<(Time, u64)>, usize)>,
    bodies: Vec<Event>,
    tx: PathTx<u32>,
    rx: PathRx,
    routes: [RouteState; ROUTES],
    route: usize,
    next_record: u32,
    next_move: Time,
    ack_pending: u32,
    ack_at: Option<Time>,
    paused_until: Time,
    acked: Vec<u32>,
    received: u32,
    lost_in_network: u32,
    retransmissions: u32,
    rtos: u32,
    unmarked: bool,
}

impl Link {
    fn new(profile: Profile, seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let now = Time::from_ns(random.random_range(0..1 << 39));
        let psn = Psn(random.random_range(u32::MAX - RECORDS..=u32::MAX));
        let epoch = Epoch(random.random());
        let base_ns = random.random_range(2_000..50_000);
        let mut routes = [RouteState::default(); ROUTES];
        for route in &mut routes {
            route.delay_ns = base_ns + random.random_range(0..=profile.skew_ns);
        }
        let driving = if seed.is_multiple_of(2) {
            Driving::Busy
        } else {
            Driving::Sockets
        };
        Self {
            profile,
            now,
            events: BinaryHeap::new(),
            bodies: Vec::new(),
            tx: PathTx::starting_at(
                PathId(0),
                Constants::new(driving, <&Algorithm>::default()),
                now,
                psn,
                epoch,
            ),
            rx: PathRx::starting_at(PathId(0), psn),
            routes,
            route: 0,
            next_record: 0,
            next_move: now + profile.move_every_ns,
            ack_pending: 0,
            ack_at: None,
            paused_until: now,
            acked: Vec::new(),
            received: 0,
            lost_in_network: 0,
            retransmissions: 0,
            rtos: 0,
            unmarked: false,
            random,
        }
    }

    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.random.random_bool(probability)
    }

    fn schedule(&mut self, at: Time, event: Event) {
        let index = self.bodies.len();
        self.bodies.push(event);
        self.events.push((Reverse((at, index as u64)), index));
    }

    fn emit(&mut self, flight: Flight) {
        let route = &mut self.routes[self.route];
        route.free_at = route.free_at.max(self.now) + PACKET_NS;
        let arrival = (route.free_at + route.delay_ns).max(route.last_arrival);
        route.last_arrival = arrival;
        let dead = self.now < route.dead_until;
        if dead || self.chance(self.profile.loss) {
            self.lost_in_network += u32::from(flight.psn.is_some());
            return;
        }
        let jitter = |random: &mut SmallRng, ns: u64| random.random_range(0..=ns);
        let late = jitter(&mut self.random, self.profile.jitter_ns);
        self.schedule(arrival + late, Event::Arrives(flight));
        if self.chance(self.profile.duplication) {
            let again = jitter(&mut self.random, 100_000);
            self.schedule(arrival + again, Event::Arrives(flight));
        }
    }

    fn bare(&mut self, kind: Bare, flags: BaseFlags) {
        let sent = self.tx.send_bare(self.now, kind);
        self.emit(Flight {
            sent,
            psn: None,
            flags,
        });
    }

    /// Sends whatever may be sent. The only path of its connection, it never rests.
    fn pump(&mut self) {
        while let Some((psn, _)) = self.tx.next_lost() {
            let sent = self.tx.send_again(self.now, psn);
            self.retransmissions += 1;
            self.unmarked = true;
            self.emit(Flight {
                sent,
                psn: Some(psn),
                flags: BaseFlags::RETRANSMISSION,
            });
        }
        while self.next_record < RECORDS && self.tx.room(self.now) > 0 {
            let sent = self.tx.send_new(self.now, self.next_record, 4_096);
            self.next_record += 1;
            self.unmarked = true;
            self.emit(Flight {
                sent,
                psn: Some(sent.psn),
                flags: BaseFlags::NONE,
            });
        }
        if self.next_record == RECORDS && self.unmarked {
            self.unmarked = false;
            self.bare(Bare::Marker, BaseFlags::MARKER);
        }
    }

    fn move_path(&mut self) {
        self.route = (self.route + self.random.random_range(1..ROUTES)) % ROUTES;
        if self.chance(self.profile.death) {
            self.routes[self.route].dead_until = self.now + self.profile.death_ns;
        }
        self.tx.move_to(self.now);
    }

    fn on_arrival(&mut self, flight: Flight) {
        if self.chance(self.profile.pause) {
            self.paused_until = self.now + self.random.random_range(0..self.profile.pause_ns);
        }
        let Sent { stamp, epoch, .. } = flight.sent;
        let arrival =
            self.rx
                .handle_packet(self.now, epoch, flight.psn, stamp, false, flight.flags);
        assert_ne!(arrival.verdict, Verdict::Beyond);
        self.received += u32::from(arrival.verdict == Verdict::New);
        self.ack_pending += 1;
        let copies = match arrival {
            Arrival {
                ack_twice: true, ..
            } => 2,
            Arrival {
                ack_at_once: true, ..
            } => 1,
            _ if self.ack_pending >= ACK_PACKETS => 1,
            _ => {
                self.ack_at = self.ack_at.or(Some(self.now + ACK_NS));
                return;
            }
        };
        self.tell(copies);
    }

    fn tell(&mut self, copies: u32) {
        self.ack_pending = 0;
        self.ack_at = None;
        let block = self.rx.block(self.now).expect("something has arrived");
        for _ in 0..copies {
            if !self.chance(self.profile.ack_loss) {
                let late = self.random.random_range(0..=self.profile.ack_jitter_ns);
                let at = self.now + self.routes[0].delay_ns + late;
                self.schedule(at, Event::Told(block));
            }
        }
    }

    fn on_timeout(&mut self) {
        match self.tx.handle_timeout(self.now, None) {
            PathAction::None | PathAction::Lost(_) => {}
            PathAction::Rto => self.rtos += 1,
            PathAction::Probe => self.bare(Bare::Probe, BaseFlags::PROBE),
            PathAction::MoveAndProbe => {
                self.move_path();
                self.bare(Bare::Probe, BaseFlags::PROBE);
            }
        }
    }

    /// Handles the earliest thing that is due. False when all is done.
    fn step(&mut self) -> bool {
        let timeout = self.tx.poll_timeout();
        assert!(
            self.tx.is_idle() || timeout.is_some(),
            "outstanding without a timer"
        );
        if self.tx.is_idle() && self.next_record == RECORDS {
            return false;
        }
        let opens_at = self.tx.opens_at();
        let arrival = self.events.peek().map(|(Reverse((at, _)), _)| *at);
        let next = [arrival, timeout, self.ack_at, opens_at]
            .into_iter()
            .flatten()
            .min()
            .expect("nothing will ever happen again");
        self.now = self.now.max(next);
        if arrival == Some(next) {
            let (_, index) = self.events.pop().expect("was peeked at");
            match self.bodies[index] {
                // It waits in the socket, in its place.
                Event::Arrives(_) if self.now < self.paused_until => {
                    let key = (self.paused_until, index as u64);
                    self.events.push((Reverse(key), index));
                }
                Event::Arrives(flight) => self.on_arrival(flight),
                Event::Told(block) => {
                    let outcome = self.tx.handle_block(self.now, &block, &mut self.acked);
                    assert!(!outcome.invalid);
                }
            }
        } else if self.ack_at == Some(next) {
            self.tell(1);
        } else if timeout == Some(next) {
            self.on_timeout();
        }
        if self.profile.move_every_ns > 0 && self.now >= self.next_move {
            self.next_move = self.now + self.profile.move_every_ns;
            self.move_path();
        }
        self.pump();
        true
    }

    fn run(&mut self, limit_ns: u64) {
        let start = self.now;
        self.pump();
        let mut steps = 0u32;
        while self.step() {
            steps += 1;
            assert!(steps < 2_000_000, "does not come to an end");
            let elapsed_ns = self.now.since_ns(start);
            assert!(elapsed_ns < limit_ns, "takes longer than {limit_ns} ns");
        }
        assert_eq!(self.received, RECORDS);
        self.acked.sort_unstable();
        assert_eq!(self.acked, (0..RECORDS).collect::<Vec<_>>());
        assert_eq!(
            (self.tx.packets_in_flight(), self.tx.bytes_in_flight()),
            (0, 0)
        );
        assert_eq!(self.tx.next_lost(), None);
    }

    fn spurious(&mut self) -> u16 {
        self.rx.block(self.now).map_or(0, |block| block.duplicates)
    }
}

/// Names the seed of a run that fails.
fn with_seeds(name: &str, seeds: std::ops::Range<u64>, run: impl Fn(u64)) {
    for seed in seeds {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
        assert!(result.is_ok(), "{name}: seed {seed} failed, see above");
    }
}

#[rstest]
fn a_lossy_link_that_keeps_order_costs_exactly_what_it_lost(
    #[values(0.0, 0.001, 0.01, 0.1, 0.3)] loss: f64,
    #[values(0.0, 0.01, 0.3)] ack_loss: f64,
) {
    let profile = Profile {
        loss,
        ack_loss,
        ack_jitter_ns: 10_000,
        ..CALM
    };
    with_seeds("lossy", 0..20, |seed| {
        let mut link = Link::new(profile, seed);
        link.run(10_000_000_000);
        assert_eq!(
            link.spurious() as u32,
            link.retransmissions - link.lost_in_network
        );
        assert!(link.spurious() as u32 <= link.rtos, "a verdict was wrong");
    });
}

#[rstest]
fn moves_between_routes_of_different_length_cost_nothing(
    #[values(0.0, 0.01, 0.1)] loss: f64,
    #[values(100_000, 500_000)] move_every_ns: u64,
) {
    let profile = Profile {
        loss,
        skew_ns: 3_000,
        move_every_ns,
        ..CALM
    };
    with_seeds("moves", 0..40, |seed| {
        let mut link = Link::new(profile, seed);
        link.run(10_000_000_000);
        assert!(link.spurious() as u32 <= link.rtos, "a verdict was wrong");
    });
}

#[rstest]
fn a_receiver_that_stops_for_a_while_costs_nothing(#[values(0.0, 0.01)] loss: f64) {
    let profile = Profile {
        loss,
        pause: 0.002,
        pause_ns: 3_000_000,
        ..CALM
    };
    with_seeds("pauses", 0..40, |seed| {
        let mut link = Link::new(profile, seed);
        link.run(20_000_000_000);
        assert!(link.spurious() as u32 <= link.rtos, "a verdict was wrong");
    });
}

#[test]
fn dead_routes_are_left() {
    let profile = Profile {
        loss: 0.01,
        ack_loss: 0.01,
        move_every_ns: 300_000,
        death: 0.3,
        death_ns: 50_000_000,
        ..CALM
    };
    with_seeds("deaths", 0..100, |seed| {
        Link::new(profile, seed).run(20_000_000_000);
    });
}

#[test]
fn whatever_the_network_does_everything_arrives_once() {
    with_seeds("chaos", 0..CHAOS_SEEDS, |seed| {
        let mut random = SmallRng::seed_from_u64(seed ^ 0xc0de);
        let mut up_to = |limit: f64| random.random_range(0.0..limit);
        let profile = Profile {
            loss: up_to(0.5),
            ack_loss: up_to(0.5),
            skew_ns: up_to(500_000.0) as u64,
            ack_jitter_ns: up_to(500_000.0) as u64,
            jitter_ns: up_to(200_000.0) as u64,
            duplication: up_to(0.1),
            move_every_ns: up_to(1_000_000.0) as u64 + 10_000,
            death: up_to(0.1),
            death_ns: up_to(50_000_000.0) as u64,
            pause: up_to(0.005),
            pause_ns: up_to(20_000_000.0) as u64 + 1,
        };
        Link::new(profile, seed).run(120_000_000_000);
    });
}
