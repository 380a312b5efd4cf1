//! Requests: what a program asks for next, with all the memory that it needs, and what must come of it.

use metaroce_proto::types::{Operation, Payload, SendRequest, Sge, SgeList, Status};
use rand::Rng;

use super::{Lease, PoolKind, sge};
use crate::AgentId;
use crate::checker::{Expect, Kind, Message};
use crate::content::Content;
use crate::memory::{Memory, Span};
use crate::workload::{Draw, Mistake, Mix};
use crate::world::World;

/// Inline requests are at most so long.
const INLINE_BYTES_MAX: u32 = 220;

/// A request under construction.
struct Plan {
    kind: Kind,
    operation: Operation,
    length: u32,
    content: Content,
    sources: Vec<Span>,
    landing: Vec<Span>,
    target: Option<Span>,
    found: Option<u64>,
    leases: Vec<Lease>,
    fence: bool,
    expect: Expect,
    fault: Option<Status>,
    /// Instead of what `sources` or `landing` say.
    entries: Option<Vec<Sge>>,
}

impl Plan {
    fn new(kind: Kind, operation: Operation, length: u32, content: Content) -> Self {
        Self {
            kind,
            operation,
            length,
            content,
            sources: Vec::new(),
            landing: Vec::new(),
            target: None,
            found: None,
            leases: Vec::new(),
            fence: false,
            expect: Expect::Success,
            fault: None,
            entries: None,
        }
    }
}

impl World {
    /// Submits the next request of `id`; false if there is no memory for it now.
    pub(crate) fn submit_next(&mut self, id: AgentId) -> bool {
        let payload_bytes = u32::from(self.nodes[self.programs[id.0].node.0].config.payload_bytes);
        let program = &mut self.programs[id.0];
        let half = program.workload.messages / 2;
        let mistake = program
            .workload
            .mistake
            .filter(|_| program.left == half.max(1));
        // The last request is a SEND: when that has arrived, everything has. One WRITE with immediate says the same.
        let all_tell = program.workload.mix == Mix::WRITES_IMM;
        let draw = if program.left == 1 && !all_tell {
            Draw::Send
        } else {
            program.workload.mix.draw(&mut program.rng)
        };
        let length = program.workload.draw_bytes(&mut program.rng, payload_bytes);
        let done = match mistake {
            Some(mistake) => self.submit_mistake(id, mistake),
            None => self.submit_draw(id, draw, length),
        };
        if done {
            self.programs[id.0].left -= 1;
        }
        done
    }

    fn submit_draw(&mut self, id: AgentId, draw: Draw, length: u32) -> bool {
        match draw {
            Draw::Send => {
                let rng = &mut self.programs[id.0].rng;
                let (kind, operation) = match rng.random_range(0..4) {
                    0 => {
                        let imm = rng.random();
                        (Kind::SendImm(imm), Operation::SendImm(imm))
                    }
                    1 => {
                        let key = rng.random();
                        (Kind::SendInv(key), Operation::SendInv(key))
                    }
                    _ => (Kind::Send, Operation::Send),
                };
                let content = Content::new(rng.random());
                self.with_source(id, Plan::new(kind, operation, length, content))
                    .is_some_and(|plan| self.submit(id, plan))
            }
            Draw::Write => self
                .plan_write(id, length, false)
                .is_some_and(|plan| self.submit(id, plan)),
            Draw::WriteImm => self
                .plan_write(id, length, true)
                .is_some_and(|plan| self.submit(id, plan)),
            Draw::Read => self
                .plan_read(id, length)
                .is_some_and(|plan| self.submit(id, plan)),
            Draw::Atomic => self.submit_atomic(id),
            Draw::WriteRead => self.submit_write_read(id, length),
            Draw::ReadSend => self.submit_read_send(id, length),
        }
    }

