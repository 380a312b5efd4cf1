//! Tests of queue pairs with a core that the test plays.

use std::cell::RefCell;

use metaroce_proto::event::{QpFailure, ReceiveDone, ReceiveKind, SendDone};
use metaroce_proto::types::{Operation, Payload, QpId, SgeList, Status};
use metaroce_proto::wire::Qpn;
use rstest::rstest;
use smallvec::smallvec;

use super::super::context::{AsyncEvents, EventKind};
use super::super::cq::{Cq, Cqe};
use super::super::mr_memory::MrTable;
use super::super::pd::Pd;
use super::super::qp::{Capabilities, QpParts};
use super::super::qp_attributes::AddressVector;
use super::super::receive_queue::{ReceiveQueue, ReceiveRequest};
use super::super::send_queue::SendWork;
use super::*;
use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained};

const ID: QpId = QpId::new(3, 1);
const PEER: u32 = 0x4001;
const HANDLE: u64 = 0xabcd;
const FLUSHED: u32 = 5;

/// What was called, and a core that answers as the real one does: `fail` and `destroy` flush what was submitted.
#[derive(Default)]
struct Core {
    calls: RefCell<Vec<String>>,
    submitted: RefCell<Vec<u64>>,
    bound: RefCell<Vec<u64>>,
    refuses: bool,
}

impl Core {
    fn note(&self, call: &str) {
        self.calls.borrow_mut().push(call.to_owned());
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.borrow_mut())
    }

    fn drain(&self, qp: &Qp) {
        while let Some(request) = qp.pop_submission() {
            self.submitted.borrow_mut().push(request.cookie);
        }
    }

    fn bind(&self, qp: &Qp) {
        self.bound.borrow_mut().push(qp.receive_queue().take().expect("a receive").cookie);
    }

    fn complete(&self, qp: &Qp, status: Status) {
        let cookie = self.submitted.borrow_mut().remove(0);
        qp.on_send_done(&SendDone { qp: ID, cookie, status, vendor_error: 0 });
    }

    fn flush(&self, qp: &Qp) {
        while !self.submitted.borrow().is_empty() {
            self.complete(qp, Status::Flushed);
        }
        for cookie in self.bound.take() {
            qp.on_receive_done(&received(cookie, Status::Flushed, ReceiveKind::Send));
        }
    }

    /// As the core fails a queue pair by itself.
    fn fail_by_itself(&self, qp: &Qp, failure: QpFailure) {
        self.flush(qp);
        qp.on_failed(failure);
    }
}

fn received(cookie: u64, status: Status, kind: ReceiveKind) -> ReceiveDone {
    ReceiveDone {
        qp: ID,
        cookie,
        status,
        kind,
        byte_length: 100,
        source_qpn: Qpn::truncate(PEER),
        solicited: false,
        vendor_error: 0,
    }
}

impl Transport for Core {
    fn connect(&self, _qp: &Arc<Qp>, params: &ConnectParams) -> Result<(), Errno> {
        self.note(&format!("connect {:#x}", params.dest_qpn.get()));
        if self.refuses { Err(Errno::INVALID) } else { Ok(()) }
    }

    fn enable_send(&self, _qp: &Arc<Qp>, params: &SendParams) -> Result<(), Errno> {
        self.note(&format!("enable {} {}", params.timeout, params.retry_count));
        if self.refuses { Err(Errno::INPUT_OUTPUT) } else { Ok(()) }
    }

    fn set_access(&self, _qp: &Arc<Qp>, access: Access) -> Result<(), Errno> {
        self.note(&format!("access {:#x}", access.0));
        Ok(())
    }

    fn fail(&self, qp: &Arc<Qp>) {
        self.note("fail");
        self.drain(qp);
        self.fail_by_itself(qp, QpFailure::Fatal);
    }

    fn reset(&self, qp: &Arc<Qp>) {
        self.note("reset");
        assert_eq!(qp.pop_submission(), None);
        self.submitted.borrow_mut().clear();
        self.bound.borrow_mut().clear();
    }

    fn destroy(&self, qp: &Arc<Qp>) {
        self.note("destroy");
        self.drain(qp);
        self.flush(qp);
    }

    fn doorbell(&self, qp: &Arc<Qp>) {
        self.note("doorbell");
        self.drain(qp);
    }

