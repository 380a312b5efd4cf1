//! Memory that several processes share, and how one process hands it to another: a memfd of a fixed size, seen as words,
//! and the descriptor of it in a message over a Unix socket. What is in the words is the caller's business
//! (`engine/neighbours/` of the crate `metaroce`).
//!
//! Nobody on the host is trusted: memory from another process is taken only if nobody can make it smaller, for a look
//! behind its end would kill this process (SIGBUS). Whatever other processes write there are just numbers.

use std::ffi::CStr;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

/// Room for control messages, in words: one descriptor needs three, and who sends more is cut off by the kernel.
const CONTROL_WORDS: usize = 3;
/// Descriptors that fit into that room all the same, because of its rounding.
const MAX_DESCRIPTORS: usize = 2;

/// Shared memory of a fixed size.
#[derive(Debug)]
pub struct SharedMemory {
    memory: OwnedFd,
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping belongs to this value alone until it is dropped, and all that is ever made of it are shared
// references to atomics, which any thread may use.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Makes memory of so many words, all 0; `name` is seen in `/proc/PID/maps`.
    ///
    /// # Errors
    /// Too many open files, no memory, or a kernel that knows no memfd (a sandbox may forbid it).
    pub fn create(name: &CStr, words: usize) -> io::Result<SharedMemory> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a name that ends with NUL; a non-negative result is a descriptor that nobody else owns.
        let memory = unsafe {
            let fd = libc::memfd_create(name.as_ptr(), flags);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: no pointers.
        let sealed = unsafe {
            libc::ftruncate(memory.as_raw_fd(), bytes(words) as libc::off_t) == 0
                && libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, seals) == 0
        };
        if !sealed {
            return Err(io::Error::last_os_error());
        }
        SharedMemory::map(memory, words)
    }

    /// Takes memory that another process made with [`SharedMemory::create`].
    ///
    /// # Errors
    /// `InvalidData` if it is not of this size, or could be made smaller; what the kernel says if it cannot be mapped.
    pub fn adopt(memory: OwnedFd, words: usize) -> io::Result<SharedMemory> {
        // SAFETY: no pointers. Only memory files have seals, any other descriptor is an error.
        let seals = unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            let error = "not a memory file that nobody can make smaller";
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        // Also keeps huge pages out, which may be missing when they are touched.
        if status(&memory)?.st_size as usize != bytes(words) {
            let error = "a memory file of another size";
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        SharedMemory::map(memory, words)
    }

    /// Maps `memory`, which has so many words at least, for good.
    fn map(memory: OwnedFd, words: usize) -> io::Result<SharedMemory> {
        // SAFETY: a new mapping at a place of the kernel's choice, which touches no other memory.
        let start = unsafe {
            libc::mmap(
                null_mut(),
                bytes(words),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                memory.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedMemory {
            memory,
            start,
            words,
        })
    }

    /// Its words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is `words` words long, page-aligned, and lives as long as `self`. It cannot become shorter
        // (sealed). Every value is a valid u64, and other processes' writes are atomic accesses to this one's.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    /// Whether both are the same memory.
    pub fn is_same(&self, other: &SharedMemory) -> bool {
        match (status(&self.memory), status(&other.memory)) {
            (Ok(one), Ok(two)) => (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino),
            _ => false,
        }
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: exactly what `map` mapped; all references to it borrowed `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), bytes(self.words)) };
    }
}

const fn bytes(words: usize) -> usize {
    words * size_of::<AtomicU64>()
}

fn status(fd: &OwnedFd) -> io::Result<libc::stat> {
    // SAFETY: zeroes are a valid `stat`, which the kernel overwrites.
    unsafe {
        let mut status: libc::stat = zeroed();
        match libc::fstat(fd.as_raw_fd(), &raw mut status) {
            0 => Ok(status),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// One byte with a descriptor beside it: a message without data carries none.
struct Envelope {
    byte: u8,
    control: [u64; CONTROL_WORDS],
}

/// Sends `descriptor` over `stream`, without waiting.
///
/// # Errors
/// The other end has gone, or its queue is full (`WouldBlock`).
pub fn send_descriptor(stream: &UnixStream, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut envelope = Envelope {
        byte: 0,
        control: [0; CONTROL_WORDS],
    };
    // SAFETY: the header points at `part` and `envelope`, which live through the call; `control` is as long as one
    // descriptor needs and aligned for `cmsghdr`, so that the first header and its data lie inside of it.
    let sent = unsafe {
        let mut part = part_of(&mut envelope);
        let header = header_of(&mut part, &mut envelope);
        let control = libc::CMSG_FIRSTHDR(&raw const header);
        (*control).cmsg_level = libc::SOL_SOCKET;
        (*control).cmsg_type = libc::SCM_RIGHTS;
        (*control).cmsg_len = libc::CMSG_LEN(size_of::<libc::c_int>() as u32) as _;
        let data = libc::CMSG_DATA(control).cast::<libc::c_int>();
        data.write_unaligned(descriptor.as_raw_fd());
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        libc::sendmsg(stream.as_raw_fd(), &raw const header, flags)
    };
    match sent {
        1 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Receives a descriptor that [`send_descriptor`] sent, without waiting.
///
/// # Errors
/// `WouldBlock` if nothing has come yet; `UnexpectedEof` if there will be nothing; `InvalidData` if something else came.
pub fn receive_descriptor(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut envelope = Envelope {
        byte: 0,
        control: [0; CONTROL_WORDS],
    };
    let mut found: [Option<OwnedFd>; MAX_DESCRIPTORS] = [const { None }; MAX_DESCRIPTORS];
    // SAFETY: the header points at `part` and `envelope`, which live through the call. The kernel says in `cmsg_len` how
    // many descriptors it wrote, all inside of `control`; each is new, and nobody else owns it.
    let received = unsafe {
        let mut part = part_of(&mut envelope);
        let mut header = header_of(&mut part, &mut envelope);
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        let received = libc::recvmsg(stream.as_raw_fd(), &raw mut header, flags);
        let control = libc::CMSG_FIRSTHDR(&raw const header);
        if received >= 0
            && !control.is_null()
            && (*control).cmsg_level == libc::SOL_SOCKET
            && (*control).cmsg_type == libc::SCM_RIGHTS
        {
            let data_bytes =
                ((*control).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            let data = libc::CMSG_DATA(control).cast::<libc::c_int>();
            let count = data_bytes / size_of::<libc::c_int>();
            for (index, place) in found.iter_mut().enumerate().take(count) {
                *place = Some(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
            }
        }
        received
    };
    match (received, found) {
        (..0, _) => Err(io::Error::last_os_error()),
        (0, _) => Err(io::ErrorKind::UnexpectedEof.into()),
        // Those that nobody asked for are closed.
        (_, [Some(descriptor), None]) => Ok(descriptor),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn part_of(envelope: &mut Envelope) -> libc::iovec {
    libc::iovec {
        iov_base: (&raw mut envelope.byte).cast(),
        iov_len: 1,
    }
}

fn header_of(part: &mut libc::iovec, envelope: &mut Envelope) -> libc::msghdr {
    // SAFETY: zeroes are a valid `msghdr`, one without anything.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = part;
    header.msg_iovlen = 1;
    header.msg_control = envelope.control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&envelope.control) as _;
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::sync::atomic::Ordering;

    const WORDS: usize = 1024;

    fn memory() -> SharedMemory {
        SharedMemory::create(c"metaroce-test", WORDS).expect("a memory file needs no rights")
    }

    #[test]
    fn what_was_handed_over_is_the_same_memory() {
        let (one, two) = UnixStream::pair().unwrap();
        let first = memory();
        let nothing = receive_descriptor(&two).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        send_descriptor(&one, first.as_fd()).unwrap();
        drop(one);
        let second = SharedMemory::adopt(receive_descriptor(&two).unwrap(), WORDS).unwrap();
        first.words()[WORDS - 1].store(7, Ordering::Relaxed);
        assert_eq!(second.words()[WORDS - 1].load(Ordering::Relaxed), 7);
        assert!(first.is_same(&second) && !first.is_same(&memory()));
        let end = receive_descriptor(&two).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn memory_that_could_shrink_or_is_of_another_size_is_refused() {
        let descriptor = |memory: &SharedMemory| memory.memory.try_clone().unwrap();
        let other = SharedMemory::create(c"metaroce-test", WORDS / 2).unwrap();
        let refused = |fd: OwnedFd| SharedMemory::adopt(fd, WORDS).unwrap_err().kind();
        assert_eq!(refused(descriptor(&other)), io::ErrorKind::InvalidData);
        let file = File::open("/proc/self/exe").unwrap();
        assert_eq!(refused(file.into()), io::ErrorKind::InvalidData);
        // SAFETY: a name that ends with NUL; the descriptor is new.
        let unsealed = unsafe {
            OwnedFd::from_raw_fd(libc::memfd_create(
                c"metaroce-test".as_ptr(),
                libc::MFD_CLOEXEC,
            ))
        };
        let file = File::from(unsealed.try_clone().unwrap());
        file.set_len(bytes(WORDS) as u64).unwrap();
        assert_eq!(refused(unsealed), io::ErrorKind::InvalidData);
        // What was made here cannot be made smaller by who got it.
        let shrunk = File::from(descriptor(&memory())).set_len(0);
        assert_eq!(shrunk.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn bytes_without_a_descriptor_are_no_memory() {
        let (mut one, two) = UnixStream::pair().unwrap();
        io::Write::write_all(&mut one, b"xx").unwrap();
        let error = receive_descriptor(&two).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
