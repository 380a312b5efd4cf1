//! The event loop: events in virtual time one after the other, one thread, one random generator. Begin reading here.
//!
//! [`World::run`] runs a [`Scenario`] to its end: until all programs are done (or failed as they may), then until all is
//! quiet, within limits of virtual time and of events. `agenda.rs` keeps the events, `drive.rs` gives a node its turn, `faults.rs` does what the
//! scenario does to it, `found.rs` notes what came out.

mod agenda;
mod drive;
mod faults;
mod found;
mod silence;

use std::collections::HashMap;

use metaroce_proto::telemetry::Counters;
use metaroce_proto::types::{SourceSlot, Status, Time};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

use crate::checker::{Grants, Ledger};
use crate::exchange::Progress;
use crate::fabric::{Change, Hop, Links, Loss, Next};
use crate::network::Datagram;
use crate::node::Node;
use crate::program::{Lease, Program, State};
use crate::report::{Completion, Outcome, Sample};
use crate::scenario::{Fault, Scenario};
use crate::trace::{Fate, Seen, Show, Trace};
use crate::wires::Wires;
use crate::{AgentId, NodeId};
use agenda::Agenda;
use silence::Silence;

/// After the last completion everything must be acknowledged, closed and quiet within this time: a few of the longest
/// probe intervals and retries of set-up and end.
const QUIET_NS: u64 = 3_000_000_000;

/// Events in that time for each four hosts; more means that something ticks for ever. All paths to a peer that is gone are
/// probed every 20 ms.
const QUIET_EVENTS: u64 = 100_000;

/// What a program planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// To RTR.
    Connect,
    /// To RTS.
    Enable,
    /// Go on submitting.
    Submit,
    /// Post receives.
    Post(u32),
    /// The exchange begins.
    Begin,
}

#[derive(Debug)]
enum What {
    Turn(NodeId),
    Forward(Box<Datagram>),
    Hop(Hop, Box<Datagram>),
    Arrive(Box<Datagram>),
    Unreachable {
        node: NodeId,
        destination: std::net::SocketAddr,
        source: SourceSlot,
    },
    Act(AgentId, Action),
    /// Boxed: it is large and rare.
    Fault(Box<Fault>),
    /// Take a sample.
    Look,
    /// Everything that the agent submitted up to then must be done by now.
    Overdue(AgentId, Time),
}

/// Everything there is.
#[derive(Debug)]
pub struct World {
    pub(crate) now: Time,
    pub(crate) nodes: Vec<Node>,
    pub(crate) ledger: Ledger,
    /// What hosts grant one another, where that is checked: nothing but time is won by leaving it out.
    grants: Option<Grants>,
    pub(crate) programs: Vec<Program>,
    pub(crate) receive_leases: HashMap<u64, Lease>,
    pub(crate) next_cookie: u64,
    pub(crate) rng: SmallRng,
    /// Where messages wait for one another; see `program/exchange.rs`.
    pub(crate) exchange: Option<Progress>,
    wires: Wires,
    planes: u8,
    pairs: Vec<[AgentId; 2]>,
    trace: Trace,
    agenda: Agenda,
    events: u64,
    faults_left: u32,
    arrivals: Vec<(Time, Datagram)>,
    /// Reused.
    gathered: Vec<u8>,
    /// Datagrams that were read, to be used again.
    #[expect(clippy::vec_box, reason = "it is the boxes that are used again")]
    spare: Vec<Box<Datagram>>,
    /// Counters of endpoints that are gone.
    lost_counters: Counters,
    completions: Vec<Completion>,
    sample_ns: u64,
    samples: Vec<Sample>,
    resting_paths: usize,
    /// Senders of the packets that are just read.
    senders: Vec<NodeId>,
    silence: Silence,
    /// A program that was not done when they were asked last: most likely it still is not.
    busy: usize,
}

/// Clocks of hosts do not begin at 0.
const START: Time = Time::from_ns(1_000_000_000);

impl World {
    /// Runs `scenario`; `live` prints every packet and event.
    pub fn run(scenario: &Scenario, live: bool) -> Outcome {
        let show = Show {
            packets: live,
            events: live,
            json: false,
        };
        Self::run_showing(scenario, show)
    }

