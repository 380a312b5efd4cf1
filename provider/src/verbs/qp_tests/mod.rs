//! Tests of queue pairs with a core that the test plays.

mod changing;
mod completing;

use std::cell::RefCell;

use metaroce_proto::event::{QpFailure, ReceiveDone, ReceiveKind, SendDone};
use metaroce_proto::types::{Operation, Payload, QpId, SgeList, Status};
use metaroce_proto::wire::Qpn;
use rstest::rstest;

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
        self.bound
            .borrow_mut()
            .push(qp.receive_queue().take().expect("a receive").cookie);
    }

    fn complete(&self, qp: &Qp, status: Status) {
        let cookie = self.submitted.borrow_mut().remove(0);
        qp.on_send_done(&SendDone {
            qp: ID,
            cookie,
            status,
            vendor_error: 0,
        });
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
        if self.refuses {
            Err(Errno::INVALID)
        } else {
            Ok(())
        }
    }

    fn enable_send(&self, _qp: &Arc<Qp>, params: &SendParams) -> Result<(), Errno> {
        self.note(&format!("enable {} {}", params.timeout, params.retry_count));
        if self.refuses {
            Err(Errno::INPUT_OUTPUT)
        } else {
            Ok(())
        }
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
    let cq = || Arc::new(Cq::new(cq_entries, None, &events).expect("valid"));
    let (send_cq, receive_cq) = (cq(), cq());
    let pd = Arc::new(Pd::new().expect("room"));
    let wanted = Capabilities {
        max_send_wr: 16,
        max_recv_wr: 16,
        ..Capabilities::default()
    };
    let capabilities = wanted.grant().expect("valid");
    let parts = QpParts {
        pd: Arc::clone(&pd),
        send_cq: Arc::clone(&send_cq),
        receive_cq: Arc::clone(&receive_cq),
        receive_queue: Arc::new(ReceiveQueue::new(16, 1)),
        memory: Arc::new(MrTable::default()),
        events: Arc::downgrade(&events),
        capabilities,
        signal_all,
    };
    let qp = Arc::new(Qp::new(ID, Qpn::truncate(0x88), parts));
    qp.set_user_handle(HANDLE);
    Bench {
        qp,
        core: Core::default(),
        send_cq,
        receive_cq,
        pd,
        events,
    }
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
    let required =
        qp_state::transition(from, state).map_or(Mask::NONE, |transition| transition.required);
    Modification {
        mask: Mask::STATE | required,
        state: state as u32,
        current_state: 0,
        attributes: attributes(),
    }
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
        poster.post(ReceiveRequest {
            wr_id,
            sges: SgeList::new(),
        })?;
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
            CommunicationEstablished, CqError, QpAccessError, QpFatal, QpRequestError,
            SendQueueDrained,
        };
        let kinds = [
            CqError,
            QpFatal,
            QpRequestError,
            QpAccessError,
            CommunicationEstablished,
            SendQueueDrained,
        ];
        let taken = |kind: &EventKind| {
            self.events
                .withdraw(HANDLE, |number| number == *kind as u32)
        };
        kinds
            .iter()
            .flat_map(|kind| std::iter::repeat_n(*kind, taken(kind) as usize))
            .collect()
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
