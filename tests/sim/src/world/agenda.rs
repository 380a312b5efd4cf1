//! What will happen, in the order of time, and of planning where the time is the same.
//!
//! Most of what happens is a packet at the end of a link, and links keep the order of their packets: each link has a queue
//! of its own, of which only the first one counts. Nodes are woken earlier than they had planned all the time: of the turns
//! of a node, too, only the next one counts. So there is one next event of each link, of each node, and of everything
//! else; which of these is the first of all is found by a knock-out tournament, in which a new event of one source plays
//! again only the matches of that source.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use metaroce_proto::types::Time;

use super::What;
use crate::NodeId;
use crate::fabric::Hop;
use crate::network::Datagram;

/// When something happens, as which of all plans it was made, and whose event it is: in 64, 44 and 20 bits, so that one
/// comparison is enough.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key(u128);

const SOURCE_BITS: u32 = 20;

impl Key {
    /// Of a source without an event.
    const NEVER: Self = Self(u128::MAX);

    fn new(at: Time, order: u64, source: usize) -> Self {
        let low = order << SOURCE_BITS | source as u64;
        Self(u128::from(at.as_ns()) << 64 | u128::from(low))
    }

    fn at(self) -> Time {
        Time::from_ns((self.0 >> 64) as u64)
    }

    fn source(self) -> usize {
        self.0 as usize & ((1 << SOURCE_BITS) - 1)
    }
}

/// See the file's head. The sources are the links, the nodes, and everything else.
#[derive(Debug)]
pub(super) struct Agenda {
    /// The tournament: below a winner at `i` are the two at `2 i` and `2 i + 1`; the second half are the sources.
    winners: Vec<Key>,
    links: Vec<VecDeque<(Key, Hop, Box<Datagram>)>>,
    /// Turns of each node as they were planned, from the last to the first, those that others took the place of as well: a
    /// node that comes to plan a turn for the same time again has the place of its first plan.
    turns: Vec<Vec<Key>>,
    /// Everything else, and its place in `whats`: the heap moves its entries all the time, and so they are small.
    others: BinaryHeap<Reverse<(Key, u32)>>,
    whats: Vec<Option<What>>,
    free: Vec<u32>,
    /// Of the last plan that was made; of the last event that was taken.
    order: u64,
    last: Key,
    /// The node whose turn was taken last, until it is known when its next one is: mostly it plans one at once.
    in_turn: Option<usize>,
}

impl Agenda {
    /// Nothing will happen yet.
    pub(super) fn new(links: usize, nodes: usize) -> Self {
        let sources = links + nodes + 1;
        assert!(
            sources <= 1 << SOURCE_BITS,
            "a world of {sources} sources of events"
        );
        Self {
            winners: vec![Key::NEVER; 2 * sources.next_power_of_two()],
            links: std::iter::repeat_with(VecDeque::new).take(links).collect(),
            turns: vec![Vec::new(); nodes],
            others: BinaryHeap::new(),
            whats: Vec::new(),
            free: Vec::new(),
            order: 0,
            last: Key(0),
            in_turn: None,
        }
    }

    /// When the next event is.
    pub(super) fn next(&mut self) -> Option<Time> {
        if let Some(source) = self.in_turn.take() {
            self.play(source, Key::NEVER);
        }
        let first = self.winners[1];
        (first != Key::NEVER).then(|| first.at())
    }

    /// Takes the next event.
    pub(super) fn pop(&mut self) -> Option<(Time, What)> {
        let at = self.next()?;
        let first = self.winners[1];
        self.last = first;
        let source = first.source();
        let what = if let Some(link) = self.links.get_mut(source) {
            let (_, hop, datagram) = link.pop_front()?;
            let next = link.front().map_or(Key::NEVER, |(key, ..)| *key);
            self.play(source, next);
            What::Hop(hop, datagram)
        } else if let Some(turns) = self.turns.get_mut(source - self.links.len()) {
            drop_until(turns, first);
            self.in_turn = Some(source);
            What::Turn(NodeId(source - self.links.len()))
        } else {
            let Reverse((_, place)) = self.others.pop()?;
            let next = self.others.peek().map_or(Key::NEVER, |next| next.0.0);
            self.play(source, next);
            self.free.push(place);
            self.whats[place as usize].take()?
        };
        Some((at, what))
    }

    /// A packet reaches the end of its link at `at`.
    pub(super) fn plan_hop(&mut self, at: Time, hop: Hop, datagram: Box<Datagram>) {
        let source = hop.link().0 as usize;
        let key = Key::new(at, self.order + 1, source);
        let link = &mut self.links[source];
        match link.back() {
            Some((last, ..)) if *last > key => return self.plan(at, What::Hop(hop, datagram)),
            Some(_) => {}
            None => self.play(source, key),
        }
        self.order += 1;
        self.links[source].push_back((key, hop, datagram));
    }