    fn source_gid(&self, index: u8) -> Option<Gid> {
        (index < 2).then_some(Gid([index + 1; 16]))
    }
}

struct Bench {
    qp: Arc<Qp>,
    core: Core,
    send_cq: Arc<Cq>,
    receive_cq: Arc<Cq>,
    pd: Arc<Pd>,
    events: Arc<AsyncEvents>,
}

fn bench_with(cq_entries: i64, signal_all: bool) -> Bench {
    let events = Arc::new(AsyncEvents::new().expect("a pipe"));
    let cq = || Arc::new(Cq::new(cq_entries, None, Arc::clone(&events)).expect("valid"));
    let (send_cq, receive_cq) = (cq(), cq());
    let pd = Arc::new(Pd::new().expect("room"));
    let wanted = Capabilities { max_send_wr: 16, max_recv_wr: 16, ..Capabilities::default() };
    let capabilities = wanted.grant().expect("valid");
    let parts = QpParts {
        pd: Arc::clone(&pd),
        send_cq: Arc::clone(&send_cq),
        receive_cq: Arc::clone(&receive_cq),
        receive_queue: Arc::new(ReceiveQueue::new(16, 1)),
        memory: Arc::new(MrTable::default()),
        events: Arc::clone(&events),
        capabilities,
        signal_all,
    };
    let qp = Arc::new(Qp::new(ID, Qpn::truncate(0x88), parts));
    qp.set_user_handle(HANDLE);
    Bench { qp, core: Core::default(), send_cq, receive_cq, pd, events }
}

fn bench() -> Bench {
    bench_with(100, false)
}

fn attributes() -> Attributes {
    let address = AddressVector {
        dest_gid: Gid([9; 16]),
        sgid_index: 1,
        is_global: true,
        port: 1,
        ..AddressVector::default()
    };
    Attributes {
        path_mtu: 3,
        rq_psn: 0x11,
        sq_psn: 0x22,
        dest_qpn: PEER,
        access: 0xe,
        address,
        port: 1,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 5,
        min_rnr_timer: 12,
        timeout: 14,
        retry_count: 6,
        rnr_retry: 7,
        ..Attributes::default()
    }
}

/// What a transition is given: all that is required.
fn to(from: QpState, state: QpState) -> Modification {
    let required = qp_state::transition(from, state).map_or(Mask::NONE, |transition| transition.required);
    Modification { mask: Mask::STATE | required, state: state as u32, current_state: 0, attributes: attributes() }
}

impl Bench {
    fn modify(&self, state: QpState) -> Result<(), Errno> {
        modify(&self.qp, &self.core, &to(self.qp.state(), state))
    }

    fn bring_to(&self, state: QpState) {
        let path: &[QpState] = match state {
            Reset => &[],
            Init => &[Init],
            ReadyToReceive => &[Init, ReadyToReceive],
            ReadyToSend => &[Init, ReadyToReceive, ReadyToSend],
            SendQueueDrained => &[Init, ReadyToReceive, ReadyToSend, SendQueueDrained],
            Error | QpState::SendQueueError => &[Init, Error],
        };
        for step in path {
            self.modify(*step).expect("a legal transition");
        }
        self.core.calls();
    }

    fn post(&self, wr_id: u64, signaled: bool) -> Result<(), Errno> {
        let work = SendWork {
            wr_id,
            operation: Operation::Send,
            payload: Payload::Gather(SgeList::new()),
            signaled,
            fence: false,
            solicited: false,
        };
        self.qp.send_poster().post(work)?;
        self.core.drain(&self.qp);
        Ok(())
    }

    /// Posts as the op does.
    fn post_receive(&self, wr_id: u64) -> Result<bool, Errno> {
        let mut poster = self.qp.receive_poster()?;
        poster.post(ReceiveRequest { wr_id, sges: SgeList::new() })?;
        let notice = poster.finish();
        Ok(self.qp.receives_are_wanted() && notice)
    }

    fn sent(&self) -> Vec<Cqe> {
        poll(&self.send_cq)
    }

    fn received(&self) -> Vec<Cqe> {
        poll(&self.receive_cq)
    }

