//! A completion queue: completions in the order in which they became true, and the event that says so.
//!
//! Queue pairs push (under the engine's lock, then this one), any thread of the program polls and arms. Every
//! completion has a number; how far the program has polled ([`Cq::polled`]) is what frees the slots of work queues.
//!
//! An event is sent only when a completion is there to be polled. Arming looks back: completions that came after the
//! last event and were not polled yet raise the event at once, so that one which arrives between the last poll and the
//! arming is not stranded; those that an event told of already do not raise a second one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Weak};

use super::census::{Census, Place};
use super::channel::Channel;
use super::context::{AsyncEvent, AsyncEvents, EventKind};
use super::errno::Errno;
use super::limits::{MAX_CQ, MAX_CQE};
use crate::sync::{AtomicU64, Mutex, Ordering};

/// Entries for which memory is taken at once; beyond, the ring grows as completions arrive.
const FIRST_ENTRIES: usize = 1_024;

static CENSUS: Census = Census::new(MAX_CQ, "completion queues");

/// Number of a completion in its queue, from 0; and a count of completions. Does not wrap in practice (64 bits).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct CqeNumber(pub u64);

/// What a completion reports: the fields of `struct ibv_wc` that are not constant here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cqe {
    /// Of the work request.
    pub wr_id: u64,
    /// `enum ibv_wc_status`.
    pub status: u32,
    /// `enum ibv_wc_opcode`.
    pub opcode: u32,
    /// More about an error.
    pub vendor_error: u32,
    /// Bytes of the message.
    pub byte_length: u32,
    /// Immediate in network order as it lies in memory, or the invalidated rkey.
    pub immediate: u32,
    /// Local queue pair.
    pub qpn: u32,
    /// Remote queue pair.
    pub source_qpn: u32,
    /// `enum ibv_wc_flags`.
    pub flags: u32,
    /// Raises the event of a queue that is armed for solicited completions only; errors always do.
    pub solicited: bool,
}

/// For which completion the program wants an event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum Armed {
    #[default]
    No,
    Solicited,
    Next,
}

#[derive(Debug, Default)]
struct Inner {
    ring: VecDeque<Cqe>,
    capacity: u32,
    /// Completions ever pushed: the number of the next one.
    pushed: u64,
    /// `pushed` when the last event was sent.
    told: u64,
    /// Number after the newest solicited completion.
    solicited: u64,
    armed: Armed,
    /// No event is sent any more: the queue is being destroyed.
    silent: bool,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    inner: Mutex<Inner>,
    polled: AtomicU64,
    overflowed: AtomicBool,
    /// Queue pairs that complete here.
    users: AtomicU32,
    /// Address of the program's `ibv_cq`, which events carry.
    user_handle: AtomicU64,
    channel: Option<Arc<Channel>>,
    completion_events: AtomicU32,
    /// Weak: the events, and their descriptors, go with the context, also when queues are left behind.
    events: Weak<AsyncEvents>,
    async_events: AtomicU32,
    _place: Place,
}

/// What [`Cq::push`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pushed {
    /// It is there, under this number.
    At(CqeNumber),
    /// The queue is full: the completion is lost, the queue pair must fail.
    Overflow,
}

impl Cq {
    /// A queue of at least `entries`. EINVAL for less than one or more than the device has, ENOMEM for one queue too
    /// many.
    pub fn new(
        entries: i64,
        channel: Option<Arc<Channel>>,
        events: &Arc<AsyncEvents>,
    ) -> Result<Self, Errno> {
        let capacity = granted(entries)?;
        let ring = VecDeque::with_capacity(FIRST_ENTRIES.min(capacity as usize));
        Ok(Self {
            inner: Mutex::new(Inner {
                ring,
                capacity,
                ..Inner::default()
            }),
            polled: AtomicU64::new(0),
            overflowed: AtomicBool::new(false),
            users: AtomicU32::new(0),
            user_handle: AtomicU64::new(0),
            channel,
            completion_events: AtomicU32::new(0),
            events: Arc::downgrade(events),
            async_events: AtomicU32::new(0),
            _place: CENSUS.enter()?,
        })
    }

    /// Tells the address of the program's `ibv_cq`, before the queue is used.
    pub fn set_user_handle(&self, address: u64) {
        self.user_handle.store(address, Ordering::Relaxed);
    }

    /// Entries that it holds.
    pub fn capacity(&self) -> u32 {
        self.inner.lock().capacity
    }

    /// Changes the capacity (resize_cq) to at least `entries`: EINVAL beyond the limits or below what is in it.
    pub fn resize(&self, entries: i64) -> Result<u32, Errno> {
        let capacity = granted(entries)?;
        let mut inner = self.inner.lock();
        if inner.ring.len() > capacity as usize {
            return Err(Errno::INVALID);
        }
        inner.capacity = capacity;
        Ok(capacity)
    }

