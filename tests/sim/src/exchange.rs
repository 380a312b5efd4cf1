//! What a collective operation exchanges: messages on flows between nodes, and which message waits for which. The same plan
//! runs over the transport (`program/exchange.rs`) and over the model of RoCEv2 (`rocev2`), and [`Progress`] writes down
//! when each message was submitted and when it had arrived.
//!
//! A node that waits does so for arrivals: the message that its program needs for the next step must be there whole.

use crate::NodeId;

/// See the file's head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// Sender and receiver of each flow.
    pub flows: Vec<[NodeId; 2]>,
    /// Messages of each flow.
    pub messages: u32,
    /// Bytes of each message.
    pub bytes: u32,
    /// Messages that each flow may begin with.
    pub first: u32,
    /// The flow that may send one message more when a message of this one has arrived.
    pub next: Vec<Option<usize>>,
    /// When it begins: what connects has done so by then, and rests.
    pub begins_ns: u64,
}

impl Exchange {
    /// Ring all-reduce of `bytes` on each of the nodes, which follow one another in the ring: 2 (n − 1) steps, in each of
    /// which every node sends one n-th of its bytes to the next one, as soon as what the last step brought is there.
    #[must_use]
    pub fn ring_all_reduce(ring: &[NodeId], bytes: u64) -> Self {
        let nodes = ring.len();
        let after = |at: usize| (at + 1) % nodes;
        Self {
            flows: (0..nodes).map(|at| [ring[at], ring[after(at)]]).collect(),
            messages: 2 * (nodes as u32 - 1),
            bytes: share(bytes, nodes),
            first: 1,
            next: (0..nodes).map(|at| Some(after(at))).collect(),
            begins_ns: 0,
        }
    }

    /// All-to-all of `bytes` on each of the nodes: one n-th of them goes to each node. All is submitted at once, as a group
    /// of sends and receives is, and in the order of pairwise exchange: to the next node first, then to the one after it.
    #[must_use]
    pub fn all_to_all(nodes: &[NodeId], bytes: u64) -> Self {
        let count = nodes.len();
        let round = |step| (0..count).map(move |from| [nodes[from], nodes[(from + step) % count]]);
        let flows: Vec<_> = (1..count).flat_map(round).collect();
        Self {
            messages: 1,
            bytes: share(bytes, count),
            first: 1,
            next: vec![None; flows.len()],
            flows,
            begins_ns: 0,
        }
    }

    /// One flow of `messages`, so many of them under way.
    #[must_use]
    pub fn stream(pair: [NodeId; 2], bytes: u32, messages: u32, depth: u32) -> Self {
        Self {
            flows: vec![pair],
            messages,
            bytes,
            first: depth,
            next: vec![Some(0)],
            begins_ns: 0,
        }
    }

    /// Nodes, from the first to the last that sends or receives.
    #[must_use]
    pub fn nodes(&self) -> usize {
        let last = self.flows.iter().flatten().map(|node| node.0 + 1).max();
        last.unwrap_or(0)
    }
}

/// One of `parts` equal parts; at least one byte.
fn share(bytes: u64, parts: usize) -> u32 {
    let share = bytes.div_ceil(parts as u64).max(1);
    u32::try_from(share).unwrap_or(u32::MAX)
}

/// A message, as it went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passed {
    /// Its flow.
    pub flow: usize,
    /// When it was submitted, from the start of the run.
    pub submitted_ns: u64,
    /// When all of it was there and its receiver knew.
    pub arrived_ns: Option<u64>,
}

/// How far an exchange is.
#[derive(Clone, Debug)]
pub struct Progress {
    plan: Exchange,
    /// Messages that each flow may have submitted, has submitted, and that have arrived.
    allowed: Vec<u32>,
    submitted: Vec<u32>,
    arrived: Vec<u32>,
    arrived_total: u64,
    /// All messages, in the order of submission; and the places of each flow's.
    passed: Vec<Passed>,
    places: Vec<Vec<usize>>,
}