    /// Runs `scenario` and prints meanwhile what `show` names.
    pub fn run_showing(scenario: &Scenario, show: Show) -> Outcome {
        let mut world = Self::new(scenario, show);
        let hostile = scenario.network.script.is_hostile();
        if hostile {
            world.ledger.be_lenient();
        }
        world.run_until_done(scenario);
        let done_at = world.now;
        world.resting_paths = world.count_resting();
        if !hostile && world.ledger.violations().is_empty() {
            world.run_until_quiet();
        }
        world.outcome(scenario, done_at)
    }

    fn new(scenario: &Scenario, show: Show) -> Self {
        let mut rng = SmallRng::seed_from_u64(scenario.seed);
        let count = scenario.hosts.len();
        let planes = scenario.planes();
        let wires = Wires::new(scenario, SmallRng::seed_from_u64(rng.next_u64()));
        let agenda = Agenda::new(wires.links(), count);
        let start = START;
        let nodes = (0..count)
            .map(|at| {
                Node::new(
                    NodeId(at),
                    planes,
                    scenario.hosts[at].clone(),
                    rng.next_u64(),
                    start,
                )
            })
            .collect();
        let silence = Silence::new(count, start);
        let mut world = Self {
            now: start,
            nodes,
            ledger: Ledger::default(),
            grants: scenario.carry_payloads.then(Grants::default),
            programs: Vec::new(),
            receive_leases: HashMap::new(),
            next_cookie: 0,
            rng,
            exchange: scenario.exchange.clone().map(Progress::new),
            wires,
            planes,
            pairs: Vec::new(),
            trace: Trace::new(show),
            agenda,
            events: 0,
            faults_left: scenario.faults.len() as u32,
            arrivals: Vec::new(),
            gathered: Vec::new(),
            spare: Vec::new(),
            lost_counters: Counters::default(),
            completions: Vec::new(),
            sample_ns: scenario.sample_ns,
            samples: Vec::new(),
            resting_paths: 0,
            senders: Vec::new(),
            silence,
            busy: 0,
        };
        if scenario.carry_payloads || show.events {
            world.nodes.iter_mut().for_each(Node::enable_log);
        }
        if !scenario.carry_payloads {
            world.ledger.ignore_contents();
            world
                .nodes
                .iter_mut()
                .for_each(|node| node.memory.make_hollow());
        }
        for pair in &scenario.pairs {
            let ids = world.create_pair(pair);
            world.pairs.push(ids);
        }
        world.plan_exchange();
        if scenario.sample_ns > 0 {
            world.schedule(start, What::Look);
        }
        for (after_ns, fault) in &scenario.faults {
            world.schedule(start + *after_ns, What::Fault(Box::new(fault.clone())));
        }
        world
    }

    fn run_until_done(&mut self, scenario: &Scenario) {
        let limit = self.now + scenario.limit_ns;
        while self.ledger.violations().is_empty() {
            if self.faults_left == 0 && self.programs_done() {
                return;
            }
            if self.events >= scenario.limit_events {
                self.ledger
                    .violate(self.now, format!("not done after {} events", self.events));
                return;
            }
            match self.agenda.next() {
                Some(at) if at <= limit => {}
                Some(_) => {
                    let what = format!("not done after {} ms", scenario.limit_ns / 1_000_000);
                    self.ledger.violate(self.now, what);
                    return;
                }
                None => {
                    self.ledger.violate(
                        self.now,
                        "not done, and nothing will ever happen again".into(),
                    );
                    return;
                }
            }
            self.step();
        }
    }

