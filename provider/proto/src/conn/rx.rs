//! DATA packets: the only place where they are read. In the order of the checks: the peer's address, the path's window,
//! then the stream's life; only then a byte is placed (WIRE 9.1). The path layer takes note of a packet whatever the
//! stream layer does with it (WIRE 4.4).

use crate::cc::{Inbound, Surroundings};
use crate::conn::streams::List;
use crate::conn::{Connection, Context, RX_PATHS_MAX, RxPath};
use crate::endpoint::RxMeta;
use crate::endpoint::qp::{Phase, Retry};
use crate::event::Event;
use crate::host::Host;
use crate::path::{PathRx, Verdict};
use crate::stream::{Failure, Outcome};
use crate::telemetry::ReceivingCounters;
use crate::telemetry::log::What;
use crate::types::{QpId, Time};
use crate::wire::{
    Base, BaseFlags, DATA_HEADER_BYTES, DataHeader, FillStatus, Opcode, PathId, Service, Shut,
    ShutReason, Token,
};

impl Connection {
    /// Something of the peer came.
    #[inline]
    pub(super) fn heard(&mut self, now: Time) {
        self.last_heard = now;
        self.suspicion = None;
    }

    /// Takes a DATA packet for this connection.
    pub(crate) fn handle_data(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut dyn Host,
        meta: &RxMeta,
        base: &Base,
        header: &DataHeader,
        payload: &[u8],
    ) {
        let Some(verdict) = self.receive(cx, meta, base, header) else {
            return;
        };
        match verdict {
            Verdict::New => self.deliver(cx, host, base, header, payload),
            Verdict::Bare => self.handle_bare(cx, base, header),
            Verdict::Duplicate | Verdict::Beyond => {}
        }
    }

    /// Path layer: counts the packet and says what it is; `None` if it is dropped.
    fn receive(
        &mut self,
        cx: &mut Context<'_>,
        meta: &RxMeta,
        base: &Base,
        header: &DataHeader,
    ) -> Option<Verdict> {
        let at = usize::from(base.path.0);
        if at >= RX_PATHS_MAX {
            cx.shared.counters.dropped_out_of_window += 1;
            return None;
        }
        while self.rx_paths.len() <= at {
            let id = PathId(self.rx_paths.len() as u8);
            self.rx_paths.push(RxPath {
                rx: PathRx::new(id),
                local: meta.local,
                from: None,
                counters: ReceivingCounters::default(),
            });
        }
        let psn = header.opcode.takes_psn().then_some(base.psn);
        let path = &mut self.rx_paths[at];
        let arrival = path
            .rx
            .handle_packet(cx.now, base.epoch, psn, base.stamp, meta.ce, base.flags);
        let counters = &mut cx.shared.counters;
        let mut new_bytes = 0;
        match arrival.verdict {
            Verdict::Beyond => {
                counters.dropped_out_of_window += 1;
                return None;
            }
            Verdict::Duplicate => {
                counters.duplicates_received += 1;
                path.counters.duplicates_received += 1;
            }
            Verdict::New => {
                let payload_bytes = u64::from(header.payload_bytes);
                new_bytes = DATA_HEADER_BYTES as u64 + payload_bytes;
                counters.data_bytes_received += payload_bytes;
                path.counters.data_bytes_received += payload_bytes;
            }
            Verdict::Bare => {}
        }
        counters.data_packets_received += 1;
        counters.ce_received += u64::from(meta.ce);
        path.counters.data_packets_received += 1;
        path.counters.ce_received += u64::from(meta.ce);
        path.local = meta.local;
        path.from = Some(meta.source.ip().to_canonical());
        self.heard(cx.now);
        self.note_activity(cx, base.flags, new_bytes, meta.ce);
        let duplicate = arrival.verdict == Verdict::Duplicate;
        self.count_for_ack(cx.now, arrival.ack_at_once || duplicate, arrival.ack_twice);
        Some(arrival.verdict)
    }

    /// The peer sends: what does it want?
    fn note_activity(
        &mut self,
        cx: &mut Context<'_>,
        flags: BaseFlags,
        new_bytes: u64,
        marked: bool,
    ) {
        let shared = &mut *cx.shared;
        shared.drain.on_received(new_bytes, marked);
        let around = Surroundings {
            driving: shared.config.driving,
            rtt_ns: self.window.min_rtt_ns(),
            train_bytes: self.train_packets(shared) * u32::from(self.payload_bytes),
        };
        let emptied = flags.contains(BaseFlags::BACKLOG_EMPTY);
        shared.fair_share.observe(&mut self.inbound, |inbound| {
            inbound.on_packet(cx.now, new_bytes, emptied, &around)
        });
    }

    /// The peer's activity may be over.
    pub(super) fn activity_timeout(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        cx.shared
            .fair_share
            .observe(&mut self.inbound, |inbound| inbound.on_time(now));
    }

    /// The peer is not active any more.
    pub(crate) fn end_activity(&mut self, shared: &mut super::Shared) {
        shared.fair_share.observe(&mut self.inbound, Inbound::end);
    }

