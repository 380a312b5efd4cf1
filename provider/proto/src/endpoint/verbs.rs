//! The verbs: what programs do to queue pairs, as far as the core has to know. None of them waits for anything.

use rand::Rng;

use crate::conn::{Connection, Context, fail_if_gone, fail_life};
use crate::endpoint::qp::{Life, Phase};
use crate::endpoint::table::Key;
use crate::endpoint::{ConnectError, CreateQpError, Endpoint};
use crate::event::{Event, SendDone};
use crate::host::Host;
use crate::stream::Failure;
use crate::types::{Access, ConnectParams, QpConfig, QpId, SendParams, SendRequest, Status, Time};
use crate::wire::{Qpn, ShutReason, Token};

impl Endpoint {
    /// A new queue pair and its number.
    pub fn create_qp(&mut self, config: QpConfig) -> Result<(QpId, Qpn), CreateQpError> {
        self.qps
            .insert(config)
            .map(|qp| (qp.id, qp.qpn))
            .ok_or(CreateQpError::Full)
    }

    /// To RTR: the stream's life begins, the connection is opened if there is none. Never waits.
    pub fn connect_qp(
        &mut self,
        now: Time,
        qp: QpId,
        params: &ConnectParams,
    ) -> Result<(), ConnectError> {
        let found = self
            .qps
            .get_mut(qp)
            .filter(|found| found.life.is_none())
            .ok_or(ConnectError::InvalidQp)?;
        let config = &self.shared.config;
        let peer_port = config
            .port_base
            .checked_add(params.dest_qpn.endpoint_index());
        let peer_port = peer_port
            .filter(|_| params.dest_qpn.is_usable())
            .ok_or(ConnectError::InvalidDestinationQpn)?;
        let key = Key {
            source: params.source_gid,
            dest: params.dest_gid,
            peer_port,
        };
        Connection::routes_for(config, &key)?;
        found.lives = found.lives.wrapping_add(1);
        let token = Token::truncate(self.shared.rng.random_range(1..=Token::MAX.get()));
        found.life = Some(Box::new(Life::new(found, key, params, token, now)));
        self.attach(now, qp);
        Ok(())
    }

    /// To RTS.
    pub fn enable_send(&mut self, now: Time, qp: QpId, params: &SendParams) {
        let Some(life) = self.qps.life_mut(qp) else {
            return;
        };
        life.send = Some(*params);
        life.requester.enable(params);
        if let Some(index) = life.connection {
            self.on_connection(now, index, |connection, cx| {
                connection.watch_silence(cx, qp)
            });
        }
    }

    /// What the peer may do from now on.
    pub fn set_access(&mut self, qp: QpId, access: Access) {
        if let Some(life) = self.qps.life_mut(qp) {
            life.params.access = access;
            life.responder.set_access(access);
        }
    }

    /// To ERR, by the program: everything outstanding is flushed and the peer is told.
    pub fn fail_qp(&mut self, now: Time, qp: QpId, host: &mut dyn Host) {
        let Some(life) = self.qps.life_mut(qp) else {
            return;
        };
        if life.phase == Phase::Failed {
            return;
        }
        life.requester
            .fail(Status::Flushed, &mut self.shared.events);
        life.responder
            .fail(&mut self.shared.hold, &mut self.shared.events);
        if let Some(index) = life.connection {
            self.on_connection(now, index, |connection, cx| {
                connection.log_end(cx, qp, ShutReason::Error);
                connection.tell_end(cx, qp, ShutReason::Error, host);
                connection.stop_opening(cx.qps, qp);
            });
        }
        if let Some(life) = self.qps.life_mut(qp) {
            life.drop_waiting_answers();
            life.phase = Phase::Failed;
        }
    }

    /// To RESET: the stream's life ends; only receives bound to unfinished messages complete (flushed).
    pub fn reset_qp(&mut self, now: Time, qp: QpId, host: &mut dyn Host) {
        self.end_life(now, qp, ShutReason::Reset, host);
    }

    /// Flushes as [`Self::fail_qp`] and forgets the queue pair; its number is not used again soon.
    pub fn destroy_qp(&mut self, now: Time, qp: QpId, host: &mut dyn Host) {
        if let Some(life) = self.qps.life_mut(qp) {
            life.requester
                .fail(Status::Flushed, &mut self.shared.events);
        }
        self.end_life(now, qp, ShutReason::Destroyed, host);
        self.qps.remove(qp);
    }

    fn end_life(&mut self, now: Time, qp: QpId, reason: ShutReason, host: &mut dyn Host) {
        let Some(life) = self.qps.life_mut(qp) else {
            return;
        };
        if let Some(index) = life.connection {
            self.on_connection(now, index, |connection, cx| {
                connection.log_end(cx, qp, reason);
                connection.tell_end(cx, qp, reason, host);
                connection.detach(cx, qp);
            });
        }
        let Some(life) = self.qps.life_mut(qp) else {
            return;
        };
        life.responder
            .end(&mut self.shared.hold, &mut self.shared.events);
        if let Some(found) = self.qps.get_mut(qp) {
            found.life = None;
        }
    }

    /// Takes over a send work request; after a failure it completes at once, flushed.
    pub fn submit(&mut self, now: Time, qp: QpId, request: SendRequest) {
        let Some(life) = self.qps.life_mut(qp) else {
            let done = SendDone {
                qp,
                cookie: request.cookie,
                status: Status::Flushed,
                vendor_error: 0,
            };
            self.shared.events.push_back(Event::SendDone(done));
            return;
        };
        if let Err(failure) = life.requester.submit(now, request, &mut self.shared.events) {
            self.fail_by_request(now, qp, failure);
            return;
        }
        let (index, gone) = (life.connection, life.phase == Phase::PeerGone);
        if gone {
            let mut cx = Context {
                now,
                shared: &mut self.shared,
                qps: &mut self.qps,
            };
            fail_if_gone(&mut cx, qp);
        }
        if let Some(index) = index {
            self.on_connection(now, index, |connection, cx| {
                connection.make_ready(cx.qps, qp);
                connection.watch_silence(cx, qp);
            });
        }
    }

    /// Receives were posted to the queue of `qp`.
    pub fn receives_posted(&mut self, now: Time, qp: QpId, host: &mut dyn Host) {
        let index = self.qps.life_mut(qp).and_then(|life| life.connection);
        if let Some(index) = index {
            self.on_connection(now, index, |connection, cx| {
                connection.receives_posted(cx, host, qp)
            });
        }
    }

    /// Whether [`Self::receives_posted`] would do anything.
    pub fn wants_receive_notice(&self, qp: QpId) -> bool {
        let life = self.qps.get(qp).and_then(|found| found.life.as_deref());
        life.is_some_and(|life| life.responder.wants_receive_notice())
    }

    /// A work request of a queue pair failed.
    pub(super) fn fail_by_request(&mut self, now: Time, qp: QpId, failure: Failure) {
        let index = self.qps.life_mut(qp).and_then(|life| life.connection);
        let Some(index) = index else {
            let mut cx = Context {
                now,
                shared: &mut self.shared,
                qps: &mut self.qps,
            };
            fail_life(&mut cx, qp, failure);
            return;
        };
        self.on_connection(now, index, |connection, cx| {
            connection.fail_by_request(cx, qp, failure)
        });
    }
}