    /// Kinds of the asynchronous events that nobody has read; and takes them away.
    fn events(&self) -> Vec<EventKind> {
        use EventKind::{
            CommunicationEstablished, CqError, QpAccessError, QpFatal, QpRequestError, SendQueueDrained,
        };
        let kinds = [CqError, QpFatal, QpRequestError, QpAccessError, CommunicationEstablished, SendQueueDrained];
        let taken = |kind: &EventKind| self.events.withdraw(HANDLE, |number| number == *kind as u32);
        kinds.iter().flat_map(|kind| std::iter::repeat_n(*kind, taken(kind) as usize)).collect()
    }
}

fn poll(cq: &Cq) -> Vec<Cqe> {
    let mut seen = Vec::new();
    cq.poll(1_000, |_, cqe| seen.push(*cqe));
    seen
}

fn ids(cqes: &[Cqe]) -> Vec<(u64, u32)> {
    cqes.iter().map(|cqe| (cqe.wr_id, cqe.status)).collect()
}

#[test]
fn every_transition_from_every_state_is_as_the_table_says() {
    for from in [Reset, Init, ReadyToReceive, ReadyToSend, SendQueueDrained, Error] {
        for target in QpState::ALL {
            let bench = bench();
            bench.bring_to(from);
            assert_eq!(bench.qp.state(), from);
            let before = bench.qp.attributes();
            let legal = qp_state::transition(from, target).is_some();
            let result = bench.modify(target);
            assert_eq!(result, if legal { Ok(()) } else { Err(Errno::INVALID) }, "{from:?} -> {target:?}");
            assert_eq!(bench.qp.state(), if legal { target } else { from }, "{from:?} -> {target:?}");
            if !legal {
                assert_eq!(bench.qp.attributes(), before, "{from:?} -> {target:?} changed attributes");
                assert_eq!(bench.core.calls(), [""; 0], "{from:?} -> {target:?} reached the core");
            }
        }
    }
}

#[test]
fn a_connection_is_made_with_the_values_given_and_a_query_returns_them() {
    let bench = bench();
    bench.modify(Init).expect("legal");
    bench.modify(ReadyToReceive).expect("legal");
    bench.modify(ReadyToSend).expect("legal");
    assert_eq!(bench.core.calls(), ["connect 0x4001", "enable 14 6"]);
    assert_eq!(bench.qp.attributes(), attributes());
}

#[rstest]
#[case(|m: &mut Modification| m.attributes.path_mtu = 9)]
#[case(|m: &mut Modification| m.attributes.address.is_global = false)]
#[case(|m: &mut Modification| m.attributes.address.sgid_index = 2)]
#[case(|m: &mut Modification| m.mask = Mask(m.mask.0 & !Mask::DEST_QPN.0))]
#[case(|m: &mut Modification| m.mask = m.mask | Mask::SQ_PSN)]
#[case(|m: &mut Modification| m.mask = m.mask | Mask::CURRENT_STATE)]
#[case(|m: &mut Modification| m.state = 7)]
#[case(|m: &mut Modification| m.state = u32::MAX)]
fn a_bad_argument_changes_nothing(#[case] spoil: fn(&mut Modification)) {
    let bench = bench();
    bench.bring_to(Init);
    let before = bench.qp.attributes();
    let mut wanted = to(Init, ReadyToReceive);
    spoil(&mut wanted);
    assert_eq!(modify(&bench.qp, &bench.core, &wanted), Err(Errno::INVALID));
    assert_eq!((bench.qp.state(), bench.qp.attributes()), (Init, before));
    assert_eq!(bench.core.calls(), [""; 0]);
}

#[test]
fn a_peer_that_the_core_refuses_leaves_the_queue_pair_as_it_was() {
    let mut bench = bench();
    bench.bring_to(Init);
    let before = bench.qp.attributes();
    bench.core.refuses = true;
    assert_eq!(bench.modify(ReadyToReceive), Err(Errno::INVALID));
    assert_eq!((bench.qp.state(), bench.qp.attributes()), (Init, before));
}