    /// Stream layer: a packet that was not received before.
    fn deliver(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut dyn Host,
        base: &Base,
        header: &DataHeader,
        payload: &[u8],
    ) {
        if header.opcode == Opcode::Fill && header.fill_status() == FillStatus::Nothing {
            return;
        }
        let index = self.index;
        let Some(qp) = cx.qps.by_qpn(header.qpn) else {
            cx.shared.counters.dropped_unknown_qp += 1;
            return;
        };
        let id = qp.id;
        let Some(life) = qp
            .life
            .as_deref_mut()
            .filter(|life| life.connection == Some(index))
        else {
            cx.shared.counters.dropped_unknown_qp += 1;
            return;
        };
        if !life.accepts(index, header.token) {
            cx.shared.counters.dropped_bad_token += 1;
            return;
        }
        if !life.established {
            life.established = true;
            if life.phase == Phase::Opening {
                // The peer heard us, but its own OPEN with our token was lost: answers wait for it.
                life.retry = Retry::of_present(cx.now);
                self.arm_opens(life.retry.at);
            }
            if life.send.is_none() {
                cx.shared.events.push_back(Event::Established { qp: id });
            }
        }
        if header.opcode.is_response() || header.opcode == Opcode::Fill {
            self.deliver_response(cx, host, id, header, payload);
        } else {
            if base.flags.contains(BaseFlags::WAITING_FOR_CREDIT) {
                life.responder.on_peer_waits(host);
            }
            self.deliver_request(cx, host, id, header, payload);
        }
    }

    fn deliver_response(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut dyn Host,
        id: QpId,
        header: &DataHeader,
        payload: &[u8],
    ) {
        let Some(life) = cx.qps.life_mut(id).filter(|life| life.phase == Phase::Open) else {
            cx.shared.counters.dropped_refused += 1;
            return;
        };
        match life
            .requester
            .handle_response(header, payload, host, &mut cx.shared.events)
        {
            Ok(true) => self.make_ready(cx.qps, id),
            Ok(false) => cx.shared.counters.dropped_refused += 1,
            Err(failure) => self.fail_by_request(cx, id, failure),
        }
    }

    fn deliver_request(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut dyn Host,
        id: QpId,
        header: &DataHeader,
        payload: &[u8],
    ) {
        let Some(life) = cx.qps.life_mut(id) else {
            return;
        };
        let rnr_before = life.responder.rnr_count();
        let shared = &mut *cx.shared;
        shared
            .hold
            .on_arrival(cx.now, u32::from(header.payload_bytes));
        let result = life.responder.handle_request(
            header,
            payload,
            host,
            &mut shared.hold,
            &mut shared.events,
        );
        shared.counters.rnr_sent += life.responder.rnr_count() - rnr_before;
        if shared.hold.take_strict() {
            self.strict_at = Some(cx.now);
            let counts = shared.hold.counts();
            shared.counters.packets_held = counts.packets;
            shared.counters.hold_refusals = counts.refusals;
        }
        if let Some((msn, code)) = life.responder.take_refusal() {
            self.log_stream(cx, id, What::RefusedHere { msn, code });
        }
        self.after_responder(cx, id, result.as_ref().err().copied());
        if result.is_ok_and(|outcome| outcome != Outcome::Placed) {
            cx.shared.counters.dropped_refused += 1;
        }
    }

    /// What the responder may have left to do: a block to tell, answers to send, a failure.
    pub(super) fn after_responder(
        &mut self,
        cx: &mut Context<'_>,
        id: QpId,
        failure: Option<Failure>,
    ) {
        if let Some(failure) = failure {
            // The peer learns it from the stream block, not from a SHUT, which could not name the reason.
            self.fail_life(cx, id, failure);
        }
        let Some(life) = cx.qps.life_mut(id) else {
            return;
        };
        let (news, urgent) = (life.responder.has_news(), life.responder.has_urgent_news());
        let answers = life.responder.peek_segment(u16::MAX).is_some();
        let works = life.responder.has_responses();
        if news && (urgent || !life.news) {
            self.stream_news(cx, id, urgent || failure.is_some());
        }
        if answers {
            self.make_ready(cx.qps, id);
        } else if works {
            self.streams.enter(cx.qps, id, List::Active);
        }
    }

    /// A packet without a PSN: a probe may name a stream, whose block goes into the answer.
    fn handle_bare(&mut self, cx: &mut Context<'_>, base: &Base, header: &DataHeader) {
        if header.opcode.service() != Service::Path {
            // Unreliable services are carried by a later version of this endpoint.
            cx.shared.counters.dropped_refused += 1;
            return;
        }
        if !base.flags.contains(BaseFlags::PROBE) || header.qpn.is_zero() {
            return;
        }
        let index = self.index;
        let found = cx
            .qps
            .by_qpn(header.qpn)
            .and_then(|qp| Some((qp.id, qp.life.as_deref_mut()?)));
        if let Some((id, life)) = found.filter(|(_, life)| life.accepts(index, header.token)) {
            life.responder.owe_block();
            self.stream_news(cx, id, false);
            return;
        }
        if self.repeat_shut_of(cx, header.qpn, header.token) {
            return;
        }
        self.push_answer(super::Item::ShutAnswer(Shut {
            from_qpn: header.qpn,
            reason: ShutReason::Unknown,
            from_token: header.token,
            to_token: Token::ZERO,
            ..Shut::default()
        }));
    }

    /// Receives were posted to the queue of `id`.
    pub(crate) fn receives_posted(&mut self, cx: &mut Context<'_>, host: &mut dyn Host, id: QpId) {
        let Some(life) = cx.qps.life_mut(id) else {
            return;
        };
        let shared = &mut *cx.shared;
        let result = life
            .responder
            .receives_posted(host, &mut shared.hold, &mut shared.events);
        self.after_responder(cx, id, result.err());
    }
}
