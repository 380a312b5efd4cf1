//! Programs of an exchange ([`crate::exchange::Exchange`]): the first end of each pair submits the next message of its flow
//! when the plan allows it, and tells the plan what has arrived as the second end polls the completions of its receives.

use super::State;
use crate::AgentId;
use crate::world::{Action, World};

/// Programs are numbered pair by pair, the sending end first.
fn flow_of(agent: AgentId) -> usize {
    agent.0 / 2
}

impl World {
    /// The exchange, if there is one, begins at its time.
    pub(crate) fn plan_exchange(&mut self) {
        let Some(progress) = &self.exchange else {
            return;
        };
        let (flows, begins_ns) = (progress.plan().flows.len(), progress.plan().begins_ns);
        for flow in 0..flows {
            self.schedule_action(begins_ns, AgentId(2 * flow), Action::Begin);
        }
    }

    /// The flow of `id` begins.
    pub(super) fn begin_exchange(&mut self, id: AgentId) {
        if let Some(progress) = &mut self.exchange {
            progress.begin(flow_of(id));
        }
        self.fill(id);
    }

    /// Whether `id` may submit its next request.
    pub(super) fn exchange_allows(&self, id: AgentId) -> bool {
        let progress = self.exchange.as_ref();
        progress.is_none_or(|progress| progress.may_submit(flow_of(id)))
    }

    /// `id` submitted one.
    pub(super) fn note_exchange_submitted(&mut self, id: AgentId) {
        let now_ns = self.elapsed_ns();
        if let Some(progress) = &mut self.exchange {
            progress.submitted(flow_of(id), now_ns);
        }
    }

    /// The second end of a pair, `id`, knows that a message is there.
    pub(super) fn on_exchange_arrived(&mut self, id: AgentId) {
        let now_ns = self.elapsed_ns();
        let Some(progress) = &mut self.exchange else {
            return;
        };
        let next = progress.arrived(flow_of(id), now_ns);
        let next = next.map(|flow| AgentId(2 * flow));
        if let Some(next) = next.filter(|next| self.programs[next.0].state == State::Running) {
            self.fill(next);
        }
    }
}
