//! The engine: one for each device and process. It owns the sockets and the protocol core and moves them along: in the
//! threads of the application, which transmit when they post and receive when they poll, and in one background thread
//! for when they do neither.
//!
//! Called by `verbs/`, which never holds a lock of its own while it calls a method that takes the engine's lock:
//! the order is engine, then queue pair, receive queue, completion queue. Read first: [`Engine::progress`], then
//! `core.rs` (one turn), `gate.rs` (the lock), `background.rs` (the thread), `transmit.rs` (trains).

mod asked;
mod background;
mod changes;
mod clock;
pub mod config;
mod core;
mod events;
mod gate;
mod hold;
mod host;
#[cfg(all(test, loom))]
mod models;
mod nap;
mod neighbours;
mod output;
mod planes;
mod presence;
mod pressure;
mod reach;
mod reader;
mod registry;
mod report;
mod setup;
mod statistics;
#[cfg(all(test, not(loom)))]
mod tests;
mod transmit;

pub use reader::Driven;
pub(crate) use registry::generation;
pub use registry::{after_fork_in_child, close_all};

use self::asked::Door;
use self::core::{Caller, Core};
use crate::device::Device;
use crate::sync::MutexGuard;
use crate::verbs::limits::MAX_QP;
use crate::verbs::mr_memory::MrTable;
use crate::verbs::{Errno, Port, Qp, ReceiveQueue};
use changes::Changes;
use clock::Clock;
use config::Settings;
use events::Events;
use gate::{Gate, Left};
use metaroce_proto::endpoint::CreateQpError;
use metaroce_proto::types::{Access, ConnectParams, QpConfig, QpId, SendParams, Time};
use metaroce_proto::wire::Qpn;
use metaroce_udp::{Sockets, Waker};
use nap::Nap;
use parking_lot::Mutex;
use planes::Planes;
use presence::Presence;
use reader::Reader;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the end waits for the peers' answers to CLOSE (WIRE.md, "Close").
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);
/// Between two looks for them.
const CLOSE_PAUSE: Duration = Duration::from_micros(200);

/// What the threads share.
struct Inner {
    device: Arc<Device>,
    port: &'static Port,
    planes: Planes,
    memory: Arc<MrTable>,
    settings: Settings,
    sockets: Sockets,
    clock: Clock,
    waker: Waker,
    /// Work left at the door: queue pairs with something posted. Handles, no references: the last reference to a queue
    /// pair may be the last to the engine, which must not end under its own lock.
    gate: Gate<Core, QpId>,
    presence: Presence,
    reader: Reader,
    /// Where `metaroce stat` asks.
    door: Option<Door>,
    /// Tells of changes of the interface.
    changes: Option<Changes>,
    /// Where the core's event log goes, if anybody wants it.
    events: Option<Events>,
    nap: Nap,
    stop: AtomicBool,
    closed: AtomicBool,
    _budget: setup::SourceBudget,
    generation: u32,
}

/// The engine of a device.
pub struct Engine {
    inner: Arc<Inner>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Writes the event log.
    events_thread: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// The engine of `device` in this process; opened, with its port bound and its thread started, if there is none yet.
    ///
    /// # Errors
    /// A wrong setting (`InvalidInput`), no usable address, all ports taken, too few file descriptors; the message names
    /// cause and cure.
    pub fn for_device(device: &Arc<Device>) -> io::Result<Arc<Engine>> {
        registry::engine_for(device)
    }

    /// True in a child process that inherited the engine: it does nothing here, and its methods that can say so fail
    /// with EIO.
    pub fn is_foreign(&self) -> bool {
        self.inner.is_foreign()
    }

    /// Makes a queue pair: `build` gets its handle and number and is called under the engine's lock, so it must not call
    /// the engine.
    ///
    /// # Errors
    /// ENOMEM when the device has as many as it may have; EIO in a child process that inherited the engine.
    pub fn create_qp(
        &self,
        config: QpConfig,
        receive_queue: &Arc<ReceiveQueue>,
        build: &mut dyn FnMut(QpId, Qpn) -> Arc<Qp>,
    ) -> Result<Arc<Qp>, Errno> {
        debug_assert_eq!(config.receive_queue, receive_queue.id());
        let mut core = self.inner.enter()?;
        let made = if core.objects.count() < MAX_QP as usize {
            core.endpoint.create_qp(config)
        } else {
            Err(CreateQpError::Full)
        };
        let (id, qpn) = match made {
            Ok(made) => made,
            Err(error) => {
                self.inner.leave(core);
                log::warn!("{}: {error}", self.inner.device.name);
                return Err(Errno::NO_MEMORY);
            }
        };
        let qp = build(id, qpn);
        debug_assert_eq!((qp.id(), qp.qpn()), (id, qpn));
        core.objects.insert(&qp);
        self.inner.leave(core);
        Ok(qp)
    }

