//! Three system calls on descriptors that the standard library offers in no safe form: which file a bare number stands
//! for, whether reading from it waits, and a read that does not block on a descriptor whose flags belong to the program. Called by `verbs/channel.rs`.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use crate::verbs::channel::Identity;

/// Which file `descriptor` stands for; `None` if it is not open. The number need not belong to us.
pub(crate) fn identity(descriptor: RawFd) -> Option<Identity> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel checks the number, and writes at most one `stat`.
    let result = unsafe { libc::fstat(descriptor, status.as_mut_ptr()) };
    // SAFETY: zeroed is a valid `stat`, whether or not the kernel filled it.
    let status = unsafe { status.assume_init() };
    (result == 0).then_some(Identity {
        device: status.st_dev,
        inode: status.st_ino,
    })
}

/// Whether reading from `descriptor` waits for something to read: O_NONBLOCK is not set.
pub(crate) fn blocks(descriptor: RawFd) -> bool {
    // SAFETY: the kernel checks the number; this command takes no argument.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK == 0
}

/// Whether reading from `descriptor` at this moment waits: it may wait, and there is nothing to read.
pub(crate) fn would_wait(descriptor: RawFd) -> bool {
    let mut poll = libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd of this frame; the kernel checks the number, and does not wait.
    blocks(descriptor) && unsafe { libc::poll(&raw mut poll, 1, 0) } == 0
}

/// Takes one datagram if there is one, whatever O_NONBLOCK says.
pub(crate) fn receive_now(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`.
    let count = unsafe {
        libc::recv(
            socket.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            libc::MSG_DONTWAIT,
        )
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}
