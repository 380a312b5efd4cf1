//! Memory: what may be written and read when, and with what.

use std::ops::Range;

use metaroce_proto::types::{RqId, Time};

use super::{Kind, Ledger, NodeMemory, Target, Window};
use crate::memory::{KeyKind, RegionIndex, Span};
use crate::{AgentId, NodeId};

/// Where two equally long runs of bytes differ first, and how.
fn difference(wanted: &[u8], found: &[u8]) -> Option<String> {
    if wanted == found {
        return None;
    }
    let at = (0..wanted.len()).find(|at| wanted[*at] != found[*at])?;
    let show = |bytes: &[u8]| format!("{:02x?}", &bytes[at..bytes.len().min(at + 8)]);
    Some(format!(
        "from byte {at} of these on {} instead of {}",
        show(found),
        show(wanted)
    ))
}

impl NodeMemory {
    /// The window that some bytes are in, and where it begins. Mostly that of the bytes before them.
    fn find_window(&mut self, region: RegionIndex, bytes: Range<u64>) -> Option<(u64, Window)> {
        let is_in = |at: (RegionIndex, u64), window: &Window| {
            at.0 == region && at.1 <= bytes.start && bytes.end <= window.end
        };
        if let Some((at, window)) = self.last_window
            && bytes.start < window.end
            && is_in(at, &window)
        {
            return Some((at.1, window));
        }
        let (at, window) = self.windows.range(..=(region, bytes.start)).next_back()?;
        if !is_in(*at, window) {
            return None;
        }
        self.last_window = Some((*at, *window));
        Some((at.1, *window))
    }

    /// Whether sends may read some bytes now.
    fn is_source(&mut self, region: RegionIndex, bytes: Range<u64>) -> bool {
        let is_in = |source: &(RegionIndex, u64, u64)| {
            source.0 == region && source.1 <= bytes.start && bytes.end <= source.2
        };
        if self.last_source.as_ref().is_some_and(is_in) {
            return true;
        }
        let most = (region, bytes.start, u64::MAX);
        let from = self.sources.range(..=most).rev().map(|(source, _)| source);
        let of_region = from.take_while(|source| source.0 == region);
        self.last_source = of_region.take(4).find(|source| is_in(source)).copied();
        self.last_source.is_some()
    }
}

impl Ledger {
    pub(super) fn memory(&mut self, node: NodeId) -> &mut NodeMemory {
        if self.memories.len() <= node.0 {
            self.memories.resize_with(node.0 + 1, NodeMemory::default);
        }
        &mut self.memories[node.0]
    }

    pub(super) fn open_windows(&mut self, node: NodeId, spans: &[Span], target: Target) {
        let memory = self.memory(node);
        let mut offset = 0;
        for span in spans.iter().filter(|span| span.length > 0) {
            let window = Window {
                end: span.addr + u64::from(span.length),
                target,
                offset,
            };
            memory.last_window = None;
            let previous = memory.windows.insert((span.region, span.addr), window);
            debug_assert!(
                previous.is_none(),
                "programs give out memory once: {span:?} {previous:?}"
            );
            offset += span.length;
        }
    }

    pub(super) fn close_windows(&mut self, node: NodeId, spans: &[Span]) {
        let memory = self.memory(node);
        for span in spans.iter().filter(|span| span.length > 0) {
            memory.last_window = None;
            memory.windows.remove(&(span.region, span.addr));
        }
    }

