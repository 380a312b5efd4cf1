//! A queue pair: its two queues, its state, and what the engine tells it.
//!
//! The ops post ([`Qp::send_poster`], [`Qp::receive_poster`]) and ring the engine's bell; the engine takes
//! ([`Qp::pop_submission`]) and reports (`on_*`, under its own lock). State changes by the program are in `qp_modify.rs`.
//!
//! Locks: each queue has one, taken after the engine's lock and before that of a completion queue. The state is an atomic
//! that is read under the queue's lock when something is posted: whoever changes it takes the lock afterwards, and so
//! finds everything that was posted under the old state.
//!
//! Completions of a queue appear in the order of posting, whatever happens: flushes that the core reports go through the
//! same queue, and receives that no message bound are flushed only after the core has reported those that one had.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use metaroce_proto::event::{QpFailure, ReceiveDone, ReceiveKind, SendDone};
use metaroce_proto::types::{QpId, SendRequest, Status};
use metaroce_proto::wire::Qpn;
use parking_lot::{Mutex, MutexGuard};

use super::context::{AsyncEvent, AsyncEvents, EventKind};
use super::cq::{Cq, Cqe, CqeNumber, Pushed};
use super::errno::Errno;
use super::limits;
use super::mr_memory::MrTable;
use super::pd::Pd;
use super::qp_attributes::Attributes;
use super::qp_state::QpState;
use super::receive_queue::{ReceivePoster, ReceiveQueue};
use super::send_queue::{SendLimits, SendQueue, SendWork, Wqe, WqeNumber};

/// IBV_WC_RECV
const OPCODE_RECV: u32 = 128;
/// IBV_WC_RECV_RDMA_WITH_IMM
const OPCODE_RECV_RDMA_WITH_IMM: u32 = 129;
/// IBV_WC_WITH_IMM
const FLAG_WITH_IMM: u32 = 1 << 1;
/// IBV_WC_WITH_INV
const FLAG_WITH_INV: u32 = 1 << 3;

/// Depths of a queue pair (`struct ibv_qp_cap`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities {
    /// Send work requests.
    pub max_send_wr: u32,
    /// Receive work requests.
    pub max_recv_wr: u32,
    /// Entries of a send work request.
    pub max_send_sge: u32,
    /// Entries of a receive work request.
    pub max_recv_sge: u32,
    /// Inline bytes.
    pub max_inline_data: u32,
}

impl Capabilities {
    /// What is granted: never less than asked for; EINVAL beyond the limits.
    pub fn grant(self) -> Result<Self, Errno> {
        let valid = self.max_send_wr <= limits::MAX_QP_WR
            && self.max_recv_wr <= limits::MAX_QP_WR
            && self.max_send_sge <= limits::MAX_SGE
            && self.max_recv_sge <= limits::MAX_SGE
            && self.max_inline_data <= limits::MAX_INLINE_BYTES;
        if !valid {
            return Err(Errno::INVALID);
        }
        Ok(Self {
            max_send_sge: self.max_send_sge.max(1),
            max_recv_sge: self.max_recv_sge.max(1),
            max_inline_data: self.max_inline_data.max(limits::INLINE_BYTES),
            ..self
        })
    }
}

/// What a queue pair is made of.
#[derive(Clone, Debug)]
pub struct QpParts {
    /// Its protection domain.
    pub pd: Arc<Pd>,
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub receive_cq: Arc<Cq>,
    /// Where receives are posted.
    pub receive_queue: Arc<ReceiveQueue>,
    /// The process's memory regions.
    pub memory: Arc<MrTable>,
    /// The context's asynchronous events. Weak: they go with the context, also when queue pairs are left behind.
    pub events: Weak<AsyncEvents>,
    /// Depths, as granted.
    pub capabilities: Capabilities,
    /// Every send is signaled.
    pub signal_all: bool,
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    id: QpId,
    qpn: Qpn,
    parts: QpParts,
    state: AtomicU8,
    /// A change of state is under way. Taken before the engine's lock, and by nothing that the engine calls.
    pub(super) changing: Mutex<()>,
    pub(super) attributes: Mutex<Attributes>,
    send: Mutex<SendQueue>,
    /// The core has reported all receives that it had taken: what is still posted may be flushed.
    flushing_receives: AtomicBool,
    /// The program knows that this life has failed: it asked for that, or an event told it.
    failure_known: AtomicBool,
    /// A completion queue overflowed: the core must be told, which cannot be done under its own lock.
    wants_failing: AtomicBool,
    /// Draining has been asked for and not reported.
    draining: AtomicBool,
    user_handle: AtomicU64,
    async_events: AtomicU32,
    /// No event is raised any more: the queue pair is being destroyed.
    silent: AtomicBool,
}

