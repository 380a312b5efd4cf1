//! When is a connection due? A heap of deadlines in which each connection has one entry at most, at a place that it knows:
//! however often deadlines move, and however far ahead they lie, the heap is not longer than the table of connections.

use crate::endpoint::table::ConnectionIndex;
use crate::types::Time;

/// A deadline that is put off by less stays where it is: looking once too often costs less than moving an entry with every
/// packet. Where it is put off by more, as when the only packet of a while is acknowledged, looking would cost a wake-up.
const PUT_OFF_NS: u64 = 4_000_000;

/// Place of a connection that is not armed.
const NOWHERE: u32 = u32::MAX;

/// Deadlines of the connections; see the file's head.
#[derive(Default)]
pub(crate) struct Timers {
    /// A binary heap: each entry is not earlier than the one at half its place.
    heap: Vec<(Time, ConnectionIndex)>,
    /// By connection: its place in `heap`.
    places: Vec<u32>,
}

impl Timers {
    /// The connection wants to be looked at by `deadline`. An entry that is a little earlier stays.
    pub(crate) fn arm(&mut self, connection: ConnectionIndex, deadline: Time) {
        let at = connection.0 as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, NOWHERE);
        }
        match self.places[at] {
            NOWHERE => {
                self.heap.push((deadline, connection));
                self.rise(self.heap.len() - 1);
            }
            place if deadline < self.heap[place as usize].0 => {
                self.heap[place as usize].0 = deadline;
                self.rise(place as usize);
            }
            place if deadline >= self.heap[place as usize].0 + PUT_OFF_NS => {
                self.heap[place as usize].0 = deadline;
                self.sink(place as usize);
            }
            _ => {}
        }
    }

    /// The connection is gone.
    pub(crate) fn disarm(&mut self, connection: ConnectionIndex) {
        let place = self.places.get(connection.0 as usize).copied();
        if let Some(place) = place.filter(|place| *place != NOWHERE) {
            self.remove(place as usize);
        }
    }

    /// A connection to look at by `now`; it must be armed again.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<ConnectionIndex> {
        let (at, connection) = *self.heap.first()?;
        (at <= now).then(|| {
            self.remove(0);
            connection
        })
    }

    /// The earliest deadline, or an earlier time; never a later one.
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.first().map(|(at, _)| *at)
    }

    fn remove(&mut self, place: usize) {
        let (_, connection) = self.heap.swap_remove(place);
        self.places[connection.0 as usize] = NOWHERE;
        if place < self.heap.len() {
            let risen = self.rise(place);
            self.sink(risen);
        }
    }

    /// Moves the entry at `place` towards the top while it is earlier; returns where it came to lie.
    fn rise(&mut self, mut place: usize) -> usize {
        while place > 0 {
            let above = (place - 1) / 2;
            if self.heap[above] <= self.heap[place] {
                break;
            }
            self.swap(above, place);
            place = above;
        }
        self.settle(place);
        place
    }

    /// Moves the entry at `place` away from the top while another one is earlier.
    fn sink(&mut self, mut place: usize) {
        loop {
            let below = 2 * place + 1;
            let earliest = (below..self.heap.len().min(below + 2))
                .min_by_key(|child| self.heap[*child])
                .filter(|child| self.heap[*child] < self.heap[place]);
            let Some(child) = earliest else { break };
            self.swap(child, place);
            place = child;
        }
        self.settle(place);
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.settle(a);
        self.settle(b);
    }

    fn settle(&mut self, place: usize) {
        let (_, connection) = self.heap[place];
        self.places[connection.0 as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    use std::collections::BTreeMap;

    #[test]
    fn an_earlier_deadline_replaces_a_later_one() {
        let mut timers = Timers::default();
        let (a, b) = (ConnectionIndex(0), ConnectionIndex(1));
        timers.arm(a, Time::from_ns(50));
        timers.arm(b, Time::from_ns(40));
        timers.arm(a, Time::from_ns(10));
        timers.arm(a, Time::from_ns(90));
        assert_eq!(timers.next(), Some(Time::from_ns(10)));
        assert_eq!(timers.pop_due(Time::from_ns(9)), None);
        assert_eq!(timers.pop_due(Time::from_ns(45)), Some(a));
        assert_eq!(timers.pop_due(Time::from_ns(45)), Some(b));
        assert_eq!(timers.pop_due(Time::from_ns(100)), None);
        timers.arm(a, Time::from_ns(60));
        timers.disarm(a);
        assert_eq!(timers.pop_due(Time::from_ns(100)), None);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn deadlines_that_come_and_go_leave_nothing_behind() {
        let mut timers = Timers::default();
        let mut rng = SmallRng::seed_from_u64(1);
        let mut model: BTreeMap<ConnectionIndex, Time> = BTreeMap::new();
        for step in 0..50_000_u64 {
            let connection = ConnectionIndex(rng.random_range(0..40));
            match rng.random_range(0..10) {
                0 => {
                    timers.disarm(connection);
                    model.remove(&connection);
                }
                1..=4 => {
                    let now = Time::from_ns(step * 10);
                    while let Some(due) = timers.pop_due(now) {
                        let at = model.remove(&due).expect("armed");
                        assert!(at <= now);
                    }
                    assert!(model.values().all(|at| *at > now));
                }
                _ => {
                    let deadline = Time::from_ns(
                        step * 10
                            + rng.random_range(0..5_000)
                                * [1, 2_000][usize::from(rng.random_bool(0.2))],
                    );
                    timers.arm(connection, deadline);
                    let entry = model.entry(connection).or_insert(deadline);
                    if deadline < *entry || deadline >= *entry + PUT_OFF_NS {
                        *entry = deadline;
                    }
                }
            }
            assert_eq!(timers.heap.len(), model.len());
            assert_eq!(timers.next(), model.values().min().copied());
        }
    }
}
