//! Descriptors that libibverbs reads: completion channels, and (by way of `context.rs`) asynchronous events.
//!
//! `ibv_get_cq_event` and `ibv_get_async_event` are a read(2) of one record. A datagram socket pair keeps records whole
//! for any number of readers, and works with poll, epoll and O_NONBLOCK. The writing end never blocks: what does not
//! fit waits here, and goes out when libibverbs reports that it has read a record (ops `cq_event`, `async_event`), so
//! nothing is lost and nobody hangs. Records of an object that is destroyed are withdrawn, as the kernel does.
//!
//! A forked child has its parent's pipes: the ends are the same sockets. What it does to its copy of an object must not put
//! an event into the parent's pipe, which the parent would read and acknowledge without having been sent it, nor take
//! one out. So a pipe does nothing in another process than the one that made it.
//!
//! libibverbs closes a channel's descriptor without a word. A channel is therefore known by descriptor *and* inode, and
//! those that are gone are swept out when the next one is made.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::context::Context;
use crate::engine::{self, Driven};
use crate::plugin::descriptors;

/// Bytes of the longest record (`struct ib_uverbs_async_event_desc`).
const MAX_RECORD_BYTES: usize = 16;

/// Making a channel takes microseconds. Longer means that the thread that held the lock did not survive a fork.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Records that one withdrawal looks at: more than a socket holds (`net.unix.max_dgram_qlen` is at most a few hundred).
const MAX_WITHDRAWN: usize = 65_536;

/// A pipe of records of `N` bytes.
#[derive(Debug)]
pub struct EventPipe<const N: usize> {
    reader: UnixDatagram,
    writer: UnixDatagram,
    /// Records that found the socket full, oldest first.
    waiting: Mutex<VecDeque<[u8; N]>>,
    /// The process that made it.
    generation: u32,
}

impl<const N: usize> EventPipe<N> {
    const FITS: () = assert!(N <= MAX_RECORD_BYTES);

    /// A new, empty pipe.
    pub fn new() -> io::Result<Self> {
        let () = Self::FITS;
        let (reader, writer) = UnixDatagram::pair()?;
        writer.set_nonblocking(true)?;
        Ok(Self {
            reader,
            writer,
            waiting: Mutex::default(),
            generation: engine::generation(),
        })
    }

    /// Asked before the lock is taken, which a thread of the parent may have held at the fork.
    fn is_inherited(&self) -> bool {
        self.generation != engine::generation()
    }