/// A send queue under its lock, for posting a list of requests in one go.
#[derive(Debug)]
pub struct SendPoster<'a> {
    qp: &'a Qp,
    queue: MutexGuard<'a, SendQueue>,
    polled: CqeNumber,
    state: QpState,
}

impl Qp {
    /// A queue pair in RESET. It counts as a user of its domain and of its completion queues until it is destroyed.
    pub fn new(id: QpId, qpn: Qpn, parts: QpParts) -> Self {
        let limits = SendLimits {
            capacity: parts.capabilities.max_send_wr,
            max_sge: parts.capabilities.max_send_sge,
            max_inline: parts.capabilities.max_inline_data,
            signal_all: parts.signal_all,
        };
        parts.pd.attach();
        parts.send_cq.attach();
        parts.receive_cq.attach();
        Self {
            id,
            qpn,
            parts,
            state: AtomicU8::new(QpState::Reset as u8),
            changing: Mutex::default(),
            attributes: Mutex::default(),
            send: Mutex::new(SendQueue::new(limits)),
            flushing_receives: AtomicBool::new(false),
            failure_known: AtomicBool::new(false),
            wants_failing: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            user_handle: AtomicU64::new(0),
            async_events: AtomicU32::new(0),
            silent: AtomicBool::new(false),
        }
    }