    /// To RTR.
    ///
    /// # Errors
    /// EINVAL if the core cannot connect so (unknown source GID, destination of another address family, …), what the kernel
    /// says if this host has no route to the destination (ENETUNREACH, …); the reason is logged. EIO in a child process that
    /// inherited the engine.
    pub fn connect_qp(&self, qp: &Arc<Qp>, params: &ConnectParams) -> Result<(), Errno> {
        let device = &self.inner.device;
        let (own, peer) = (params.source_gid.to_ip(), params.dest_gid.to_ip());
        // One beyond the last is refused below.
        let port = self.inner.settings.port_base;
        let port = port.saturating_add(params.dest_qpn.endpoint_index());
        if let Err(error) = reach::check_route(own, peer, port, self.scope_of(own)) {
            let why = reach::explain_refusal(&error, peer);
            log::warn!(
                "{}: queue pair {}: {own} cannot reach {peer}: {error}; {why}",
                device.name,
                qp.qpn()
            );
            return Err(Errno::from(error));
        }
        self.change(|core, inner| {
            let now = inner.clock.now();
            core.endpoint
                .connect_qp(now, qp.id(), params)
                .map_err(|error| {
                    log::warn!(
                        "{}: queue pair {}: {own} cannot reach {peer}: {error}",
                        inner.device.name,
                        qp.qpn()
                    );
                    Errno::INVALID
                })
        })?
    }

    /// Index of the interface that has `ip`.
    fn scope_of(&self, ip: IpAddr) -> u32 {
        let device = &self.inner.device;
        let index = device.addresses.iter().position(|one| *one == ip);
        index.map_or(device.index, |index| device.interface_of(index).1)
    }

    /// To RTS; requests that were posted already are taken up.
    ///
    /// # Errors
    /// EIO in a child process that inherited the engine.
    pub fn enable_send(&self, qp: &Arc<Qp>, params: &SendParams) -> Result<(), Errno> {
        self.change(|core, inner| {
            let now = inner.clock.now();
            core.endpoint.enable_send(now, qp.id(), params);
            core.drain(inner, now, qp.id());
        })
    }

    /// What the peer may do from now on.
    ///
    /// # Errors
    /// EIO in a child process that inherited the engine.
    pub fn set_access(&self, qp: &Arc<Qp>, access: Access) -> Result<(), Errno> {
        self.change(|core, _| core.endpoint.set_access(qp.id(), access))
    }

    /// To ERR, by the program. When this returns, every request that was posted before has its completion.
    ///
    /// # Errors
    /// EIO in a child process that inherited the engine.
    pub fn fail_qp(&self, qp: &Arc<Qp>) -> Result<(), Errno> {
        self.change(|core, inner| {
            let now = inner.clock.now();
            core.drain(inner, now, qp.id());
            core.with_host(inner, |endpoint, host| endpoint.fail_qp(now, qp.id(), host));
        })
    }

    /// To RESET. Requests that the core never saw are dropped here, the others by the core.
    ///
    /// # Errors
    /// EIO in a child process that inherited the engine.
    pub fn reset_qp(&self, qp: &Arc<Qp>) -> Result<(), Errno> {
        self.change(|core, inner| {
            let now = inner.clock.now();
            while qp.pop_submission().is_some() {}
            core.with_host(inner, |endpoint, host| {
                endpoint.reset_qp(now, qp.id(), host)
            });
            core.hold.forget();
        })
    }

    /// Flushes as [`Engine::fail_qp`] and forgets the queue pair: no event for it is dispatched after this returns.
    ///
    /// # Errors
    /// EIO in a child process that inherited the engine.
    pub fn destroy_qp(&self, qp: &Arc<Qp>) -> Result<(), Errno> {
        self.change(|core, inner| {
            let now = inner.clock.now();
            core.drain(inner, now, qp.id());
            core.with_host(inner, |endpoint, host| {
                endpoint.destroy_qp(now, qp.id(), host)
            });
            core.flush(inner, now, &mut 0);
            core.objects.remove(qp);
        })
    }

    /// After `post_send`: hands what was posted to the core and transmits, in this thread. If another thread is at work it
    /// will do that, before it goes or at the latest after it unlocked.
    pub fn doorbell(&self, qp: &Arc<Qp>) {
        self.ring(qp, Core::post);
    }

    fn ring(&self, qp: &Arc<Qp>, post: fn(&mut Core, &Inner, Time, QpId)) {
        let inner = &*self.inner;
        if inner.is_foreign() {
            return;
        }
        match inner.gate.try_enter() {
            Some(mut core) => {
                let now = inner.clock.now();
                post(&mut core, inner, now, qp.id());
                inner.leave(core);
            }
            None => {
                let left = inner.gate.leave(qp.id(), |core| inner.serve_left(core));
                inner.note_remains(left);
            }
        }
    }

