//! Receiving: up to [`MAX_MESSAGES`] buffers of 64 KiB in one `recvmmsg`, each with one packet or a merged train.
//! Called by the engine, which keeps one [`RecvBatch`] for ever.

use crate::address::RawAddress;
use crate::sockets::{Local, LocalIndex, Sockets};
use crate::sockopt::UDP_GRO;
use std::io;
use std::mem::zeroed;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::slice::Chunks;
use std::sync::atomic::Ordering;

/// Bytes of one receive buffer: the kernel merges up to one full IP packet.
pub const BUFFER_BYTES: usize = 65536;
/// Most buffers in one batch; more gain nothing and fall out of the cache.
pub const MAX_MESSAGES: usize = 8;
/// Room for the control messages: ECN, segment size and drops take 24 bytes each.
const CONTROL_BYTES: usize = 128;

/// The ECN field of a received packet (RFC 3168).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// 00: the sender or something on the way does not do ECN.
    NotCapable,
    /// 01.
    Ect1,
    /// 10: what we send.
    Ect0,
    /// 11: a switch on the way is congested.
    CongestionExperienced,
}

impl Ecn {
    fn from_bits(tos: u8) -> Ecn {
        match tos & 3 {
            0 => Ecn::NotCapable,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::CongestionExperienced,
        }
    }
}

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

/// What the kernel told about one filled buffer.
#[derive(Clone, Copy, Debug)]
struct Filled {
    source: SocketAddr,
    len: usize,
    segment_len: usize,
    ecn: Ecn,
}

/// Buffers for [`Sockets::recv`], reused for ever.
pub struct RecvBatch {
    buffers: Vec<Box<[u8]>>,
    filled: Vec<Filled>,
    local: LocalIndex,
}

/// One received message: a packet, or packets of one sender that the kernel merged (equal size, equal ECN mark).
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Who sent it.
    pub source: SocketAddr,
    /// At which local address it arrived.
    pub local: LocalIndex,
    /// The mark of every packet in it.
    pub ecn: Ecn,
    /// Bytes of each packet but the last, which may be shorter; never 0.
    pub segment_len: usize,
    /// The packets, one after the other.
    pub bytes: &'a [u8],
}

impl<'a> Received<'a> {
    /// The packets.
    pub fn packets(&self) -> Chunks<'a, u8> {
        self.bytes.chunks(self.segment_len)
    }
}

impl RecvBatch {
    /// A batch of `messages` buffers (1 to [`MAX_MESSAGES`], else the nearest of these).
    pub fn new(messages: usize) -> RecvBatch {
        let messages = messages.clamp(1, MAX_MESSAGES);
        RecvBatch {
            buffers: (0..messages)
                .map(|_| vec![0; BUFFER_BYTES].into_boxed_slice())
                .collect(),
            filled: Vec::with_capacity(messages),
            local: LocalIndex(0),
        }
    }

    /// How many messages fit.
    pub fn capacity(&self) -> usize {
        self.buffers.len()
    }

    /// What the last [`Sockets::recv`] brought, in order of arrival.
    pub fn iter(&self) -> impl Iterator<Item = Received<'_>> {
        self.filled
            .iter()
            .zip(&self.buffers)
            .map(|(filled, buffer)| Received {
                source: filled.source,
                local: self.local,
                ecn: filled.ecn,
                segment_len: filled.segment_len,
                bytes: &buffer[..filled.len],
            })
    }
}

impl std::fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecvBatch")
            .field("capacity", &self.capacity())
            .field("filled", &self.filled)
            .finish()
    }
}

impl Sockets {
    /// Receives what is there, without waiting, into `batch`, and returns how many messages that was. A full batch
    /// means that there may be more.
    ///
    /// # Errors
    /// `InvalidInput` for an index that does not exist; what `recvmmsg` answers, which is not expected.
    pub fn recv(&self, local: LocalIndex, batch: &mut RecvBatch) -> io::Result<usize> {
        batch.filled.clear();
        batch.local = local;
        let local = self
            .locals
            .get(usize::from(local.0))
            .ok_or(io::ErrorKind::InvalidInput)?;
        let mut names = [RawAddress::empty(); MAX_MESSAGES];
        let mut controls = [Control([0; CONTROL_BYTES]); MAX_MESSAGES];
        // SAFETY: both are made of integers and pointers, for which zero is valid.
        let (mut pieces, mut headers): (
            [libc::iovec; MAX_MESSAGES],
            [libc::mmsghdr; MAX_MESSAGES],
        ) = unsafe { (zeroed(), zeroed()) };
        for (index, buffer) in batch.buffers.iter_mut().enumerate() {
            pieces[index] = libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            };
            let message = &mut headers[index].msg_hdr;
            message.msg_name = (&raw mut names[index]).cast();
            message.msg_namelen = RawAddress::CAPACITY;
            message.msg_iov = &raw mut pieces[index];
            message.msg_iovlen = 1;
            message.msg_control = (&raw mut controls[index]).cast();
            message.msg_controllen = CONTROL_BYTES as _;
        }
        // SAFETY: the first `buffers.len()` headers point at names, controls, pieces and buffers that outlive the call
        // and are as long as the headers say.
        let count = unsafe {
            libc::recvmmsg(
                local.receive.as_raw_fd(),
                headers.as_mut_ptr(),
                batch.buffers.len() as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
                _ => Err(error),
            };
        }
        for (header, name) in headers.iter().zip(&names).take(count as usize) {
            batch.filled.push(filled(local, header, name));
        }
        Ok(count as usize)
    }
}

/// Reads what the kernel told about one message. One that did not fit (none does not) comes out empty.
fn filled(local: &Local, header: &libc::mmsghdr, name: &RawAddress) -> Filled {
    let truncated = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
    let len = if truncated {
        0
    } else {
        header.msg_len as usize
    };
    let mut filled = Filled {
        source: name.get().unwrap_or(local.address),
        len,
        segment_len: len.max(1),
        ecn: Ecn::NotCapable,
    };
    // SAFETY: the kernel filled `msg_controllen` bytes of the control buffer that the header points at, which is
    // still alive; CMSG_NXTHDR stays within. Each datum is read with the size that its type has in the kernel.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(&raw const header.msg_hdr);
        while !control.is_null() {
            let data = libc::CMSG_DATA(control);
            match ((*control).cmsg_level, (*control).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_TOS) => filled.ecn = Ecn::from_bits(*data),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    filled.ecn = Ecn::from_bits(data.cast::<i32>().read_unaligned() as u8);
                }
                (libc::SOL_UDP, UDP_GRO) => {
                    let size = data.cast::<i32>().read_unaligned();
                    filled.segment_len = usize::try_from(size).unwrap_or(1).max(1);
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                    local
                        .drops
                        .store(data.cast::<u32>().read_unaligned(), Ordering::Relaxed);
                }
                _ => {}
            }
            control = libc::CMSG_NXTHDR(&raw const header.msg_hdr, control);
        }
    }
    filled
}
