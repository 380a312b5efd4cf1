//! When is a connection due? A heap of deadlines with lazy removal: a connection whose deadline moved to a later time
//! leaves its old entry in the heap and is looked at once too often, which costs less than a search.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::endpoint::table::ConnectionIndex;
use crate::types::Time;

/// Deadlines of the connections; see the file's head.
#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Time, ConnectionIndex)>>,
    /// Earliest entry of each connection that is in the heap and counts.
    armed: Vec<Option<Time>>,
}

impl Timers {
    /// The connection wants to be looked at by `deadline`. An earlier entry of it stays.
    pub(crate) fn arm(&mut self, connection: ConnectionIndex, deadline: Time) {
        let at = connection.0 as usize;
        if self.armed.len() <= at {
            self.armed.resize(at + 1, None);
        }
        if self.armed[at].is_none_or(|armed| deadline < armed) {
            self.armed[at] = Some(deadline);
            self.heap.push(Reverse((deadline, connection)));
        }
    }

    /// The connection is gone.
    pub(crate) fn disarm(&mut self, connection: ConnectionIndex) {
        if let Some(armed) = self.armed.get_mut(connection.0 as usize) {
            *armed = None;
        }
    }

    /// A connection to look at by `now`; it must be armed again.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<ConnectionIndex> {
        while let Some(&Reverse((at, connection))) = self.heap.peek() {
            let armed = &mut self.armed[connection.0 as usize];
            if *armed != Some(at) {
                self.heap.pop();
                continue;
            }
            if at > now {
                return None;
            }
            *armed = None;
            self.heap.pop();
            return Some(connection);
        }
        None
    }

    /// The earliest deadline, or an earlier time; never a later one.
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