    /// Gives a plan its bytes to send: inline, or in memory.
    fn with_source(&mut self, id: AgentId, mut plan: Plan) -> Option<Plan> {
        let program = &mut self.programs[id.0];
        if plan.length <= INLINE_BYTES_MAX && program.rng.random_ratio(1, 3) {
            return Some(plan);
        }
        let most = program.workload.sges;
        let lease = self.lease(id, PoolKind::Source)?;
        plan.sources = self.scatter(id, lease, plan.length, most);
        plan.leases.push(lease);
        let memory = &mut self.nodes[self.programs[id.0].node.0].memory;
        if memory.is_hollow() {
            return Some(plan);
        }
        let mut offset = 0;
        for span in &plan.sources {
            if let Some(bytes) = memory.bytes_mut(span.region, span.addr, u64::from(span.length)) {
                bytes.copy_from_slice(plan.content.bytes(offset, span.length));
            }
            offset += span.length;
        }
        Some(plan)
    }

    /// A place at the peer for `length` bytes.
    fn lease_target(&mut self, id: AgentId, length: u32) -> Option<(Lease, Span)> {
        let peer = self.programs[id.0].peer;
        let program = &mut self.programs[id.0];
        let relaxed = program
            .rng
            .random_ratio(program.workload.relaxed_percent.min(100), 100);
        let pool = if relaxed {
            PoolKind::Relaxed
        } else {
            PoolKind::Strict
        };
        let lease = self.lease(peer, pool)?;
        let skip = self.programs[id.0].rng.random_range(0..64u64);
        let pool = &self.programs[peer.0].pools[pool as usize];
        Some((
            lease,
            Span {
                region: pool.region,
                addr: pool.start(lease.slot) + skip,
                length,
            },
        ))
    }

    fn plan_write(&mut self, id: AgentId, length: u32, imm: bool) -> Option<Plan> {
        let (lease, target) = self.lease_target(id, length)?;
        let rng = &mut self.programs[id.0].rng;
        let (remote_addr, rkey) = (target.addr, Memory::rkey(target.region));
        let (kind, operation) = if imm {
            let imm = rng.random();
            (
                Kind::WriteImm(imm),
                Operation::WriteImm {
                    remote_addr,
                    rkey,
                    imm,
                },
            )
        } else {
            (Kind::Write, Operation::Write { remote_addr, rkey })
        };
        let mut plan = Plan::new(kind, operation, length, Content::new(rng.random()));
        plan.target = Some(target);
        plan.leases.push(lease);
        match self.with_source(id, plan) {
            Some(plan) => Some(plan),
            None => {
                self.release(lease);
                None
            }
        }
    }

    /// A READ of the peer's constant bytes.
    fn plan_read(&mut self, id: AgentId, length: u32) -> Option<Plan> {
        let peer = self.programs[id.0].peer;
        let (region, content, readable_bytes) = self.programs[peer.0].readable;
        let at = self.programs[id.0]
            .rng
            .random_range(0..=readable_bytes - length);
        let base = self.nodes[self.programs[peer.0].node.0].memory.base(region);
        let operation = Operation::Read {
            remote_addr: base + u64::from(at),
            rkey: Memory::rkey(region),
        };
        let lease = self.lease(id, PoolKind::Landing)?;
        let most = self.programs[id.0].workload.sges;
        let mut plan = Plan::new(Kind::Read, operation, length, content.skip(at));
        plan.landing = self.scatter(id, lease, length, most);
        plan.leases.push(lease);
        Some(plan)
    }

    fn submit_atomic(&mut self, id: AgentId) -> bool {
        let peer = self.programs[id.0].peer;
        let region = self.programs[peer.0].cells;
        let remote_addr = self.nodes[self.programs[peer.0].node.0].memory.base(region);
        let rkey = Memory::rkey(region);
        let Some(lease) = self.lease(id, PoolKind::Landing) else {
            return false;
        };
        let program = &mut self.programs[id.0];
        let found = program.peer_cell;
        let (operation, after) = if program.rng.random() {
            let add = program.rng.random();
            (
                Operation::FetchAdd {
                    remote_addr,
                    rkey,
                    add,
                },
                found.wrapping_add(add),
            )
        } else {
            let compare = if program.rng.random() {
                found
            } else {
                program.rng.random()
            };
            let swap = program.rng.random();
            let after = if compare == found { swap } else { found };
            (
                Operation::CompareSwap {
                    remote_addr,
                    rkey,
                    compare,
                    swap,
                },
                after,
            )
        };
        program.peer_cell = after;
        let mut plan = Plan::new(Kind::Atomic, operation, 8, Content::new(0));
        plan.found = Some(found);
        plan.landing = self.scatter(id, lease, 8, 1);
        plan.leases.push(lease);
        self.submit(id, plan)
    }