    /// Nothing is asked for any more: soon nothing must happen any more.
    fn run_until_quiet(&mut self) {
        // As long as a script loses packets nothing can be expected.
        let script_ends = self.wires.script_ends_by();
        // Nor while a long burst waits on a silent link for its packets: a second apart, they may be all that is sent.
        if let Wires::Fabric(fabric) = &mut self.wires {
            fabric.change(self.now, Links::All, Change::Lose(Loss::each(0.0)));
        }
        let begins = self.now.max(script_ends.unwrap_or(self.now));
        let (limit, events) = (begins + QUIET_NS, self.events);
        let most = QUIET_EVENTS * self.nodes.len().div_ceil(4) as u64;
        while self.agenda.next().is_some_and(|at| at <= limit)
            && self.ledger.violations().is_empty()
        {
            self.step();
            if self.events - events > most {
                let what = format!("{most} events after everything was done");
                self.ledger.violate(self.now, what);
            }
        }
        self.now = self.now.max(limit);
        for at in 0..self.nodes.len() {
            let node = &mut self.nodes[at];
            let id = node.id;
            // Who is connected to a peer that is gone, and asks nothing of it, may wait for ever.
            let waits = self.programs.iter().any(|program| {
                let peer = &self.programs[program.peer.0];
                program.node == id && program.state != State::Over && peer.state == State::Over
            });
            if node.is_up() && node.endpoint.outstanding() && !waits {
                let what = format!(
                    "{}: not quiet {} ms after everything was done and no script lost packets",
                    node.id,
                    QUIET_NS / 1_000_000
                );
                self.ledger.violate(self.now, what);
            }
        }
    }

    fn programs_done(&mut self) -> bool {
        let is_busy = |at: &usize| !self.is_program_done(*at);
        let found = Some(self.busy)
            .filter(|at| *at < self.programs.len())
            .filter(is_busy)
            .or_else(|| (0..self.programs.len()).find(is_busy));
        self.busy = found.unwrap_or(0);
        found.is_none()
    }

    fn is_program_done(&self, at: usize) -> bool {
        let program = &self.programs[at];
        match program.state {
            State::Over => true,
            State::Failed => self.ledger.pending(AgentId(at)) == 0,
            State::Starting => program.left == 0,
            State::Running => program.left == 0 && self.ledger.pending(AgentId(at)) == 0,
        }
    }

    fn step(&mut self) {
        let Some((at, what)) = self.agenda.pop() else {
            return;
        };
        self.now = self.now.max(at);
        self.events += 1;
        match what {
            What::Turn(node) => {
                // Otherwise the node was started anew, or is paused.
                if self.nodes[node.0].turn_at == Some(at) {
                    self.nodes[node.0].turn_at = None;
                    self.turn(node);
                }
            }
            What::Forward(datagram) => self.forward(datagram),
            What::Hop(hop, datagram) => self.hop(hop, datagram),
            What::Arrive(datagram) => self.arrive(datagram),
            What::Unreachable {
                node,
                destination,
                source,
            } => {
                if self.nodes[node.0].is_up() {
                    self.nodes[node.0].endpoint.handle_unreachable(
                        self.now,
                        destination,
                        Some(source),
                    );
                    self.wake(node, self.now);
                }
            }
            What::Act(agent, action) => self.act(agent, action),
            What::Fault(fault) => {
                self.faults_left -= 1;
                self.inflict(&fault);
            }
            What::Look => self.look(),
            What::Overdue(agent, since) => self.check_overdue(agent, since),
        }
    }

    /// What was pending when the peer of `agent` died must be done, unless its own host was not run meanwhile.
    fn check_overdue(&mut self, agent: AgentId, since: Time) {
        let program = &self.programs[agent.0];
        let node = &self.nodes[program.node.0];
        let pending = self.ledger.pending_since(agent, since);
        if pending == 0 || !node.is_up() {
            return;
        }
        if node.paused_until > since {
            let (resumed, patience_ns) = (node.paused_until, program.workload.patience_ns());
            self.schedule(resumed + patience_ns * 5 / 4, What::Overdue(agent, resumed));
            return;
        }
        let peer = self.programs[program.peer.0].node;
        let heard = self.silence.heard_gone(program.node, peer);
        if let Some(heard) = heard.filter(|heard| *heard > since) {
            // A slow link still brought what the peer sent before, or a slow host read it: silence began only then.
            let patience_ns = program.workload.patience_ns();
            self.schedule(heard + patience_ns * 5 / 4, What::Overdue(agent, heard));
            return;
        }
        let what = format!(
            "{agent}: {pending} requests are still pending 1.25 × its bound after its peer died"
        );
        self.ledger.violate(self.now, what);
    }

