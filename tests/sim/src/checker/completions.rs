//! Completions: each exactly once, in order, with the right status and fields, when everything is in place.

use metaroce_proto::event::{ReceiveDone, ReceiveKind, SendDone};
use metaroce_proto::types::{QpId, RqId, Status, Time};

use super::{Expect, Kind, Ledger, Message, PostedReceive};
use crate::memory::{Memory, Span};
use crate::{AgentId, NodeId};

/// A look at a node's memory.
pub struct Look<'a> {
    /// The node.
    pub node: NodeId,
    /// Its memory.
    pub memory: &'a Memory,
}

impl Look<'_> {
    /// Whether `spans` hold `wanted`.
    fn holds(&self, spans: &[Span], wanted: &[u8]) -> bool {
        if self.memory.is_hollow() {
            return true;
        }
        let mut rest = wanted;
        for span in spans {
            let (now, later) = rest.split_at(rest.len().min(span.length as usize));
            if self.memory.bytes(span.region, span.addr, now.len() as u64) != Some(now) {
                return false;
            }
            rest = later;
        }
        rest.is_empty()
    }
}

impl Ledger {
    /// A send completion was reported. Returns the agent and the place of its request in the order.
    pub fn send_done(
        &mut self,
        now: Time,
        look: &Look<'_>,
        done: &SendDone,
    ) -> Option<(AgentId, usize)> {
        let Some(id) = self.agent_of(look.node, done.qp) else {
            self.break_down(
                now,
                format!(
                    "{}: completion {:x} of {:?}, which is gone",
                    look.node, done.cookie, done.qp
                ),
            );
            return None;
        };
        let agent = &self.agents[id.0];
        let index = agent.done;
        let Some(message) = agent
            .submitted
            .get(index)
            .map(|submitted| submitted.message.clone())
        else {
            self.break_down(
                now,
                format!(
                    "{id}: completion {:x} with nothing outstanding",
                    done.cookie
                ),
            );
            return None;
        };
        if message.cookie != done.cookie {
            let what = format!(
                "{id}: request {:x} completes before request {:x}",
                done.cookie, message.cookie
            );
            self.break_down(now, what);
            return None;
        }
        let submitted_at = agent.submitted[index].at;
        let agent = &mut self.agents[id.0];
        agent.done += 1;
        let since = std::mem::replace(&mut agent.last_done, now).max(submitted_at);
        self.completed += 1;
        self.check_status(now, id, index, &message, done.status);
        if done.status == Status::Success {
            self.completed_bytes += u64::from(message.length);
            self.longest_wait_ns = self.longest_wait_ns.max(now.since_ns(since));
            self.check_in_place(now, look, id, index, &message);
        }
        let node = look.node;
        self.close_sources(node, &message.sources);
        self.close_windows(node, &message.landing);
        // What was flushed may still be under way: its target stays open, and nobody uses it again.
        if let (Some(target), Status::Success) = (message.target, done.status)
            && let Some(peer) = self.agents[id.0]
                .peer
                .filter(|peer| !self.agents[peer.0].memory_gone)
        {
            let peer_node = self.agents[peer.0].node;
            self.close_windows(peer_node, &[target]);
        }
        Some((id, index))
    }

    fn check_status(
        &mut self,
        now: Time,
        id: AgentId,
        index: usize,
        message: &Message,
        status: Status,
    ) {
        let agent = &mut self.agents[id.0];
        if let Some(first) = agent.failed {
            if status != Status::Flushed {
                let what = format!(
                    "{id}: request {index} ends with {status:?} after one that ended with {first:?}"
                );
                self.violate(now, what);
            }
            return;
        }
        let allowed = agent.may_fail.contains(&status);
        let right = match (message.expect, status) {
            (Expect::Success | Expect::Either(_), Status::Success) => true,
            (Expect::Failure(wanted) | Expect::Either(wanted), status) if status == wanted => true,
            (Expect::Failure(_), Status::Success) => false,
            _ => allowed,
        };
        if status != Status::Success {
            agent.failed = Some(status);
        }
        if !right {
            let what = format!(
                "{id}: request {index} ({:?} of {} bytes) ends with {status:?}, expected {:?}",
                message.kind, message.length, message.expect
            );
            self.violate(now, what);
        }
    }

    fn check_in_place(
        &mut self,
        now: Time,
        look: &Look<'_>,
        id: AgentId,
        index: usize,
        message: &Message,
    ) {
        let submitted = &self.agents[id.0].submitted[index];
        // A program that is gone reports nothing, although its endpoint may have gone on for a moment.
        let heard = submitted.received
            || self.agents[id.0]
                .peer
                .is_none_or(|peer| self.agents[peer.0].dead);
        let describe = || {
            format!(
                "{id}: request {index} ({:?} of {} bytes) succeeds",
                message.kind, message.length
            )
        };
        let problem = match message.kind {
            Kind::Write if !submitted.placed.covers(message.length) => Some("but is not in place"),
            kind if kind.consumes() && !heard => Some("but the peer has not reported it"),
            Kind::Read
                if !look.holds(&message.landing, message.content.bytes(0, message.length)) =>
            {
                Some("but its bytes are not there")
            }
            Kind::Atomic => {
                let found = message.found.unwrap_or_default().to_ne_bytes();
                let shared = message.found.is_none();
                (!shared && !look.holds(&message.landing, &found))
                    .then_some("but did not find what it must")
            }
            _ => None,
        };
        if let Some(problem) = problem {
            let what = format!("{} {problem}", describe());
            self.violate(now, what);
        }
    }