#[test]
fn attributes_change_without_a_change_of_state() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    let mut wanted = Modification { mask: Mask::ACCESS, attributes: attributes(), ..Modification::default() };
    wanted.attributes.access = 0x2;
    modify(&bench.qp, &bench.core, &wanted).expect("legal in RTS");
    assert_eq!(bench.core.calls(), ["access 0x2"]);
    assert_eq!(bench.qp.attributes().access, 2);
    wanted.mask = Mask::ACCESS | Mask::CURRENT_STATE;
    wanted.current_state = ReadyToSend as u32;
    assert_eq!(modify(&bench.qp, &bench.core, &wanted), Ok(()));
    wanted.current_state = ReadyToReceive as u32;
    assert_eq!(modify(&bench.qp, &bench.core, &wanted), Err(Errno::INVALID));
}

#[test]
fn signaled_sends_complete_with_all_fields_and_unsignaled_ones_silently() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    let work = SendWork {
        wr_id: 5,
        operation: Operation::Write { remote_addr: 1, rkey: 2 },
        payload: Payload::Inline(smallvec![1; 40]),
        signaled: true,
        fence: false,
        solicited: false,
    };
    bench.post(4, false).expect("RTS");
    bench.qp.send_poster().post(work).expect("RTS");
    bench.core.drain(&bench.qp);
    bench.core.complete(&bench.qp, Status::Success);
    assert_eq!(bench.sent(), []);
    bench.core.complete(&bench.qp, Status::Success);
    let expected = Cqe { wr_id: 5, opcode: 1, byte_length: 40, qpn: 0x88, ..Cqe::default() };
    assert_eq!(bench.sent(), [expected]);
}

#[test]
fn sq_sig_all_reports_every_send() {
    let bench = bench_with(100, true);
    bench.bring_to(ReadyToSend);
    bench.post(1, false).expect("RTS");
    bench.core.complete(&bench.qp, Status::Success);
    assert_eq!(ids(&bench.sent()), [(1, 0)]);
}

#[test]
fn a_failed_unsignaled_send_and_all_behind_it_are_reported() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    for wr_id in 0..3 {
        bench.post(wr_id, false).expect("RTS");
    }
    bench.post_receive(50).expect("RTS");
    bench.core.complete(&bench.qp, Status::RetryExceeded);
    assert_eq!(bench.qp.state(), Error, "the state shows it before the completion can be polled");
    bench.core.fail_by_itself(&bench.qp, QpFailure::Fatal);
    let sent = bench.sent();
    assert_eq!(ids(&sent), [(0, 12), (1, FLUSHED), (2, FLUSHED)]);
    assert!(sent.iter().all(|cqe| cqe.qpn == 0x88 && cqe.opcode == 0));
    let received = bench.received();
    assert_eq!(ids(&received), [(50, FLUSHED)]);
    assert_eq!((received[0].qpn, received[0].opcode, received[0].source_qpn), (0x88, 128, PEER));
    assert_eq!(bench.events(), [EventKind::QpFatal]);
}

#[rstest]
#[case(QpFailure::Fatal, EventKind::QpFatal)]
#[case(QpFailure::InvalidRequest, EventKind::QpRequestError)]
#[case(QpFailure::AccessViolation, EventKind::QpAccessError)]
fn each_failure_has_its_event(#[case] failure: QpFailure, #[case] kind: EventKind) {
    let bench = bench();
    bench.bring_to(ReadyToReceive);
    bench.qp.on_failed(failure);
    bench.qp.on_failed(failure);
    assert_eq!(bench.events(), [kind], "exactly once");
    assert_eq!(bench.qp.state(), Error);
}

#[test]
fn failing_by_the_program_flushes_in_order_and_raises_no_event() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    for wr_id in 0..4 {
        bench.post(wr_id, wr_id == 3).expect("RTS");
        bench.post_receive(10 + wr_id).expect("RTS");
    }
    bench.core.bind(&bench.qp);
    bench.core.bind(&bench.qp);
    bench.modify(Error).expect("legal");
    assert_eq!(ids(&bench.sent()), [(0, FLUSHED), (1, FLUSHED), (2, FLUSHED), (3, FLUSHED)]);
    assert_eq!(ids(&bench.received()), [(10, FLUSHED), (11, FLUSHED), (12, FLUSHED), (13, FLUSHED)]);
    assert_eq!(bench.events(), []);
}

