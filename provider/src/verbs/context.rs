//! An open device: what stands behind `struct ibv_context`, and its asynchronous events.
//!
//! `plugin/context.rs` makes one for each `ibv_open_device` and closes it; the ops of the objects find it through the
//! `ibv_context`. The engine is made with the first queue pair, so that a program that only looks binds no port.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use metaroce_proto::types::{Access, ConnectParams, QpConfig, SendParams};
use metaroce_proto::wire::{Gid, Qpn};
use parking_lot::Mutex;

use super::channel::EventPipe;
use super::errno::Errno;
use super::mr_memory::MrTable;
use super::port::Port;
use super::qp::{Qp, QpParts};
use super::qp_modify::{self, Transport};
use crate::device::Device;
use crate::engine::{Driven, Engine};
use metaroce_proto::telemetry::ConnectionInfo;
use metaroce_proto::types::{LocalIndex, Route};
use std::net::IpAddr;

/// Kinds of asynchronous events that this device raises, with the numbers of `enum ibv_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum EventKind {
    /// IBV_EVENT_CQ_ERR
    CqError = 0,
    /// IBV_EVENT_QP_FATAL
    QpFatal = 1,
    /// IBV_EVENT_QP_REQ_ERR
    QpRequestError = 2,
    /// IBV_EVENT_QP_ACCESS_ERR
    QpAccessError = 3,
    /// IBV_EVENT_COMM_EST
    CommunicationEstablished = 4,
    /// IBV_EVENT_SQ_DRAINED
    SendQueueDrained = 5,
    /// IBV_EVENT_PORT_ACTIVE
    PortActive = 9,
    /// IBV_EVENT_PORT_ERR
    PortError = 10,
    /// IBV_EVENT_GID_CHANGE
    GidChange = 18,
}

impl EventKind {
    /// Whether libibverbs takes the element of an event of this number for an `ibv_cq`.
    pub fn is_of_cq(number: u32) -> bool {
        number == Self::CqError as u32
    }

    /// Whether libibverbs takes the element of an event of this number for an `ibv_qp`.
    pub fn is_of_qp(number: u32) -> bool {
        (Self::QpFatal as u32..=7).contains(&number) || number == 16
    }
}

/// An asynchronous event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsyncEvent {
    /// Address of the object's `ibv_*` structure, or the port number.
    pub element: u64,
    /// What happened.
    pub kind: EventKind,
}

/// The asynchronous events of a context, as records of `struct ib_uverbs_async_event_desc`.
#[derive(Debug)]
pub struct AsyncEvents {
    pipe: EventPipe<16>,
}

impl AsyncEvents {
    /// An empty queue.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            pipe: EventPipe::new()?,
        })
    }

    /// Queues an event for `ibv_get_async_event`.
    pub fn raise(&self, event: AsyncEvent) {
        log::debug!("asynchronous event {:?}", event.kind);
        let mut record = [0; 16];
        record[..8].copy_from_slice(&event.element.to_ne_bytes());
        record[8..12].copy_from_slice(&(event.kind as u32).to_ne_bytes());
        self.pipe.send(record);
    }

    /// libibverbs has read an event.
    pub fn delivered(&self) {
        self.pipe.delivered();
    }

    /// Takes back the unread events of an object whose kinds `of_kind` picks; how many there were.
    pub fn withdraw(&self, element: u64, of_kind: impl Fn(u32) -> bool) -> u32 {
        self.pipe.withdraw(|record| {
            let (address, rest) = record.split_first_chunk::<8>().expect("16 bytes");
            let kind = rest.first_chunk::<4>().expect("8 bytes");
            u64::from_ne_bytes(*address) == element && of_kind(u32::from_ne_bytes(*kind))
        })
    }

    /// The descriptor that libibverbs reads. It stays ours: the caller duplicates it.
    pub fn descriptor(&self) -> RawFd {
        self.pipe.reader().as_raw_fd()
    }
}