    /// The same after `post_recv`, when the queue had run dry: the core may owe the peer a credit, at once.
    pub fn receive_doorbell(&self, qp: &Arc<Qp>) {
        self.ring(qp, Core::post_receives);
    }

    /// One bounded turn in this thread: receive, timers, events, transmit. Called by `poll_cq` on an empty queue and now
    /// and then on others. True if events were dispatched. Does nothing if another thread is at it.
    pub fn progress(&self) -> bool {
        let inner = &*self.inner;
        if inner.is_foreign() {
            return false;
        }
        inner.presence.count_poll();
        let Some(mut core) = inner.gate.try_enter() else {
            return false;
        };
        let turn = core.turn(inner, Caller::Polling);
        core.counters.inline_turns += u64::from(turn.worked);
        let end = if turn.worked {
            inner.clock.now()
        } else {
            turn.began
        };
        let told_to_watch = core.streak.end_poll(&inner.presence, end);
        inner.leave(core);
        if told_to_watch {
            inner.waker.wake();
        }
        turn.events > 0
    }

    /// A completion queue was armed for an event: the application is about to block, and the background thread takes
    /// over now.
    pub fn armed(&self) {
        let inner = &*self.inner;
        if inner.is_foreign() {
            return;
        }
        if inner.presence.arm() {
            inner.waker.wake();
        }
    }

    /// Waits until no thread is inside the engine: what was deregistered before is not read or written after.
    pub fn quiesce(&self) {
        if !self.inner.is_foreign() {
            self.inner.leave(self.inner.gate.enter());
        }
    }

    /// Tells every peer that this process ends, waits up to 100 ms for their answers, and writes the statistics. Only the
    /// first call does anything.
    pub fn close(&self) {
        let inner = &*self.inner;
        if inner.is_foreign() || inner.closed.swap(true, Ordering::Relaxed) {
            return;
        }
        inner.stop.store(true, Ordering::Release);
        inner.waker.wake();
        let end = Instant::now() + CLOSE_TIMEOUT;
        let Some(mut core) = inner.gate.enter_within(CLOSE_TIMEOUT) else {
            return;
        };
        core.neighbours.leave();
        core.endpoint.close(inner.clock.now());
        loop {
            core.flush(inner, inner.clock.now(), &mut 0);
            core.turn(inner, Caller::Thorough);
            if !core.outstanding() || Instant::now() >= end {
                break;
            }
            std::thread::sleep(CLOSE_PAUSE);
        }
        if let Some(file) = &inner.settings.statistics {
            statistics::write(file, &core.statistics(inner));
        }
        inner.leave(core);
        if let Some(events) = &inner.events {
            events.flush(inner);
        }
    }

    /// Changes something under the lock, then sends what became due and dispatches what became known before it returns.
    fn change<R>(&self, change: impl FnOnce(&mut Core, &Inner) -> R) -> Result<R, Errno> {
        let inner = &*self.inner;
        let mut core = inner.enter()?;
        let result = change(&mut core, inner);
        core.flush(inner, inner.clock.now(), &mut 0);
        inner.leave(core);
        Ok(result)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.inner.is_foreign() {
            return;
        }
        self.close();
        if let Some(thread) = self.events_thread.lock().take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                log::error!("{}: the events thread panicked", self.inner.device.name);
            }
        }
        let Some(thread) = self.thread.lock().take() else {
            return;
        };
        // The last reference may go in the background thread itself, with the last queue pair.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            log::error!("{}: the background thread panicked", self.inner.device.name);
        }
    }
}

impl Inner {
    /// True in a child process that inherited the engine: its locks may be held by threads that do not exist here, and
    /// its sockets are the parent's.
    fn is_foreign(&self) -> bool {
        self.generation != generation()
    }

    fn enter(&self) -> Result<MutexGuard<'_, Core>, Errno> {
        if self.is_foreign() {
            Err(Errno::INPUT_OUTPUT)
        } else {
            Ok(self.gate.enter())
        }
    }

    /// Unlocks, after making sure that the background thread will be there for the next timeout; then serves what was
    /// left at the door.
    fn leave(&self, core: MutexGuard<'_, Core>) {
        self.ensure_timer(&core);
        let left = self.gate.exit(core, |core| self.serve_left(core));
        self.note_remains(left);
    }

    fn serve_left(&self, core: &mut Core) {
        let now = self.clock.now();
        if core.serve_doorbells(self, now) {
            core.flush(self, now, &mut 0);
        }
        self.ensure_timer(core);
    }

    fn note_remains(&self, left: Left) {
        if left == Left::Remains {
            self.waker.wake();
        }
    }

    /// Wakes the background thread if it would sleep past the next timeout. It looks by itself often enough while
    /// anything is outstanding: this is for the first thing after a silence.
    fn ensure_timer(&self, core: &Core) {
        if self.nap.is_too_long_for(core.next_timeout()) {
            // Once is enough.
            self.nap.end();
            self.waker.wake();
        }
    }
}