    /// The next turn of a node is at `at`, and not when it was planned before.
    pub(super) fn plan_turn(&mut self, at: Time, node: NodeId) {
        self.order += 1;
        let source = self.links.len() + node.0;
        self.in_turn = self.in_turn.filter(|taken| *taken != source);
        let key = Key::new(at, self.order, source);
        let turns = &mut self.turns[node.0];
        drop_until(turns, self.last);
        let later = turns.iter().rposition(|planned| planned.at() > at);
        turns.insert(later.map_or(0, |last| last + 1), key);
        let first = turns.iter().rfind(|planned| planned.at() >= at);
        let next = first.copied().unwrap_or(key);
        self.play(source, next);
    }

    /// Something else happens at `at`.
    pub(super) fn plan(&mut self, at: Time, what: What) {
        self.order += 1;
        let source = self.links.len() + self.turns.len();
        let place = self.free.pop().unwrap_or_else(|| {
            self.whats.push(None);
            self.whats.len() as u32 - 1
        });
        self.whats[place as usize] = Some(what);
        let key = Key::new(at, self.order, source);
        self.others.push(Reverse((key, place)));
        if self.others.peek().is_some_and(|first| first.0.0 == key) {
            self.play(source, key);
        }
    }

    /// The next event of a source is `key` from now on.
    fn play(&mut self, source: usize, key: Key) {
        let winners = self.winners.as_mut_slice();
        let mut at = winners.len() / 2 + source;
        let mut winner = key;
        winners[at] = key;
        while at > 1 {
            winner = winner.min(winners[at ^ 1]);
            at /= 2;
            if winners[at] == winner {
                break;
            }
            winners[at] = winner;
        }
    }
}

/// Forgets the plans up to `last`, which are over.
fn drop_until(plans: &mut Vec<Key>, last: Key) {
    while plans.last().is_some_and(|plan| *plan <= last) {
        plans.pop();
    }
}

#[cfg(test)]
mod tests {
    use metaroce_proto::types::SourceSlot;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::AgentId;
    use crate::fabric::{Fabric, FabricConfig, Shape};

    const NODES: usize = 3;

    /// All plans in one list, as they were made.
    #[derive(Default)]
    struct Model {
        plans: Vec<(Time, String)>,
        turns: [Option<Time>; NODES],
    }

    impl Model {
        /// The first of the earliest; turns that were planned and are not waited for any more do not happen.
        fn pop(&mut self) -> Option<(Time, String)> {
            loop {
                let first = (0..self.plans.len()).min_by_key(|at| self.plans[*at].0)?;
                let (at, what) = self.plans.remove(first);
                let node = (0..NODES).find(|node| what == turn(*node));
                if node.is_none_or(|node| self.turns[node].take_if(|next| *next == at).is_some()) {
                    return Some((at, what));
                }
            }
        }
    }

    fn turn(node: usize) -> String {
        format!("{:?}", What::Turn(NodeId(node)))
    }

    fn packet(number: u32) -> Box<Datagram> {
        Box::new(Datagram {
            from: NodeId(number as usize % NODES),
            to: NodeId((number as usize + 1) % NODES),
            plane: 0,
            slot: SourceSlot(0),
            destination: ([10, 0, 0, 1], 24_791).into(),
            ce: false,
            bytes: number.to_be_bytes()[..].into(),
            uncarried_bytes: 0,
        })
    }

    #[test]
    fn events_happen_in_the_order_of_time_and_then_of_planning() {
        let mut rng = SmallRng::seed_from_u64(1);
        let config = FabricConfig::new(1, Shape::SingleSwitch, 8_000);
        let mut fabric = Fabric::new(&config, NODES, SmallRng::seed_from_u64(1));
        let mut agenda = Agenda::new(fabric.links(), NODES);
        let mut model = Model::default();
        let mut now = Time::from_ns(1_000);
        for step in 0..100_000 {
            // Few instants, so that much is planned for the same one.
            let at = now + rng.random_range(0..12);
            match rng.random_range(0..8) {
                0 => {
                    let what = What::Overdue(AgentId(step), now);
                    model.plans.push((at, format!("{what:?}")));
                    agenda.plan(at, what);
                }
                1 | 2 => {
                    let mut datagram = packet(step as u32);
                    let (_, hop) = fabric.send(now, &mut datagram).expect("the link is up");
                    let what = What::Hop(hop, datagram.clone());
                    model.plans.push((at, format!("{what:?}")));
                    agenda.plan_hop(at, hop, datagram);
                }
                3 | 4 => {
                    let node = rng.random_range(0..NODES);
                    let next = &mut model.turns[node];
                    if next.is_none_or(|next| at < next) {
                        *next = Some(at);
                        model.plans.push((at, turn(node)));
                        agenda.plan_turn(at, NodeId(node));
                    }
                }
                _ => {
                    let taken = agenda.pop().map(|(at, what)| (at, format!("{what:?}")));
                    assert_eq!(taken, model.pop(), "step {step}");
                    now = taken.map_or(now, |(at, _)| at.max(now));
                }
            }
        }
        while let Some((at, what)) = agenda.pop() {
            assert_eq!(Some((at, format!("{what:?}"))), model.pop());
        }
        assert_eq!(model.pop(), None);
    }
}