#[test]
fn what_is_posted_in_the_error_state_is_flushed_in_order() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    bench.modify(Error).expect("legal");
    for wr_id in 0..3 {
        bench.post(wr_id, false).expect("ERR takes posts");
        assert_eq!(bench.post_receive(wr_id), Ok(false), "no notice for a queue pair that has failed");
    }
    bench.core.flush(&bench.qp);
    assert_eq!(ids(&bench.sent()), [(0, FLUSHED), (1, FLUSHED), (2, FLUSHED)]);
    assert_eq!(ids(&bench.received()), [(0, FLUSHED), (1, FLUSHED), (2, FLUSHED)]);
}

#[test]
fn a_receive_posted_while_failing_is_not_flushed_before_those_that_messages_had_bound() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    bench.post(0, false).expect("RTS");
    bench.post_receive(1).expect("RTS");
    bench.core.bind(&bench.qp);
    // The send has failed, the core is about to report the rest.
    bench.core.complete(&bench.qp, Status::RetryExceeded);
    bench.post_receive(2).expect("ERR takes posts");
    assert_eq!(bench.received(), []);
    bench.core.fail_by_itself(&bench.qp, QpFailure::Fatal);
    assert_eq!(ids(&bench.received()), [(1, FLUSHED), (2, FLUSHED)]);
}

#[rstest]
#[case(Reset, Err(Errno::INVALID))]
#[case(Init, Ok(true))]
#[case(ReadyToReceive, Ok(true))]
#[case(ReadyToSend, Ok(true))]
#[case(SendQueueDrained, Ok(true))]
fn states_in_which_receives_may_be_posted(#[case] state: QpState, #[case] expected: Result<bool, Errno>) {
    let bench = bench();
    bench.bring_to(state);
    assert_eq!(bench.post_receive(1), expected);
    assert_eq!(bench.qp.receive_queue().available(), u32::from(expected.is_ok()));
}

#[rstest]
#[case(ReceiveKind::Send, 128, 0, 0)]
#[case(ReceiveKind::SendImm([1, 2, 3, 4]), 128, 2, u32::from_ne_bytes([1, 2, 3, 4]))]
#[case(ReceiveKind::SendInv(77), 128, 8, 77)]
#[case(ReceiveKind::WriteImm([4, 3, 2, 1]), 129, 2, u32::from_ne_bytes([4, 3, 2, 1]))]
fn receives_complete_with_all_fields(
    #[case] kind: ReceiveKind,
    #[case] opcode: u32,
    #[case] flags: u32,
    #[case] immediate: u32,
) {
    let bench = bench();
    bench.bring_to(ReadyToReceive);
    bench.post_receive(6).expect("RTR");
    bench.qp.receive_queue().take().expect("posted");
    bench.qp.on_receive_done(&ReceiveDone { solicited: true, ..received(6, Status::Success, kind) });
    let expected = Cqe {
        wr_id: 6,
        opcode,
        flags,
        immediate,
        byte_length: 100,
        qpn: 0x88,
        source_qpn: PEER,
        solicited: true,
        ..Cqe::default()
    };
    assert_eq!(bench.received(), [expected]);
}

#[test]
fn receive_slots_are_free_when_their_completions_were_polled() {
    let bench = bench();
    bench.bring_to(ReadyToReceive);
    for wr_id in 0..16 {
        bench.post_receive(wr_id).expect("a free slot");
    }
    assert_eq!(bench.post_receive(16), Err(Errno::NO_MEMORY));
    for wr_id in 0..2 {
        bench.qp.receive_queue().take().expect("posted");
        assert_eq!(bench.post_receive(16), Err(Errno::NO_MEMORY));
        bench.qp.on_receive_done(&received(wr_id, Status::Success, ReceiveKind::Send));
        assert_eq!(bench.post_receive(16), Err(Errno::NO_MEMORY), "completed, but not polled");
    }
    assert_eq!(bench.received().len(), 2);
    assert_eq!(bench.post_receive(16), Ok(false));
    assert_eq!(bench.post_receive(17), Ok(false));
    assert_eq!(bench.post_receive(18), Err(Errno::NO_MEMORY));
}