    /// A WRITE, and a READ that must find what it wrote.
    fn submit_write_read(&mut self, id: AgentId, length: u32) -> bool {
        let Some(mut write) = self.plan_write(id, length, false) else {
            return false;
        };
        let Some(target) = write.target else {
            return false;
        };
        let Some(lease) = self.lease(id, PoolKind::Landing) else {
            return self.submit(id, write);
        };
        let content = write.content;
        let operation = Operation::Read {
            remote_addr: target.addr,
            rkey: Memory::rkey(target.region),
        };
        let mut read = Plan::new(Kind::Read, operation, length, content);
        read.landing = self.scatter(id, lease, length, 2);
        read.leases.push(lease);
        // The target is free when both are done.
        read.leases.push(write.leases.remove(0));
        self.submit(id, write) && self.submit(id, read)
    }

    /// A READ, and a fenced SEND of what it brought.
    fn submit_read_send(&mut self, id: AgentId, length: u32) -> bool {
        let Some(mut read) = self.plan_read(id, length) else {
            return false;
        };
        let mut send = Plan::new(Kind::Send, Operation::Send, length, read.content);
        send.sources = read.landing.clone();
        send.leases.append(&mut read.leases);
        send.fence = true;
        self.submit(id, read) && self.submit(id, send)
    }

    fn submit(&mut self, id: AgentId, plan: Plan) -> bool {
        self.next_cookie += 1;
        let cookie = (id.0 as u64) << 32 | self.next_cookie & 0xffff_ffff;
        let program = &mut self.programs[id.0];
        let solicited = plan.kind.consumes() && program.rng.random_ratio(1, 5);
        let fence = plan.fence
            || program
                .rng
                .random_ratio(program.workload.fence_percent.min(100), 100);
        let spans = if plan.landing.is_empty() {
            &plan.sources
        } else {
            &plan.landing
        };
        let inline = spans.is_empty()
            && plan.entries.is_none()
            && !matches!(plan.kind, Kind::Read | Kind::Atomic);
        let payload = if inline {
            Payload::Inline(plan.content.bytes(0, plan.length).iter().copied().collect())
        } else {
            let entries: SgeList = match &plan.entries {
                Some(entries) => entries.iter().copied().collect(),
                None => spans.iter().map(sge).collect(),
            };
            Payload::Gather(entries)
        };
        let message = Message {
            cookie,
            kind: plan.kind,
            length: plan.length,
            content: plan.content,
            solicited,
            expect: plan.expect,
            sources: plan.sources,
            landing: plan.landing,
            target: plan.target,
            found: plan.found,
        };
        program.leases.push_back(plan.leases);
        let (node, qp) = (program.node, program.qp);
        self.ledger.submit(self.now, id, message);
        let request = SendRequest {
            cookie,
            operation: plan.operation,
            payload,
            length: plan.length,
            fence,
            solicited,
            fault: plan.fault,
        };
        self.nodes[node.0].endpoint.submit(self.now, qp, request);
        self.wake(node, self.now);
        true
    }

    // ---- Requests that must fail ----

    fn submit_mistake(&mut self, id: AgentId, mistake: Mistake) -> bool {
        let Some(mut plan) = self.plan_mistake(id, mistake) else {
            return false;
        };
        plan.expect = Expect::Failure(mistake.status());
        let peer = self.programs[id.0].peer;
        self.ledger.allow(peer, Status::Flushed);
        self.ledger.allow(peer, Status::RetryExceeded);
        self.submit(id, plan)
    }