impl Progress {
    /// Nothing was submitted.
    #[must_use]
    pub fn new(plan: Exchange) -> Self {
        let flows = plan.flows.len();
        Self {
            plan,
            allowed: vec![0; flows],
            submitted: vec![0; flows],
            arrived: vec![0; flows],
            arrived_total: 0,
            passed: Vec::new(),
            places: vec![Vec::new(); flows],
        }
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Exchange {
        &self.plan
    }

    /// A flow may begin.
    pub fn begin(&mut self, flow: usize) {
        self.allowed[flow] += self.plan.first;
    }

    /// Whether a flow may submit its next message.
    #[must_use]
    pub fn may_submit(&self, flow: usize) -> bool {
        self.submitted[flow] < self.allowed[flow].min(self.plan.messages)
    }

    /// It did.
    pub fn submitted(&mut self, flow: usize, now_ns: u64) {
        self.submitted[flow] += 1;
        self.places[flow].push(self.passed.len());
        self.passed.push(Passed {
            flow,
            submitted_ns: now_ns,
            arrived_ns: None,
        });
    }

    /// The next message of a flow has arrived. Returns the flow that may submit one more for that.
    pub fn arrived(&mut self, flow: usize, now_ns: u64) -> Option<usize> {
        let place = self.places[flow].get(self.arrived[flow] as usize)?;
        self.passed[*place].arrived_ns = Some(now_ns);
        self.arrived[flow] += 1;
        self.arrived_total += 1;
        let next = self.plan.next[flow]?;
        self.allowed[next] += 1;
        Some(next)
    }

    /// Whether everything has arrived.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.arrived_total == u64::from(self.plan.messages) * self.plan.flows.len() as u64
    }

    /// What went, in the order of submission.
    #[must_use]
    pub fn into_passed(self) -> Vec<Passed> {
        self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: usize) -> Vec<NodeId> {
        (0..count).map(NodeId).collect()
    }

    #[test]
    fn a_step_of_the_ring_waits_for_the_one_before() {
        let plan = Exchange::ring_all_reduce(&nodes(4), 4_000);
        assert_eq!((plan.flows.len(), plan.messages, plan.bytes), (4, 6, 1_000));
        let mut progress = Progress::new(plan);
        assert!(!progress.may_submit(2));
        (0..4).for_each(|flow| progress.begin(flow));
        for flow in 0..4 {
            assert!(progress.may_submit(flow));
            progress.submitted(flow, 10);
            assert!(!progress.may_submit(flow));
        }
        // What node 3 receives from node 2 is what it sends to node 0 then.
        assert_eq!(progress.arrived(2, 20), Some(3));
        assert!(progress.may_submit(3) && !progress.may_submit(2));
        assert!(!progress.is_done());
    }

    #[test]
    fn every_node_sends_to_every_other_once() {
        let plan = Exchange::all_to_all(&nodes(5), 5_000);
        let mut seen = plan.flows.clone();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!((seen.len(), plan.messages, plan.bytes), (20, 1, 1_000));
        assert!(seen.iter().all(|[from, to]| from != to));
        // No two of the same round go to the same node.
        let mut targets: Vec<_> = plan.flows[..5].iter().map(|[_, to]| to.0).collect();
        targets.sort_unstable();
        assert_eq!(targets, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn it_is_done_when_all_has_arrived() {
        let mut progress = Progress::new(Exchange::stream([NodeId(0), NodeId(1)], 9, 3, 2));
        progress.begin(0);
        let mut now_ns = 0;
        while progress.may_submit(0) {
            progress.submitted(0, now_ns);
            now_ns += 1;
            progress.arrived(0, now_ns);
        }
        assert!(progress.is_done());
        let passed = progress.into_passed();
        assert_eq!(passed.len(), 3);
        assert_eq!(passed[2].arrived_ns, Some(3));
    }
}