#[test]
fn a_notice_is_due_when_somebody_looked_in_vain() {
    let bench = bench();
    bench.bring_to(ReadyToReceive);
    assert_eq!(bench.post_receive(1), Ok(true), "the queue was empty");
    assert_eq!(bench.post_receive(2), Ok(false));
    let queue = bench.qp.receive_queue();
    assert_eq!((queue.take().is_some(), queue.take().is_some(), queue.take().is_some()), (true, true, false));
    assert_eq!(bench.post_receive(3), Ok(true));
    assert_eq!(bench.post_receive(4), Ok(false));
}

#[test]
fn too_many_entries_are_refused() {
    let bench = bench();
    bench.bring_to(Init);
    let sge = metaroce_proto::types::Sge { addr: 0, length: 1, lkey: 0 };
    let mut poster = bench.qp.receive_poster().expect("INIT");
    let request = ReceiveRequest { wr_id: 1, sges: smallvec![sge, sge] };
    assert_eq!(poster.post(request), Err(Errno::INVALID));
    assert!(!poster.finish());
}

#[test]
fn a_reset_forgets_everything_without_completions_and_a_new_life_works() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    for wr_id in 0..16 {
        bench.post(wr_id, true).expect("a free slot");
        bench.post_receive(wr_id).expect("a free slot");
    }
    let stale = bench.core.submitted.borrow()[0];
    bench.modify(Reset).expect("legal");
    assert_eq!(bench.core.calls(), ["reset"]);
    assert_eq!((bench.sent(), bench.received(), bench.events()), (vec![], vec![], vec![]));
    assert_eq!(bench.qp.attributes(), Attributes::default());
    assert_eq!(bench.post(0, true), Err(Errno::INVALID));
    assert_eq!(bench.post_receive(0), Err(Errno::INVALID));

    bench.bring_to(ReadyToSend);
    for wr_id in 0..16 {
        bench.post(wr_id, true).expect("a free slot");
        bench.post_receive(wr_id).expect("a free slot");
    }
    bench.qp.on_send_done(&SendDone { qp: ID, cookie: stale, status: Status::Success, vendor_error: 0 });
    assert_eq!(bench.sent(), [], "a completion of the life before");
    bench.core.complete(&bench.qp, Status::Success);
    assert_eq!(ids(&bench.sent()), [(0, 0)]);
}

#[test]
fn after_a_failure_and_a_reset_the_next_failure_is_told_again() {
    let bench = bench();
    for _ in 0..2 {
        bench.bring_to(ReadyToSend);
        bench.core.fail_by_itself(&bench.qp, QpFailure::Fatal);
        assert_eq!(bench.events(), [EventKind::QpFatal]);
        bench.modify(Reset).expect("legal");
    }
}

#[test]
fn destroying_completes_everything_in_order_before_it_returns() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    for wr_id in 0..3 {
        bench.post(wr_id, false).expect("a free slot");
        bench.post_receive(wr_id).expect("a free slot");
    }
    bench.core.bind(&bench.qp);
    assert!(bench.pd.is_used());
    assert_eq!(bench.send_cq.silence(), Err(Errno::BUSY));
    destroy(&bench.qp, &bench.core);
    assert_eq!(ids(&bench.sent()), [(0, FLUSHED), (1, FLUSHED), (2, FLUSHED)]);
    assert_eq!(ids(&bench.received()), [(0, FLUSHED), (1, FLUSHED), (2, FLUSHED)]);
    assert_eq!(bench.events(), []);
    assert!(!bench.pd.is_used());
    assert_eq!((bench.send_cq.silence(), bench.receive_cq.silence()), (Ok((0, 0)), Ok((0, 0))));
    assert_eq!(bench.post(9, true), Err(Errno::INVALID));
}

#[test]
fn destroying_completes_even_what_the_core_never_reports() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    for wr_id in 0..3 {
        bench.post(wr_id, false).expect("a free slot");
    }
    // A core that forgets them, as after a fork.
    bench.core.submitted.borrow_mut().clear();
    bench.post_receive(7).expect("a free slot");
    destroy(&bench.qp, &bench.core);
    assert_eq!(ids(&bench.sent()), [(0, FLUSHED), (1, FLUSHED), (2, FLUSHED)]);
    assert_eq!(ids(&bench.received()), [(7, FLUSHED)]);
}