    pub(super) fn close_sources(&mut self, node: NodeId, spans: &[Span]) {
        let memory = self.memory(node);
        for source in spans {
            let key = (
                source.region,
                source.addr,
                source.addr + u64::from(source.length),
            );
            if let Some(count) = memory.sources.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    memory.last_source = None;
                    memory.sources.remove(&key);
                }
            }
        }
    }

    /// An endpoint wrote to memory.
    pub fn placed(
        &mut self,
        now: Time,
        node: NodeId,
        (region, key): (RegionIndex, KeyKind),
        strict: bool,
        addr: u64,
        bytes: &[u8],
    ) {
        self.placed_bytes += bytes.len() as u64;
        let found = self
            .memories
            .get_mut(node.0)
            .and_then(|memory| memory.find_window(region, addr..addr + bytes.len() as u64));
        let Some((start, window)) = found else {
            let what = format!(
                "{node}: {} bytes at {region:?} {addr:#x} were written for no request",
                bytes.len()
            );
            self.violate(now, what);
            return;
        };
        let offset = window.offset + (addr - start) as u32;
        match window.target {
            Target::Write { agent, index } => {
                self.placed_write(now, agent, index, strict, offset, bytes)
            }
            Target::Landing { agent, index } => {
                self.placed_landing(now, agent, index, offset, bytes)
            }
            Target::Receive { queue, number } => {
                self.placed_receive(now, queue, number, offset, bytes)
            }
        }
        let should_be = match window.target {
            Target::Write { .. } => KeyKind::Remote,
            Target::Landing { .. } | Target::Receive { .. } => KeyKind::Local,
        };
        if key != should_be {
            self.violate(
                now,
                format!("{node}: {region:?} was written with its {key:?} key"),
            );
        }
    }

    fn placed_write(
        &mut self,
        now: Time,
        id: AgentId,
        index: usize,
        strict: bool,
        offset: u32,
        bytes: &[u8],
    ) {
        let responder_ended = self.agents[id.0]
            .peer
            .is_some_and(|peer| self.agents[peer.0].ended);
        let ignores = self.ignores_contents;
        let agent = &mut self.agents[id.0];
        let submitted = &mut agent.submitted[index];
        let (length, content) = (submitted.message.length, submitted.message.content);
        let end = offset + bytes.len() as u32;
        let wrong = match ignores {
            true => None,
            false => difference(content.bytes(offset, bytes.len() as u32), bytes),
        };
        submitted.placed.add(offset, end);
        let last_early = strict && end == length && !submitted.placed.covers(length);
        // Earlier WRITEs that are in place, as far as known.
        while agent.write_front < agent.submitted.len() {
            let front = &agent.submitted[agent.write_front];
            if front.message.kind.writes() && !front.placed.covers(front.message.length) {
                break;
            }
            agent.write_front += 1;
        }
        let overtakes = strict && agent.write_front < index;
        let front = agent.write_front;
        // Made only where it is needed: this is done for every packet.
        let describe =
            || format!("{id}: request {index} (WRITE of {length} bytes), bytes {offset} to {end}");
        if let Some(wrong) = wrong {
            self.violate(now, format!("{}: {wrong}", describe()));
        }
        if responder_ended {
            self.violate(
                now,
                format!(
                    "{}: written although the responder's queue pair is over",
                    describe()
                ),
            );
        }
        if last_early {
            self.violate(
                now,
                format!(
                    "{}: the last byte shows before the rest in a strict region",
                    describe()
                ),
            );
        }
        if overtakes {
            self.violate(
                now,
                format!(
                    "{}: shows in a strict region before request {front}",
                    describe()
                ),
            );
        }
    }

    fn placed_landing(&mut self, now: Time, id: AgentId, index: usize, offset: u32, bytes: &[u8]) {
        let ignores = self.ignores_contents;
        let agent = &mut self.agents[id.0];
        let submitted = &mut agent.submitted[index];
        let message = &submitted.message;
        let right = match (message.kind, message.found) {
            _ if ignores => true,
            (Kind::Atomic, Some(found)) => {
                bytes == &found.to_ne_bytes()[offset as usize..][..bytes.len()]
            }
            // Others use the cell too.
            (Kind::Atomic, None) => true,
            _ => message.content.bytes(offset, bytes.len() as u32) == bytes,
        };
        submitted.placed.add(offset, offset + bytes.len() as u32);
        let kind = message.kind;
        if !right {
            let what = format!(
                "{id}: request {index} ({kind:?}): the answer has wrong bytes at {offset}: {:02x?}",
                &bytes[..bytes.len().min(8)]
            );
            self.violate(now, what);
        }
        if self.agents[id.0].gone {
            self.violate(
                now,
                format!("{id}: request {index} ({kind:?}): answered although its life is over"),
            );
        }
    }

    fn placed_receive(
        &mut self,
        now: Time,
        queue: (NodeId, RqId),
        number: u64,
        offset: u32,
        bytes: &[u8],
    ) {
        if self.queues.get(&queue).is_none_or(|queue| queue.shared) {
            // Which message it is shows at the completion.
            return;
        }
        let owner = self.agents.iter().rposition(|agent| agent.queue == queue);
        if owner.is_some_and(|owner| self.agents[owner].dead) {
            // Its process is saying goodbye: nobody looks at it any more.
            return;
        }
        let peer = owner.and_then(|owner| self.agents[owner].peer);
        let sent = peer.and_then(|peer| {
            let peer = &self.agents[peer.0];
            Some(&peer.submitted[*peer.consuming.get(number as usize)?].message)
        });
        let Some(message) = sent else {
            self.violate(
                now,
                format!("receive {number} of {queue:?}: written although nothing was sent for it"),
            );
            return;
        };
        let end = offset + bytes.len() as u32;
        let right = end <= message.length
            && (self.ignores_contents
                || message.content.bytes(offset, bytes.len() as u32) == bytes);
        if !right {
            let what = format!(
                "receive {number} of {queue:?}: bytes {offset} to {end} are not those of the {:?} of {} bytes",
                message.kind, message.length
            );
            self.violate(now, what);
        }
        if owner.is_some_and(|owner| self.agents[owner].ended) {
            self.violate(
                now,
                format!("receive {number} of {queue:?}: written although its queue pair is over"),
            );
        }
    }

    /// An endpoint is about to read memory for a packet.
    pub fn gathered(
        &mut self,
        now: Time,
        node: NodeId,
        (region, key): (RegionIndex, KeyKind),
        addr: u64,
        length: u32,
    ) {
        if key == KeyKind::Remote {
            // The answer to a READ: the peer chose what.
            return;
        }
        let end = addr + u64::from(length);
        let allowed = self
            .memories
            .get_mut(node.0)
            .is_some_and(|memory| memory.is_source(region, addr..end));
        if !allowed {
            let what = format!(
                "{node}: {length} bytes at {region:?} {addr:#x} were read for no request in progress"
            );
            self.violate(now, what);
        }
    }
}