/// An open device.
pub struct Context {
    /// The device.
    pub device: Arc<Device>,
    /// Its port as it is now.
    pub port: &'static Port,
    /// Its asynchronous events.
    pub events: Arc<AsyncEvents>,
    /// Set with the first queue pair; all contexts of a device share one.
    engine: OnceLock<Arc<Engine>>,
    /// Queue pairs that the program has not destroyed.
    qps: Mutex<HashMap<Qpn, Weak<Qp>>>,
}

impl Context {
    /// Opens `device`.
    pub fn open(device: Arc<Device>) -> io::Result<Arc<Self>> {
        let events = Arc::new(AsyncEvents::new()?);
        let port = Port::of(&device);
        port.listen(&events);
        Ok(Arc::new(Self {
            device,
            port,
            events,
            engine: OnceLock::new(),
            qps: Mutex::default(),
        }))
    }

    /// The descriptor from which libibverbs reads asynchronous events. It stays ours: the caller duplicates it.
    pub fn async_fd(&self) -> RawFd {
        self.events.descriptor()
    }

    /// The memory regions, which all contexts of the process share.
    pub fn memory(&self) -> &'static Arc<MrTable> {
        MrTable::of_process()
    }

    /// The engine, if there is a queue pair that needs it.
    fn engine(&self) -> Option<&Arc<Engine>> {
        self.engine.get()
    }

    /// The open connection of a queue pair.
    ///
    /// # Errors
    /// ENOTCONN if it has none; EIO in a child process that inherited it.
    pub fn connection_of(&self, qp: &Qp) -> Result<ConnectionInfo, Errno> {
        let engine = self.engine().ok_or(Errno::NOT_CONNECTED)?;
        engine.connection_of(qp)
    }

    /// Switches a plane of the connection of a queue pair on or off.
    ///
    /// # Errors
    /// ENOTCONN and EIO as above, ENOENT if there is no such plane, EBUSY if no other is left.
    pub fn set_plane(&self, qp: &Qp, plane: u32, enabled: bool) -> Result<(), Errno> {
        let engine = self.engine().ok_or(Errno::NOT_CONNECTED)?;
        engine.set_plane(qp, plane, enabled)
    }

    /// An address that packets leave from, and the name of its interface.
    pub fn local_of(&self, local: LocalIndex) -> (Option<IpAddr>, String) {
        let engine = self.engine();
        engine.map_or_else(Default::default, |engine| engine.local_of(local))
    }

    /// The source port of a route.
    pub fn source_port(&self, route: Route) -> u16 {
        self.engine().map_or(0, |engine| engine.source_port(route))
    }

    /// Receives were posted, and the queue pair's queue says that somebody waits for them.
    pub fn receive_doorbell(&self, qp: &Arc<Qp>) {
        if let Some(engine) = self.engine() {
            engine.receive_doorbell(qp);
        }
    }

    /// The program polls and finds nothing: this thread does a piece of the engine's work.
    pub fn progress(&self) {
        if let Some(engine) = self.engine() {
            engine.progress();
        }
    }

    /// A completion queue was armed: the program is about to sleep.
    pub fn armed(&self) {
        if let Some(engine) = self.engine() {
            engine.armed();
        }
    }

    /// The program is about to block until `event` is readable: see [`Engine::drive`].
    pub fn drive(&self, event: BorrowedFd<'_>, is_wanted: &dyn Fn() -> bool) -> Driven {
        self.engine()
            .map_or(Driven::Read, |engine| engine.drive(event, is_wanted))
    }

    /// EIO in a child process whose parent had queue pairs when it forked: nothing that is posted here would ever
    /// complete. Asked by the ops whose program would wait for that.
    pub fn check_process(&self) -> Result<(), Errno> {
        static TOLD: AtomicBool = AtomicBool::new(false);
        if !self.engine().is_some_and(|engine| engine.is_foreign()) {
            return Ok(());
        }
        if !TOLD.swap(true, Ordering::Relaxed) {
            log::error!(
                "{}: the queue pairs of the parent process cannot be used after fork: open the device in the child",
                self.device.name
            );
        }
        Err(Errno::INPUT_OUTPUT)
    }

    fn engine_or_open(&self) -> Result<&Arc<Engine>, Errno> {
        if let Some(engine) = self.engine.get() {
            self.check_process()?;
            return Ok(engine);
        }
        let device = self.port.seal(&self.device);
        let engine = Engine::for_device(&device).map_err(|error| {
            log::error!("{}: {error}", self.device.name);
            Errno::from(error)
        })?;
        Ok(self.engine.get_or_init(|| engine))
    }

    /// Makes a queue pair, in RESET.
    pub fn create_qp(&self, parts: &QpParts) -> Result<Arc<Qp>, Errno> {
        let engine = self.engine_or_open()?;
        let config = QpConfig {
            pd: parts.pd.id(),
            receive_queue: parts.receive_queue.id(),
            shared_receive_queue: false,
        };
        let qp = engine.create_qp(config, &parts.receive_queue, &mut |id, qpn| {
            Arc::new(Qp::new(id, qpn, parts.clone()))
        })?;
        self.qps.lock().insert(qp.qpn(), Arc::downgrade(&qp));
        Ok(qp)
    }

    /// Destroys a queue pair: all its work requests have completed when this returns.
    pub fn destroy_qp(&self, qp: &Arc<Qp>) {
        qp_modify::destroy(qp, self);
        self.qps.lock().remove(&qp.qpn());
    }

    /// Memory was deregistered or changed: waits until no thread is about to send from where it was.
    pub fn quiesce(&self) {
        if let Some(engine) = self.engine.get() {
            engine.quiesce();
        }
    }
}