    /// Its name in the core.
    pub fn id(&self) -> QpId {
        self.id
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Where receives are posted.
    pub fn receive_queue(&self) -> &Arc<ReceiveQueue> {
        &self.parts.receive_queue
    }

    /// Depths, as granted.
    pub fn capabilities(&self) -> Capabilities {
        self.parts.capabilities
    }

    /// Whether every send is signaled.
    pub fn signal_all(&self) -> bool {
        self.parts.signal_all
    }

    /// The attributes, as set by the program.
    pub fn attributes(&self) -> Attributes {
        *self.attributes.lock()
    }

    /// The state.
    pub fn state(&self) -> QpState {
        let number = self.state.load(Ordering::Acquire);
        QpState::from_number(u32::from(number)).expect("only states are stored")
    }

    pub(super) fn set_state(&self, state: QpState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Goes to `to` if the state is still `from`.
    pub(super) fn advance(&self, from: QpState, to: QpState) {
        // Fails only if the queue pair has failed meanwhile: then it stays in the error state.
        let _ =
            self.state
                .compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Whether draining (SQD) is still going on.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Tells the address of the program's `ibv_qp`, before the queue pair is used.
    pub fn set_user_handle(&self, address: u64) {
        self.user_handle.store(address, Ordering::Relaxed);
    }

    // --- posting ---

    /// Locks the send queue for posting; ring the engine's bell afterwards.
    pub fn send_poster(&self) -> SendPoster<'_> {
        let queue = self.send.lock();
        SendPoster {
            qp: self,
            queue,
            polled: self.parts.send_cq.polled(),
            state: self.state(),
        }
    }

    /// Locks the receive queue for posting: EINVAL in RESET.
    pub fn receive_poster(&self) -> Result<ReceivePoster<'_>, Errno> {
        let poster = self
            .parts
            .receive_queue
            .poster(|| self.parts.receive_cq.polled());
        if self.state() == QpState::Reset {
            Err(Errno::INVALID)
        } else {
            Ok(poster)
        }
    }

    /// After receives were posted: flushes them if the queue pair is in the error state. Returns whether it was not.
    pub fn receives_are_wanted(&self) -> bool {
        if self.state() != QpState::Error {
            return true;
        }
        if self.flushing_receives.load(Ordering::Acquire) {
            self.flush_receives();
        }
        false
    }

    /// Whether the core must be told that the queue pair failed (a completion queue overflowed). Asked by the ops, which
    /// hold no lock.
    pub fn take_fail_request(&self) -> bool {
        self.wants_failing.load(Ordering::Relaxed)
            && self.wants_failing.swap(false, Ordering::Relaxed)
    }

    // --- the engine's side ---

    /// The oldest posted request that the core does not have yet.
    pub fn pop_submission(&self) -> Option<SendRequest> {
        let mut queue = self.send.lock();
        if self.state() == QpState::SendQueueDrained {
            None
        } else {
            queue.take()
        }
    }

    /// A send is done.
    pub fn on_send_done(&self, done: &SendDone) {
        if done.status != Status::Success {
            self.enter_error();
        }
        let mut queue = self.send.lock();
        let Some(wqe) = queue.complete(WqeNumber(done.cookie)) else {
            log::debug!(
                "{:?}: completion of request {} of an earlier life",
                self.id,
                done.cookie
            );
            return;
        };
        self.complete_send(&mut queue, wqe, done.status, done.vendor_error);
        let drained = queue.is_drained();
        drop(queue);
        if drained {
            self.report_drained();
        }
    }

    fn complete_send(&self, queue: &mut SendQueue, wqe: Wqe, status: Status, vendor_error: u32) {
        if status == Status::Success && !wqe.signaled {
            return;
        }
        let success = status == Status::Success;
        let pushed = self.parts.send_cq.push(Cqe {
            wr_id: wqe.wr_id,
            status: status as u32,
            opcode: wqe.opcode,
            vendor_error,
            byte_length: if success { wqe.length } else { 0 },
            qpn: self.qpn.get(),
            ..Cqe::default()
        });
        match pushed {
            Pushed::At(number) => queue.completed(number),
            Pushed::Overflow => self.lose_completion(),
        }
    }

    /// A receive that a message had bound is done.
    pub fn on_receive_done(&self, done: &ReceiveDone) {
        let bytes = |value: [u8; 4]| u32::from_ne_bytes(value);
        let (opcode, flags, immediate) = match done.kind {
            ReceiveKind::Send => (OPCODE_RECV, 0, 0),
            ReceiveKind::SendImm(value) => (OPCODE_RECV, FLAG_WITH_IMM, bytes(value)),
            ReceiveKind::SendInv(key) => (OPCODE_RECV, FLAG_WITH_INV, key),
            ReceiveKind::WriteImm(value) => {
                (OPCODE_RECV_RDMA_WITH_IMM, FLAG_WITH_IMM, bytes(value))
            }
        };
        let success = done.status == Status::Success;
        if !success {
            self.enter_error();
        }
        let cqe = Cqe {
            wr_id: done.cookie,
            status: done.status as u32,
            opcode,
            vendor_error: done.vendor_error,
            byte_length: if success { done.byte_length } else { 0 },
            immediate: if success { immediate } else { 0 },
            qpn: self.qpn.get(),
            source_qpn: done.source_qpn.get(),
            flags: if success { flags } else { 0 },
            solicited: done.solicited,
        };
        self.parts
            .receive_queue
            .complete(|| match self.parts.receive_cq.push(cqe) {
                Pushed::At(number) => Some(number),
                Pushed::Overflow => {
                    self.lose_completion();
                    None
                }
            });
    }

    /// The core has failed the queue pair, and reported everything that it had taken.
    pub fn on_failed(&self, failure: QpFailure) {
        if matches!(self.state(), QpState::Reset | QpState::Init) {
            return;
        }
        self.enter_error();
        self.flushing_receives.store(true, Ordering::Release);
        self.flush_receives();
        if !self.failure_known.swap(true, Ordering::Relaxed) {
            self.raise(match failure {
                QpFailure::Fatal => EventKind::QpFatal,
                QpFailure::InvalidRequest => EventKind::QpRequestError,
                QpFailure::AccessViolation => EventKind::QpAccessError,
            });
        }
    }

    /// The peer's first packet arrived in RTR.
    pub fn on_established(&self) {
        if self.state() == QpState::ReadyToReceive {
            self.raise(EventKind::CommunicationEstablished);
        }
    }

    // --- failing ---

    /// RTR, RTS and SQD become ERR. A send error shows in the state before its completion can be polled.
    fn enter_error(&self) {
        for from in [
            QpState::ReadyToSend,
            QpState::SendQueueDrained,
            QpState::ReadyToReceive,
        ] {
            self.advance(from, QpState::Error);
        }
    }

    /// A completion did not fit: the queue pair fails here at once, and in the core as soon as an op comes by.
    fn lose_completion(&self) {
        self.enter_error();
        self.wants_failing.store(true, Ordering::Relaxed);
        if !self.failure_known.swap(true, Ordering::Relaxed) {
            self.raise(EventKind::QpFatal);
        }
    }

    /// From now on the program is the one that ends this life: no event tells of it.
    pub(super) fn fail_by_program(&self) {
        self.failure_known.store(true, Ordering::Relaxed);
        self.set_state(QpState::Error);
    }

    /// The core has reported all receives that it took: flushes those that are still posted, and those to come.
    pub(super) fn open_receive_flush(&self) {
        self.flushing_receives.store(true, Ordering::Release);
        self.flush_receives();
    }

    fn flush_receives(&self) {
        let source_qpn = self.attributes.lock().dest_qpn;
        let flushed = |wr_id| Cqe {
            wr_id,
            status: Status::Flushed as u32,
            opcode: OPCODE_RECV,
            qpn: self.qpn.get(),
            source_qpn,
            ..Cqe::default()
        };
        let cq = &self.parts.receive_cq;
        self.parts
            .receive_queue
            .flush(|wr_id| match cq.push(flushed(wr_id)) {
                Pushed::At(number) => Some(number),
                Pushed::Overflow => None,
            });
    }

    /// The core knows the queue pair no more: completes what is left, in order.
    pub(super) fn flush_all(&self) {
        let mut queue = self.send.lock();
        while let Some(wqe) = queue.abandon() {
            self.complete_send(&mut queue, wqe, Status::Flushed, 0);
        }
        drop(queue);
        self.open_receive_flush();
    }

    /// First step of RESET: what the core does not have yet is forgotten.
    pub(super) fn clear_pending(&self) {
        self.send.lock().clear_pending();
    }

    /// Last step of RESET: a new life begins.
    pub(super) fn clear(&self) {
        self.send.lock().clear();
        self.parts.receive_queue.clear();
        *self.attributes.lock() = Attributes::default();
        for flag in [
            &self.flushing_receives,
            &self.failure_known,
            &self.wants_failing,
            &self.draining,
        ] {
            flag.store(false, Ordering::Relaxed);
        }
    }

    /// Draining begins: the core gets nothing new, and the end of what it has is reported.
    pub(super) fn start_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
        if self.send.lock().is_drained() {
            self.report_drained();
        }
    }