#[test]
fn receives_posted_in_init_are_flushed_by_destroying_too() {
    let bench = bench();
    bench.bring_to(Init);
    bench.post_receive(1).expect("INIT");
    destroy(&bench.qp, &bench.core);
    assert_eq!(ids(&bench.received()), [(1, FLUSHED)]);
}

#[test]
fn draining_holds_back_what_is_posted_and_tells_when_the_core_is_done() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    bench.post(1, true).expect("RTS");
    let mut drain = to(ReadyToSend, SendQueueDrained);
    drain.mask = drain.mask | Mask::DRAINED_NOTIFY;
    drain.attributes.drained_notify = true;
    modify(&bench.qp, &bench.core, &drain).expect("legal");
    assert!(bench.qp.is_draining());
    bench.post(2, true).expect("SQD takes posts");
    assert_eq!(bench.core.submitted.borrow().len(), 1, "the core must not get it yet");
    assert_eq!(bench.events(), []);
    bench.core.complete(&bench.qp, Status::Success);
    assert!(!bench.qp.is_draining());
    assert_eq!(bench.events(), [EventKind::SendQueueDrained]);
    bench.modify(ReadyToSend).expect("legal");
    assert_eq!(bench.core.calls(), ["doorbell"]);
    assert_eq!(bench.core.submitted.borrow().len(), 1);
    bench.core.complete(&bench.qp, Status::Success);
    assert_eq!(ids(&bench.sent()), [(1, 0), (2, 0)]);
}

#[test]
fn the_first_packet_in_rtr_is_told_and_later_ones_are_not() {
    let bench = bench();
    bench.bring_to(ReadyToReceive);
    bench.qp.on_established();
    assert_eq!(bench.events(), [EventKind::CommunicationEstablished]);
    bench.modify(ReadyToSend).expect("legal");
    bench.qp.on_established();
    assert_eq!(bench.events(), []);
}

#[test]
fn an_overflowing_completion_queue_fails_the_queue_pair_instead_of_losing_silently() {
    let bench = bench_with(1, true);
    bench.bring_to(ReadyToSend);
    bench.post(0, true).expect("RTS");
    bench.post(1, true).expect("RTS");
    bench.core.complete(&bench.qp, Status::Success);
    assert!(!bench.qp.take_fail_request());
    bench.core.complete(&bench.qp, Status::Success);
    assert_eq!(bench.qp.state(), Error);
    assert!(bench.send_cq.overflowed());
    assert!(bench.qp.take_fail_request(), "the core must be told");
    assert!(!bench.qp.take_fail_request(), "once");
    assert_eq!(bench.events(), [EventKind::QpFatal]);
    assert_eq!(bench.events.withdraw(0, EventKind::is_of_cq), 1, "and the queue's own event");
}

#[test]
fn destroying_withdraws_events_that_nobody_read() {
    let bench = bench();
    bench.bring_to(ReadyToReceive);
    bench.qp.on_established();
    bench.qp.on_failed(QpFailure::Fatal);
    assert_eq!(bench.qp.silence(), 0);
    bench.qp.on_failed(QpFailure::Fatal);
    assert_eq!(bench.events(), []);
}

#[rstest]
#[case(Capabilities { max_send_wr: 32_768, ..Default::default() }, true)]
#[case(Capabilities { max_send_wr: 32_769, ..Default::default() }, false)]
#[case(Capabilities { max_recv_wr: 32_769, ..Default::default() }, false)]
#[case(Capabilities { max_send_sge: 30, max_recv_sge: 30, ..Default::default() }, true)]
#[case(Capabilities { max_send_sge: 31, ..Default::default() }, false)]
#[case(Capabilities { max_recv_sge: 31, ..Default::default() }, false)]
#[case(Capabilities { max_inline_data: 1_024, ..Default::default() }, true)]
#[case(Capabilities { max_inline_data: 1_025, ..Default::default() }, false)]
fn depths(#[case] wanted: Capabilities, #[case] valid: bool) {
    let granted = wanted.grant();
    assert_eq!(granted.is_ok(), valid);
    if let Ok(granted) = granted {
        assert!(granted.max_inline_data >= 220 && granted.max_inline_data >= wanted.max_inline_data);
        assert!(granted.max_send_wr == wanted.max_send_wr && granted.max_recv_sge >= wanted.max_recv_sge.max(1));
    }
}