    fn plan_mistake(&mut self, id: AgentId, mistake: Mistake) -> Option<Plan> {
        let peer = self.programs[id.0].peer;
        let peer_node = self.programs[peer.0].node;
        let of_peer = |world: &Self, region| world.nodes[peer_node.0].memory.base(region);
        let nobodys_key = 0xdead_beef;
        let program = &mut self.programs[id.0];
        let length = 1 + program
            .rng
            .random_range(0..program.workload.max_bytes.min(4000));
        let content = Content::new(1);
        let (forbidden, foreign, cells) = (
            self.programs[peer.0].forbidden,
            self.programs[peer.0].foreign,
            self.programs[peer.0].cells,
        );
        let write = |remote_addr, rkey| {
            Plan::new(
                Kind::Write,
                Operation::Write { remote_addr, rkey },
                length,
                content,
            )
        };
        let plan = match mistake {
            Mistake::WriteKey => write(0x1000, nobodys_key),
            Mistake::WriteBounds => write(
                of_peer(self, cells) + 64 - u64::from(length) + 1,
                Memory::rkey(cells),
            ),
            Mistake::WriteRights => write(of_peer(self, forbidden), Memory::rkey(forbidden)),
            Mistake::WriteDomain => write(of_peer(self, foreign), Memory::rkey(foreign)),
            Mistake::WriteLocalKey => write(of_peer(self, cells), Memory::lkey(cells)),
            Mistake::WriteImmKey => {
                let operation = Operation::WriteImm {
                    remote_addr: 0x1000,
                    rkey: nobodys_key,
                    imm: [1, 2, 3, 4],
                };
                Plan::new(Kind::WriteImm([1, 2, 3, 4]), operation, length, content)
            }
            Mistake::ReadKey => {
                let mut plan = self.plan_read(id, length)?;
                plan.operation = Operation::Read {
                    remote_addr: 0x1000,
                    rkey: nobodys_key,
                };
                return Some(plan);
            }
            Mistake::ReadLanding => {
                let mut plan = self.plan_read(id, length)?;
                plan.landing.clear();
                plan.entries = Some(vec![Sge {
                    addr: 0x1000,
                    length,
                    lkey: nobodys_key,
                }]);
                return Some(plan);
            }
            Mistake::AtomicKey | Mistake::AtomicAlignment => {
                return self.plan_wrong_atomic(id, mistake);
            }
            Mistake::SendTooLong => {
                // Longer than any receive of the peer.
                let length = self.programs[id.0].workload.max_bytes + 1;
                Plan::new(Kind::Send, Operation::Send, length, content)
            }
            Mistake::SendLocalKey => {
                let mut plan = Plan::new(Kind::Send, Operation::Send, length, content);
                plan.entries = Some(vec![Sge {
                    addr: 0x1000,
                    length,
                    lkey: nobodys_key,
                }]);
                return Some(plan);
            }
            Mistake::Fault => {
                let mut plan = Plan::new(Kind::Send, Operation::Send, length, content);
                plan.fault = Some(Status::LocalProtection);
                plan
            }
        };
        self.with_source(id, plan)
    }

    fn plan_wrong_atomic(&mut self, id: AgentId, mistake: Mistake) -> Option<Plan> {
        let peer = self.programs[id.0].peer;
        let cells = self.programs[peer.0].cells;
        let base = self.nodes[self.programs[peer.0].node.0].memory.base(cells);
        let (remote_addr, rkey) = match mistake {
            Mistake::AtomicKey => (base, 0xdead_beef),
            _ => (base + 4, Memory::rkey(cells)),
        };
        let lease = self.lease(id, PoolKind::Landing)?;
        let operation = Operation::FetchAdd {
            remote_addr,
            rkey,
            add: 1,
        };
        let mut plan = Plan::new(Kind::Atomic, operation, 8, Content::new(0));
        plan.found = Some(0);
        plan.landing = self.scatter(id, lease, 8, 1);
        plan.leases.push(lease);
        Some(plan)
    }
}
