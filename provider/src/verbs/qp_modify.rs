//! Changing and ending queue pairs: what `modify_qp` and `destroy_qp` do, in the order in which it must be done.
//!
//! The engine is reached through [`Transport`], so that the order can be tested without one. No queue's lock is held
//! while it is called; `Qp::changing` is, which the engine never takes.

use std::sync::Arc;

use metaroce_proto::types::{Access, ConnectParams, SendParams};
use metaroce_proto::wire::Gid;

use super::errno::Errno;
use super::qp::Qp;
use super::qp_attributes::Attributes;
use super::qp_state::{self, Mask, QpState};

/// What a queue pair wants of the engine. Each call has run to its end when it returns: events that became due were
/// told to the queue pair.
pub trait Transport {
    /// To RTR: looks for the peer; never waits for it.
    fn connect(&self, qp: &Arc<Qp>, params: &ConnectParams) -> Result<(), Errno>;
    /// To RTS.
    fn enable_send(&self, qp: &Arc<Qp>, params: &SendParams) -> Result<(), Errno>;
    /// The rights of the peer changed.
    fn set_access(&self, qp: &Arc<Qp>, access: Access) -> Result<(), Errno>;
    /// To ERR by the program: everything that the core has taken completes flushed. Cannot fail but where there is no
    /// core any more (a child process), and then there is nothing to do.
    fn fail(&self, qp: &Arc<Qp>);
    /// To RESET: the life ends. As for failing.
    fn reset(&self, qp: &Arc<Qp>);
    /// The end: flushes as `fail`, then forgets. As for failing.
    fn destroy(&self, qp: &Arc<Qp>);
    /// Sends were posted.
    fn doorbell(&self, qp: &Arc<Qp>);
    /// The GID at an index of the device's table.
    fn source_gid(&self, index: u8) -> Option<Gid>;
}

/// What `modify_qp` was given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Modification {
    /// Which of the following count.
    pub mask: Mask,
    /// `qp_state`
    pub state: u32,
    /// `cur_qp_state`
    pub current_state: u32,
    /// The others.
    pub attributes: Attributes,
}

/// Carries out `modify_qp`. On an error nothing has changed.
pub fn modify(qp: &Arc<Qp>, transport: &dyn Transport, wanted: &Modification) -> Result<(), Errno> {
    let _changing = qp.changing.lock();
    let from = qp.state();
    let to = target_state(from, wanted)?;
    qp_state::check(from, to, wanted.mask)?;
    let mut attributes = qp.attributes();
    attributes.merge(&wanted.attributes, wanted.mask, &|index| {
        transport.source_gid(index)
    })?;

    match (from, to) {
        (_, QpState::Reset) => {
            reset(qp, transport);
            return Ok(());
        }
        (_, QpState::Error) => {
            fail(qp, transport);
            return Ok(());
        }
        (QpState::Init, QpState::ReadyToReceive) => {
            let source_gid = transport
                .source_gid(attributes.address.sgid_index)
                .ok_or(Errno::INVALID)?;
            transport.connect(qp, &attributes.connect_params(source_gid))?;
        }
        (QpState::ReadyToReceive, QpState::ReadyToSend) => {
            transport.enable_send(qp, &attributes.send_params())?;
        }
        _ => {}
    }
    // At RTR the rights went with the connection.
    let connected_before = !matches!(from, QpState::Reset | QpState::Init);
    if wanted.mask.has(Mask::ACCESS) && connected_before {
        transport.set_access(qp, Access(attributes.access))?;
    }
    *qp.attributes.lock() = attributes;
    qp.advance(from, to);
    match (from, to) {
        (QpState::ReadyToSend, QpState::SendQueueDrained) => qp.start_draining(),
        // What was posted while draining goes out now.
        (QpState::SendQueueDrained, QpState::ReadyToSend) => transport.doorbell(qp),
        _ => {}
    }
    Ok(())
}

/// The state that is asked for: without IBV_QP_STATE the present one, in which attributes may still change.
fn target_state(from: QpState, wanted: &Modification) -> Result<QpState, Errno> {
    let number = |number| QpState::from_number(number).ok_or(Errno::INVALID);
    if wanted.mask.has(Mask::CURRENT_STATE) && number(wanted.current_state)? != from {
        return Err(Errno::INVALID);
    }
    if wanted.mask.has(Mask::STATE) {
        number(wanted.state)
    } else {
        Ok(from)
    }
}

fn reset(qp: &Arc<Qp>, transport: &dyn Transport) {
    let was_connected = !matches!(qp.state(), QpState::Reset | QpState::Init);
    // From here on posts are refused; then what the core has not taken goes, then what it has.
    qp.set_state(QpState::Reset);
    qp.clear_pending();
    if was_connected {
        transport.reset(qp);
    }
    qp.clear();
}

fn fail(qp: &Arc<Qp>, transport: &dyn Transport) {
    // From here on posts are flushed, those of the send queue by the core after the ones that it has.
    qp.fail_by_program();
    transport.fail(qp);
    transport.doorbell(qp);
    qp.open_receive_flush();
}

/// Carries out `destroy_qp`: when it returns, every posted work request has completed, in order.
pub fn destroy(qp: &Arc<Qp>, transport: &dyn Transport) {
    let _changing = qp.changing.lock();
    qp.fail_by_program();
    transport.destroy(qp);
    qp.flush_all();
    // Whatever is posted after that is refused.
    qp.set_state(QpState::Reset);
    qp.detach();
}

#[cfg(test)]
#[path = "qp_tests/mod.rs"]
mod tests;