impl Drop for Context {
    /// The program closes the device: queue pairs that it left behind end as if it had destroyed them.
    fn drop(&mut self) {
        let left: Vec<_> = self.qps.lock().values().filter_map(Weak::upgrade).collect();
        for qp in left {
            qp.silence();
            self.destroy_qp(&qp);
        }
    }
}

impl Transport for Context {
    fn connect(&self, qp: &Arc<Qp>, params: &ConnectParams) -> Result<(), Errno> {
        self.engine_or_open()?.connect_qp(qp, params)
    }

    fn enable_send(&self, qp: &Arc<Qp>, params: &SendParams) -> Result<(), Errno> {
        self.engine_or_open()?.enable_send(qp, params)
    }

    fn set_access(&self, qp: &Arc<Qp>, access: Access) -> Result<(), Errno> {
        self.engine_or_open()?.set_access(qp, access)
    }

    fn fail(&self, qp: &Arc<Qp>) {
        self.without_core(self.engine().map(|engine| engine.fail_qp(qp)));
    }

    fn reset(&self, qp: &Arc<Qp>) {
        self.without_core(self.engine().map(|engine| engine.reset_qp(qp)));
    }

    fn destroy(&self, qp: &Arc<Qp>) {
        self.without_core(self.engine().map(|engine| engine.destroy_qp(qp)));
    }

    fn doorbell(&self, qp: &Arc<Qp>) {
        if let Some(engine) = self.engine() {
            engine.doorbell(qp);
        }
    }

    fn source_gid(&self, index: u8) -> Option<Gid> {
        let gid = self.port.source_gid(usize::from(index))?;
        Some(Gid(*gid.as_bytes()))
    }
}

impl Context {
    /// In a child process the engine is the parent's, and refuses: what the parent's queue pairs were is forgotten.
    fn without_core(&self, result: Option<Result<(), Errno>>) {
        if let Some(Err(error)) = result {
            log::debug!(
                "{}: {error}: the engine belongs to another process",
                self.device.name
            );
        }
    }
}