    /// The end to read from. It stays open with the pipe: give duplicates away.
    pub fn reader(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// Appends a record; never blocks, never loses it.
    pub fn send(&self, record: [u8; N]) {
        if self.is_inherited() {
            return;
        }
        let mut waiting = self.waiting.lock();
        waiting.push_back(record);
        self.flush(&mut waiting);
    }

    /// Somebody has read a record: there is room.
    pub fn delivered(&self) {
        if self.is_inherited() {
            return;
        }
        let mut waiting = self.waiting.lock();
        if !waiting.is_empty() {
            self.flush(&mut waiting);
        }
    }

    /// Takes back all unread records that `matches` picks, and returns how many. The others keep their order; a reader
    /// that comes just then sees an empty pipe for a moment.
    pub fn withdraw(&self, matches: impl Fn(&[u8; N]) -> bool) -> u32 {
        if self.is_inherited() {
            return 0;
        }
        let mut waiting = self.waiting.lock();
        let mut unread = VecDeque::new();
        let mut record = [0; N];
        while unread.len() < MAX_WITHDRAWN
            && descriptors::receive_now(self.reader.as_fd(), &mut record)
                .is_ok_and(|count| count == N)
        {
            unread.push_back(record);
        }
        unread.append(&mut waiting);
        let before = unread.len();
        unread.retain(|record| !matches(record));
        let withdrawn = before - unread.len();
        *waiting = unread;
        self.flush(&mut waiting);
        withdrawn as u32
    }

    /// Under the lock of `waiting`: a reader that makes room while a record is being put aside reports it only after.
    fn flush(&self, waiting: &mut VecDeque<[u8; N]>) {
        while let Some(record) = waiting.front() {
            match self.writer.send(record) {
                Ok(_) => waiting.pop_front(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Full: `delivered` comes back to it. (Other errors there are none between the ends of a pair.)
                Err(_) => return,
            };
        }
    }
}

/// What tells one open file from another: device and inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

/// A completion channel: a pipe of `ibv_cq` addresses (`struct ib_uverbs_comp_event_desc`).
#[derive(Debug)]
pub struct Channel {
    pipe: EventPipe<8>,
    identity: Identity,
    /// Whose completion queues send their events here.
    context: OnceLock<Weak<Context>>,
}

impl Channel {
    fn new() -> io::Result<Self> {
        let pipe = EventPipe::new()?;
        let metadata = File::from(pipe.reader().try_clone_to_owned()?).metadata()?;
        Ok(Self {
            pipe,
            identity: Identity {
                device: metadata.dev(),
                inode: metadata.ino(),
            },
            context: OnceLock::new(),
        })
    }

    /// A completion queue of `context` sends its events here.
    pub fn attach(&self, context: &Arc<Context>) {
        // A channel belongs to one context: later calls say the same.
        self.context.get_or_init(|| Arc::downgrade(context));
    }

    /// Sends the event of the completion queue whose `ibv_cq` has this address.
    pub fn send(&self, cq: u64) {
        self.pipe.send(cq.to_ne_bytes());
    }

    /// libibverbs has read an event.
    pub fn delivered(&self) {
        self.pipe.delivered();
    }

    /// Takes back the unread events of a completion queue; how many there were.
    pub fn withdraw(&self, cq: u64) -> u32 {
        self.pipe
            .withdraw(|record| u64::from_ne_bytes(*record) == cq)
    }
}

/// A channel and the number under which libibverbs knows it.
#[derive(Debug)]
struct Known {
    descriptor: RawFd,
    channel: Arc<Channel>,
}

/// The channels of the process. Nothing in it in a child that was forked while another thread made a channel: the lock is
/// held there by a thread that does not exist.
fn channels() -> Option<MutexGuard<'static, Vec<Known>>> {
    static CHANNELS: Mutex<Vec<Known>> = Mutex::new(Vec::new());
    CHANNELS.try_lock_for(LOCK_TIMEOUT)
}

/// Makes a completion channel; the descriptor belongs to libibverbs, which closes it.
pub fn create() -> io::Result<RawFd> {
    create_owned().map(IntoRawFd::into_raw_fd)
}

/// As [`create`], for one who closes it himself.
pub(super) fn create_owned() -> io::Result<OwnedFd> {
    let channel = Channel::new()?;
    let descriptor = channel.pipe.reader().try_clone_to_owned()?;
    let mut channels = channels().ok_or_else(|| {
        io::Error::other("this process was forked while its parent made a completion channel")
    })?;
    channels
        .retain(|known| descriptors::identity(known.descriptor) == Some(known.channel.identity));
    channels.push(Known {
        descriptor: descriptor.as_raw_fd(),
        channel: Arc::new(channel),
    });
    Ok(descriptor)
}

/// The channel that libibverbs knows as `descriptor`.
pub fn find(descriptor: RawFd) -> Option<Arc<Channel>> {
    let identity = descriptors::identity(descriptor)?;
    let channels = channels()?;
    let mut of_number = channels
        .iter()
        .filter(|known| known.descriptor == descriptor);
    of_number
        .find(|known| known.channel.identity == identity)
        .map(|known| Arc::clone(&known.channel))
}

/// libibverbs is about to read from `descriptor`, whatever that is: if it is a channel's, and reading would block, this
/// thread may do the engine's work until there is an event. See [`crate::engine::Engine::drive`].
pub fn drive(descriptor: RawFd, is_wanted: &dyn Fn() -> bool) -> Driven {
    let Some(channel) = find(descriptor) else {
        return Driven::Read;
    };
    let context = channel.context.get().and_then(Weak::upgrade);
    match context {
        Some(context) if !channel.pipe.is_inherited() && descriptors::blocks(descriptor) => {
            context.drive(channel.pipe.reader(), is_wanted)
        }
        _ => Driven::Read,
    }
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