    /// A request of `agent` that ended with RETRY_EXC did so rightly if its host heard nothing for its bound; its peer then
    /// learns that it failed.
    pub(crate) fn excuse_silence(&mut self, agent: AgentId) {
        let program = &self.programs[agent.0];
        let (node, peer) = (program.node, program.peer);
        let (other, bound_ns) = (self.programs[peer.0].node, program.workload.patience_ns());
        if self.silence.excuses(node, other, self.now, bound_ns) {
            self.ledger.allow(agent, Status::RetryExceeded);
            self.ledger.allow(peer, Status::RetryExceeded);
            self.ledger.allow(peer, Status::Flushed);
        }
    }

    /// A datagram is at the last switch of the network.
    fn forward(&mut self, mut datagram: Box<Datagram>) {
        let Wires::Network(network) = &mut self.wires else {
            return;
        };
        match network.forward(self.now, &mut datagram) {
            Ok(at) => self.schedule(at, What::Arrive(datagram)),
            Err(fate) => self.note(fate, &datagram),
        }
    }

    /// A datagram is at the end of a link of the fabric.
    fn hop(&mut self, hop: Hop, mut datagram: Box<Datagram>) {
        let Wires::Fabric(fabric) = &mut self.wires else {
            return;
        };
        let again = fabric.duplicate(self.now, hop);
        let again = again.map(|(at, hop)| (at, What::Hop(hop, datagram.clone())));
        let arrived = fabric.arrive(self.now, hop, &mut datagram);
        if let Some((at, what)) = again {
            self.schedule(at, what);
        }
        match arrived {
            Ok(Next::Hop(at, hop)) => self.agenda.plan_hop(at, hop, datagram),
            Ok(Next::Host) => self.arrive(datagram),
            Err(fate) => self.note(fate, &datagram),
        }
    }

    fn arrive(&mut self, datagram: Box<Datagram>) {
        let node = &mut self.nodes[datagram.to.0];
        let port = datagram.destination.port();
        let is_ours = port == node.port() || crate::network::slot_of(port).is_some();
        if !node.is_up() || !is_ours {
            let answers = node.answers_unreachable(self.now);
            self.note(Fate::Nobody, &datagram);
            if answers {
                let (node, destination, source) =
                    (datagram.from, datagram.destination, datagram.slot);
                self.schedule(
                    self.now + 10_000,
                    What::Unreachable {
                        node,
                        destination,
                        source,
                    },
                );
            }
            return;
        }
        let fits = node.take_room(&datagram);
        self.note(if fits { Fate::Arrived } else { Fate::Overflow }, &datagram);
        if !fits {
            return;
        }
        let to = datagram.to;
        let node = &mut self.nodes[to.0];
        node.inbox.push_back(datagram);
        let wake_ns = node.config.wake_ns;
        let delay_ns = if wake_ns > 0 {
            self.rng.next_u64() % (wake_ns + 1)
        } else {
            0
        };
        self.wake(to, self.now + delay_ns);
    }

    /// Since the start of the run.
    pub(crate) fn elapsed_ns(&self) -> u64 {
        self.now.since_ns(START)
    }

    // ---- Plans ----

    fn schedule(&mut self, at: Time, what: What) {
        self.agenda.plan(at, what);
    }

    pub(crate) fn schedule_action(&mut self, delay_ns: u64, agent: AgentId, action: Action) {
        self.schedule(self.now + delay_ns, What::Act(agent, action));
    }

    /// A node gets its turn at `at`, or earlier if that was planned.
    pub(crate) fn wake(&mut self, id: NodeId, at: Time) {
        let node = &mut self.nodes[id.0];
        let at = at.max(node.paused_until).max(node.busy_until).max(self.now);
        if node.turn_at.is_none_or(|planned| at < planned) {
            node.turn_at = Some(at);
            self.agenda.plan_turn(at, id);
        }
    }

    fn note(&mut self, fate: Fate, datagram: &Datagram) {
        self.trace.note(&Seen {
            at: self.now,
            fate,
            from: datagram.from,
            to: datagram.to,
            route: (datagram.plane, datagram.source().port()),
            ce: datagram.ce,
            bytes: &datagram.bytes,
            uncarried_bytes: datagram.uncarried_bytes,
        });
    }
}
