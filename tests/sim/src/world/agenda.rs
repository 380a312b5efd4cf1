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
    /// Turns of each node, the next one last, behind later ones that were planned before it: if the node comes to plan a turn
    /// for the same time again, it has the place of the first plan.
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
            turns.pop();
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
        while let Some(next) = turns.last()
            && (next.at() < at || *next <= self.last)
        {
            turns.pop();
        }
        let later = turns.iter().rposition(|planned| planned.at() > at);
        turns.insert(later.map_or(0, |last| last + 1), key);
        let next = turns.last().copied().unwrap_or(key);
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