    /// A receive completion was reported. Returns the agent and the receive.
    pub fn receive_done(
        &mut self,
        now: Time,
        look: &Look<'_>,
        done: &ReceiveDone,
    ) -> Option<(AgentId, PostedReceive)> {
        let Some(id) = self.agent_of(look.node, done.qp) else {
            self.break_down(
                now,
                format!(
                    "{}: receive completion of {:?}, which is gone",
                    look.node, done.qp
                ),
            );
            return None;
        };
        let queue = self.agents[id.0].queue;
        let Some(receive) = self.take_posted(queue, done.cookie) else {
            let what = format!(
                "{id}: receive {:x} completes out of order, twice, or was never posted",
                done.cookie
            );
            self.break_down(now, what);
            return None;
        };
        self.check_receive(now, look, id, &receive, done);
        self.close_windows(look.node, &receive.spans);
        Some((id, receive))
    }

    /// Takes a receive out of the books: the oldest of its queue, or, of a shared queue, any that is posted.
    fn take_posted(&mut self, queue: (NodeId, RqId), cookie: u64) -> Option<PostedReceive> {
        let queue = self.queues.get_mut(&queue)?;
        let at = queue
            .posted
            .iter()
            .position(|(receive, done)| receive.cookie == cookie && !done)?;
        if !queue.shared && at > 0 {
            return None;
        }
        queue.posted[at].1 = true;
        let receive = queue.posted[at].0.clone();
        while queue.posted.front().is_some_and(|(_, done)| *done) {
            queue.posted.pop_front();
            queue.first += 1;
        }
        Some(receive)
    }

    fn check_receive(
        &mut self,
        now: Time,
        look: &Look<'_>,
        id: AgentId,
        receive: &PostedReceive,
        done: &ReceiveDone,
    ) {
        if done.status == Status::Flushed {
            return;
        }
        let Some(peer) = self.agents[id.0].peer else {
            return;
        };
        let sender = &self.agents[peer.0];
        let Some(index) = sender.consuming.get(sender.received).copied() else {
            self.violate(
                now,
                format!("{id}: a receive completes that nothing was sent for: {done:?}"),
            );
            return;
        };
        let message = sender.submitted[index].message.clone();
        let capacity: u64 = receive
            .spans
            .iter()
            .map(|span| u64::from(span.length))
            .sum();
        let is_send = matches!(
            message.kind,
            Kind::Send | Kind::SendImm(_) | Kind::SendInv(_)
        );
        let wanted = if is_send && u64::from(message.length) > capacity {
            Status::LocalLength
        } else {
            Status::Success
        };
        let earlier_missing = sender.submitted[..index]
            .iter()
            .enumerate()
            .skip(sender.write_front)
            .find(|(_, earlier)| {
                earlier.message.kind.writes() && !earlier.placed.covers(earlier.message.length)
            });
        let earlier_missing = earlier_missing.map(|(earlier, _)| earlier);
        let own_missing =
            message.kind.writes() && !sender.submitted[index].placed.covers(message.length);
        let describe = format!(
            "{id}: receive {:x} of request {index} of {peer} ({:?})",
            done.cookie, message.kind
        );
        if done.status != wanted {
            self.violate(
                now,
                format!(
                    "{describe} ends with {:?}, expected {wanted:?}",
                    done.status
                ),
            );
        }
        if done.status != Status::Success {
            return;
        }
        let agent = &mut self.agents[peer.0];
        agent.received += 1;
        agent.submitted[index].received = true;
        let kind = match message.kind {
            Kind::SendImm(imm) => ReceiveKind::SendImm(imm),
            Kind::SendInv(key) => ReceiveKind::SendInv(key),
            Kind::WriteImm(imm) => ReceiveKind::WriteImm(imm),
            _ => ReceiveKind::Send,
        };
        let fields = (done.kind, done.byte_length, done.source_qpn, done.solicited);
        let right = (kind, message.length, agent.qpn, message.solicited);
        if fields != right {
            self.violate(
                now,
                format!("{describe} reports {fields:?}, expected {right:?}"),
            );
        }
        if is_send && !look.holds(&receive.spans, message.content.bytes(0, message.length)) {
            self.violate(
                now,
                format!("{describe} completes, but its bytes are not there"),
            );
        }
        if own_missing {
            self.violate(
                now,
                format!("{describe} completes, but its bytes are not all in place"),
            );
        }
        if let Some(earlier) = earlier_missing {
            self.violate(
                now,
                format!("{describe} completes before the earlier WRITE {earlier} is in place"),
            );
        }
    }

    /// A queue pair was reported to have failed by itself.
    pub fn qp_failed(&mut self, now: Time, node: NodeId, qp: QpId) -> Option<AgentId> {
        let Some(id) = self.agent_of(node, qp) else {
            self.break_down(now, format!("{node}: {qp:?} fails, which is gone"));
            return None;
        };
        let agent = &mut self.agents[id.0];
        let twice = std::mem::replace(&mut agent.reported_failure, true);
        agent.ended = true;
        if twice {
            self.break_down(now, format!("{id}: its failure is reported twice"));
        }
        Some(id)
    }

    /// The host flushes what is still posted to a queue: of the queue pair's own.
    pub fn flush_receives(&mut self, id: AgentId) {
        let queue = self.agents[id.0].queue;
        let Some(posted) = self.queues.get_mut(&queue).filter(|queue| !queue.shared) else {
            return;
        };
        let left: Vec<_> = posted.posted.drain(..).collect();
        posted.first += left.len() as u64;
        for (receive, done) in left {
            if !done {
                self.close_windows(queue.0, &receive.spans);
            }
        }
    }
}