    fn report_drained(&self) {
        if self.draining.load(Ordering::Relaxed)
            && self.state() == QpState::SendQueueDrained
            && self.draining.swap(false, Ordering::Relaxed)
            && self.attributes.lock().drained_notify
        {
            self.raise(EventKind::SendQueueDrained);
        }
    }

    // --- events and the end ---

    fn raise(&self, kind: EventKind) {
        if self.silent.load(Ordering::Relaxed) {
            return;
        }
        let Some(events) = self.parts.events.upgrade() else {
            return;
        };
        self.async_events.fetch_add(1, Ordering::Relaxed);
        events.raise(AsyncEvent {
            element: self.user_handle.load(Ordering::Relaxed),
            kind,
        });
    }

    /// First step of destroying: no event is raised any more, and those that nobody has read are withdrawn. Returns how
    /// many the program must have acknowledged before the `ibv_qp` may be freed.
    pub fn silence(&self) -> u32 {
        self.silent.store(true, Ordering::Relaxed);
        if self.async_events.load(Ordering::Relaxed) > 0
            && let Some(events) = self.parts.events.upgrade()
        {
            let handle = self.user_handle.load(Ordering::Relaxed);
            let withdrawn = events.withdraw(handle, EventKind::is_of_qp);
            self.async_events.fetch_sub(withdrawn, Ordering::Relaxed);
        }
        self.async_events.load(Ordering::Relaxed)
    }

    /// Takes [`Qp::silence`] back: the program did not acknowledge in time.
    pub fn unsilence(&self) {
        self.silent.store(false, Ordering::Relaxed);
    }

    /// It is destroyed: its domain and completion queues may go.
    pub(super) fn detach(&self) {
        self.parts.pd.detach();
        self.parts.send_cq.detach();
        self.parts.receive_cq.detach();
    }
}

impl SendPoster<'_> {
    /// Posts a request: see [`SendQueue::post`].
    pub fn post(&mut self, work: SendWork) -> Result<(), Errno> {
        let parts = &self.qp.parts;
        self.queue
            .post(self.state, self.polled, parts.pd.id(), &parts.memory, work)
    }
}
