//! A receive queue: work requests that wait for messages, in the order in which they were posted.
//!
//! An object of its own, apart from the queue pair, so that one queue can serve many (SRQ). The program posts
//! (`plugin/`), the engine takes ([`ReceiveQueue::take`], under its own lock), the queue pair flushes what nobody took.
//!
//! An entry occupies its slot from the post until the program has polled its completion, as on hardware: so a completion
//! queue that was sized for the queue's depth never overflows.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use metaroce_proto::types::{Receive, RqId, SgeList};
use parking_lot::Mutex;

use super::cq::CqeNumber;
use super::errno::Errno;

/// What a posted receive asks for.
#[derive(Clone, Debug)]
pub struct ReceiveRequest {
    /// `wr_id`, returned with the completion.
    pub wr_id: u64,
    /// Where the message goes; entries of length 0 may be left out.
    pub sges: SgeList,
}

#[derive(Debug, Default)]
struct Inner {
    /// Posted and not taken, oldest first.
    waiting: VecDeque<Receive>,
    /// Slots in use: posted, and its completion not polled.
    occupied: u32,
    /// Completions that were pushed: the slot is free once the completion queue was polled beyond the number.
    completed: VecDeque<CqeNumber>,
}

/// A receive queue.
#[derive(Debug)]
pub struct ReceiveQueue {
    id: RqId,
    capacity: u32,
    max_sge: u32,
    inner: Mutex<Inner>,
    /// Entries in `waiting`, to be read without the lock.
    available: AtomicU32,
    /// Somebody looked here in vain, or a peer waits for more: the next post must be told to the engine.
    wanted: AtomicBool,
}

/// A queue under its lock, for posting a list of requests in one go.
#[derive(Debug)]
pub struct ReceivePoster<'a> {
    queue: &'a ReceiveQueue,
    inner: parking_lot::MutexGuard<'a, Inner>,
    polled: CqeNumber,
    was_empty: bool,
}

impl ReceiveQueue {
    /// An empty queue of `capacity` requests of at most `max_sge` entries each.
    pub fn new(capacity: u32, max_sge: u32) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self {
            id: RqId(NEXT.fetch_add(1, Ordering::Relaxed)),
            capacity,
            max_sge,
            inner: Mutex::default(),
            available: AtomicU32::new(0),
            wanted: AtomicBool::new(false),
        }
    }

    /// Names it to the core; never used twice within 2^32 queues.
    pub fn id(&self) -> RqId {
        self.id
    }

    /// Takes the oldest posted receive.
    pub fn take(&self) -> Option<Receive> {
        let mut inner = self.inner.lock();
        let receive = inner.waiting.pop_front();
        self.available
            .store(inner.waiting.len() as u32, Ordering::Relaxed);
        if receive.is_none() {
            // Under the lock: a post that comes next sees it.
            self.wanted.store(true, Ordering::Relaxed);
        }
        receive
    }

    /// Posted receives that nothing has taken yet. Reading 0 means that the next post is worth a notice.
    pub fn available(&self) -> u32 {
        match self.available.load(Ordering::Relaxed) {
            0 => {
                let inner = self.inner.lock();
                if inner.waiting.is_empty() {
                    self.wanted.store(true, Ordering::Relaxed);
                }
                inner.waiting.len() as u32
            }
            count => count,
        }
    }

    /// The next post is to be told, whatever waits already.
    pub fn want(&self) {
        // Under the lock: a post that comes next sees it.
        let _inner = self.inner.lock();
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// Locks the queue for posting. `polled` tells how far the program has polled the completion queue that this queue's
    /// completions go to. It is asked under the lock: with an older answer, another thread that polled and posted meanwhile
    /// might have used the slot that this thread's poll has freed, and its own would still look occupied.
    pub fn poster(&self, polled: impl FnOnce() -> CqeNumber) -> ReceivePoster<'_> {
        let inner = self.inner.lock();
        let was_empty = inner.waiting.is_empty();
        ReceivePoster {
            queue: self,
            inner,
            polled: polled(),
            was_empty,
        }
    }

    /// Completes a taken receive: `push` pushes its completion and returns its number, or `None` if it was lost. Under the
    /// lock, so that a program which polls the completion at once and posts again finds the slot free.
    pub fn complete(&self, push: impl FnOnce() -> Option<CqeNumber>) {
        let mut inner = self.inner.lock();
        let number = push();
        inner.completed.extend(number);
    }

    /// Takes every waiting request, in order, handing each to `flush`, which pushes its completion and returns its
    /// number, or nothing if it was lost. Under the lock all the way: a post that comes meanwhile is flushed after these.
    pub fn flush(&self, mut flush: impl FnMut(u64) -> Option<CqeNumber>) {
        let mut inner = self.inner.lock();
        while let Some(receive) = inner.waiting.pop_front() {
            let number = flush(receive.cookie);
            inner.completed.extend(number);
        }
        self.available.store(0, Ordering::Relaxed);
    }

    /// Forgets everything (RESET).
    pub fn clear(&self) {
        let mut inner = self.inner.lock();
        *inner = Inner::default();
        self.available.store(0, Ordering::Relaxed);
        self.wanted.store(false, Ordering::Relaxed);
    }
}

impl ReceivePoster<'_> {
    /// Posts a request: EINVAL for too many entries, ENOMEM when no slot is free.
    pub fn post(&mut self, request: ReceiveRequest) -> Result<(), Errno> {
        if request.sges.len() > self.queue.max_sge as usize {
            return Err(Errno::INVALID);
        }
        if self.inner.occupied >= self.queue.capacity {
            self.release_polled();
            if self.inner.occupied >= self.queue.capacity {
                return Err(Errno::NO_MEMORY);
            }
        }
        self.inner.occupied += 1;
        self.inner.waiting.push_back(Receive {
            cookie: request.wr_id,
            sges: request.sges,
        });
        Ok(())
    }

    fn release_polled(&mut self) {
        while self
            .inner
            .completed
            .front()
            .is_some_and(|number| *number < self.polled)
        {
            self.inner.completed.pop_front();
            self.inner.occupied = self.inner.occupied.saturating_sub(1);
        }
    }

    /// Ends the posting; whether the engine must be told (`receive_doorbell`).
    pub fn finish(self) -> bool {
        let waiting = self.inner.waiting.len() as u32;
        self.queue.available.store(waiting, Ordering::Relaxed);
        let wanted = self.queue.wanted.swap(false, Ordering::Relaxed);
        waiting > 0 && (wanted || self.was_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WIRE 6.19
    #[test]
    fn a_post_is_told_when_the_queue_was_empty_or_somebody_wants_it() {
        let queue = ReceiveQueue::new(8, 1);
        let post = || {
            let mut poster = queue.poster(|| CqeNumber(0));
            let request = ReceiveRequest {
                wr_id: 1,
                sges: SgeList::new(),
            };
            poster.post(request).unwrap();
            poster.finish()
        };
        assert_eq!([post(), post()], [true, false]);
        queue.want();
        assert_eq!([post(), post()], [true, false]);
    }

    #[test]
    fn how_far_the_program_polled_is_asked_under_the_lock() {
        let queue = ReceiveQueue::new(1, 1);
        let mut asked = false;
        drop(queue.poster(|| {
            asked = queue.inner.is_locked();
            CqeNumber(0)
        }));
        assert!(
            asked,
            "another thread may post between the answer and the lock"
        );
    }
}