    /// Appends a completion, and sends the event if the queue is armed for it.
    pub fn push(&self, cqe: Cqe) -> Pushed {
        let mut inner = self.inner.lock();
        if inner.ring.len() >= inner.capacity as usize {
            drop(inner);
            self.overflow();
            return Pushed::Overflow;
        }
        let number = inner.pushed;
        inner.ring.push_back(cqe);
        inner.pushed += 1;
        let solicited = cqe.solicited || cqe.status != 0;
        if solicited {
            inner.solicited = inner.pushed;
        }
        if inner.armed == Armed::Next || (inner.armed == Armed::Solicited && solicited) {
            self.tell(&mut inner);
        }
        Pushed::At(CqeNumber(number))
    }

    /// Takes up to `limit` completions, handing each to `each` with its index.
    pub fn poll(&self, limit: usize, mut each: impl FnMut(usize, &Cqe)) -> usize {
        let mut inner = self.inner.lock();
        let count = limit.min(inner.ring.len());
        for (index, cqe) in inner.ring.drain(..count).enumerate() {
            each(index, &cqe);
        }
        if count > 0 {
            // Release: whoever reads the new count may use the slots again (work queues, under their own lock).
            self.polled.fetch_add(count as u64, Ordering::Release);
        }
        count
    }

    /// How many completions the program has taken: those with a smaller number.
    pub fn polled(&self) -> CqeNumber {
        CqeNumber(self.polled.load(Ordering::Acquire))
    }

    /// Asks for an event at the next (solicited) completion. Does nothing without a channel.
    pub fn arm(&self, solicited_only: bool) {
        if self.channel.is_none() {
            return;
        }
        let mut inner = self.inner.lock();
        let wanted = if solicited_only {
            Armed::Solicited
        } else {
            Armed::Next
        };
        inner.armed = inner.armed.max(wanted);
        let newest = if inner.armed == Armed::Next {
            inner.pushed
        } else {
            inner.solicited
        };
        let polled = self.polled.load(Ordering::Relaxed);
        if newest > polled && newest > inner.told {
            self.tell(&mut inner);
        }
    }

    fn tell(&self, inner: &mut Inner) {
        inner.armed = Armed::No;
        inner.told = inner.pushed;
        if let (Some(channel), false) = (&self.channel, inner.silent) {
            self.completion_events.fetch_add(1, Ordering::Relaxed);
            channel.send(self.user_handle.load(Ordering::Relaxed));
        }
    }

    fn overflow(&self) {
        if !self.overflowed.swap(true, Ordering::Relaxed) {
            log::warn!(
                "a completion queue overflowed: it is smaller than the work queues that complete to it"
            );
            self.raise(EventKind::CqError);
        }
    }

    fn raise(&self, kind: EventKind) {
        let Some(events) = self.events.upgrade() else {
            return;
        };
        self.async_events.fetch_add(1, Ordering::Relaxed);
        events.raise(AsyncEvent {
            element: self.user_handle.load(Ordering::Relaxed),
            kind,
        });
    }

    /// Whether a completion was lost. What is in the queue can still be polled.
    pub fn overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// A queue pair completes here from now on.
    pub fn attach(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// A queue pair that completed here is gone.
    pub fn detach(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }

    /// libibverbs has read a completion event of this queue.
    pub fn event_delivered(&self) {
        if let Some(channel) = &self.channel {
            channel.delivered();
        }
    }

    /// First step of destroying: EBUSY while queue pairs complete here; then no event is sent any more, and those that
    /// nobody has read yet are withdrawn. Returns how many events of each kind the program must have acknowledged
    /// before the `ibv_cq` may be freed (completion events, asynchronous events).
    pub fn silence(&self) -> Result<(u32, u32), Errno> {
        if self.users.load(Ordering::Relaxed) > 0 {
            return Err(Errno::BUSY);
        }
        self.inner.lock().silent = true;
        let handle = self.user_handle.load(Ordering::Relaxed);
        if let Some(channel) = &self.channel {
            let withdrawn = channel.withdraw(handle);
            self.completion_events
                .fetch_sub(withdrawn, Ordering::Relaxed);
        }
        if self.async_events.load(Ordering::Relaxed) > 0
            && let Some(events) = self.events.upgrade()
        {
            let withdrawn = events.withdraw(handle, EventKind::is_of_cq);
            self.async_events.fetch_sub(withdrawn, Ordering::Relaxed);
        }
        Ok((
            self.completion_events.load(Ordering::Relaxed),
            self.async_events.load(Ordering::Relaxed),
        ))
    }

    /// Takes [`Cq::silence`] back: the program did not acknowledge in time, the queue lives on.
    pub fn unsilence(&self) {
        self.inner.lock().silent = false;
    }
}

/// The capacity granted for `entries`: the next 2^n - 1, as hardware grants it.
fn granted(entries: i64) -> Result<u32, Errno> {
    if !(1..=i64::from(MAX_CQE)).contains(&entries) {
        return Err(Errno::INVALID);
    }
    Ok((entries as u32 + 1).next_power_of_two() - 1)
}

#[cfg(all(test, not(loom)))]
#[path = "cq_tests.rs"]
mod tests;

#[cfg(all(test, loom))]
#[path = "cq_models.rs"]
mod models;
