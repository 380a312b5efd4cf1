//! Sending one train of packets: one `sendmsg` with UDP_SEGMENT, or packet by packet where that is refused.
//! Called by the engine with iovecs that point at headers of its own and at the application's memory.
//!
//! Linux answers in ways that need care: the error of an *earlier* packet (an ICMP answer) fails the next send,
//! EINVAL and EIO may mean "no segmentation here", and old kernels take 64 segments only.

use crate::address::RawAddress;
use crate::sockets::{
    Local, SEGMENTS_OF_NEW_KERNELS, SEGMENTS_OF_OLD_KERNELS, Sockets, Source, SourceSlot,
};
use crate::sockopt::UDP_SEGMENT;
use crate::split::{Split, Splitter};
use std::mem::zeroed;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

/// Most packets in a train on any kernel; see also [`Sockets::max_train_segments`].
pub const MAX_TRAIN_SEGMENTS: usize = SEGMENTS_OF_NEW_KERNELS;
/// Most bytes in a train: the kernel builds it as one UDP datagram, 65,535 less the IPv4 and UDP headers.
pub const MAX_TRAIN_BYTES: usize = 65507;
/// Most memory pieces in a train: UIO_MAXIOV of the kernel.
pub const MAX_TRAIN_IOVECS: usize = 1024;

/// Sends of one packet before its error is believed to be its own: each try uses up one error left by an ICMP answer.
const MAX_TRIES: usize = 3;
/// Packets in one `sendmmsg`: bounds the headers on the stack to 2 KiB.
const FALLBACK_PACKETS: usize = 32;
/// Memory pieces in one `sendmmsg`: the most that a packet of the fallback may have.
const FALLBACK_IOVECS: usize = 256;

/// A piece of memory to send.
///
/// It is an address and a length, no borrow: the memory is the application's, and only the *kernel* reads it. If it is
/// not mapped any more the send fails with [`SendError::BadMemory`]; if somebody writes to it meanwhile the packet has
/// old and new bytes mixed, as with every RDMA NIC. Neither can harm this process, so making and sending one is safe.
/// What must be right is the caller's permission to *tell* the peer these bytes: check keys and bounds before.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct IoVec(libc::iovec);

// SAFETY: an address and a length; this crate never dereferences the address, it only hands it to the kernel.
unsafe impl Send for IoVec {}
// SAFETY: as above; there is no interior mutability either.
unsafe impl Sync for IoVec {}

impl IoVec {
    /// A piece by its virtual address.
    pub fn from_address(address: u64, len: usize) -> IoVec {
        IoVec(libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(address as usize),
            iov_len: len,
        })
    }

    /// A piece of the caller's own. The caller keeps `bytes` alive until it was sent.
    pub fn from_slice(bytes: &[u8]) -> IoVec {
        IoVec(libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        })
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a length, not a container")]
    pub fn len(&self) -> usize {
        self.0.iov_len
    }

    /// Virtual address of the first byte.
    pub fn address(&self) -> u64 {
        self.0.iov_base.expose_provenance() as u64
    }

    /// `len` bytes from `offset` on; both must lie within the piece.
    pub(crate) fn part(&self, offset: usize, len: usize) -> IoVec {
        debug_assert!(offset + len <= self.len());
        IoVec(libc::iovec {
            iov_base: self.0.iov_base.wrapping_byte_add(offset),
            iov_len: len,
        })
    }
}

impl std::fmt::Debug for IoVec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}+{}", self.address(), self.len())
    }
}

/// Why packets did not leave, by what the caller shall do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The send buffer or the device queue is full: try again a little later.
    WouldBlock,
    /// A packet is larger than the way out carries (EMSGSIZE): send smaller ones.
    MessageTooLarge,
    /// Some memory of the train is not readable (EFAULT). Nothing tells which: bisect.
    BadMemory,
    /// No way there at present: no route, an interface that is down, no answer to ARP; or one port after the other was
    /// refused. It may pass: treat the packets as lost. The number is the errno.
    Unreachable(i32),
    /// Anything else; the number is the errno. Treat the packets as lost.
    Other(i32),
}

impl std::fmt::Display for SendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SendError::WouldBlock => write!(f, "send buffer full"),
            SendError::MessageTooLarge => write!(f, "packet larger than the path carries"),
            SendError::BadMemory => write!(f, "memory of the message is not readable"),
            SendError::Unreachable(errno) | SendError::Other(errno) => {
                write!(f, "{}", std::io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

impl std::error::Error for SendError {}

/// A train that did not leave whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendFailure {
    /// Why.
    pub error: SendError,
    /// Packets at the front of the train that did leave. Always 0 with segmentation offload.
    pub segments_sent: usize,
}

/// How one system call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Errno(i32);

impl Sockets {
    /// Sends the bytes of `iov`, one after the other, as packets of `segment_len` bytes (the last may be shorter) from
    /// one source port to `destination`. Never blocks.
    ///
    /// Up to [`MAX_TRAIN_BYTES`], [`Sockets::max_train_segments`] and [`MAX_TRAIN_IOVECS`] it is one system call; larger
    /// trains leave packet by packet. An error left behind by an earlier packet (ICMP) is noted for
    /// [`Sockets::recv_errors`] and the train is sent again at once.
    ///
    /// # Errors
    /// See [`SendError`]. `Other(EINVAL)` for an empty train, a `segment_len` of 0 or a source that does not exist,
    /// `Other(EAFNOSUPPORT)` if the destination is of another family than the source.
    pub fn send_train(
        &self,
        source: SourceSlot,
        destination: &SocketAddr,
        iov: &[IoVec],
        segment_len: u16,
    ) -> Result<(), SendFailure> {
        let none_sent = |errno| SendFailure {
            error: classify(Errno(errno)),
            segments_sent: 0,
        };
        let total: usize = iov.iter().map(IoVec::len).sum();
        let Some((local, socket)) = self.source(source) else {
            return Err(none_sent(libc::EINVAL));
        };
        if segment_len == 0 || total == 0 {
            return Err(none_sent(libc::EINVAL));
        }
        let destination = SocketAddr::new(destination.ip().to_canonical(), destination.port());
        let destination = with_scope(destination, &local.address);
        if destination.is_ipv4() != local.address.is_ipv4() {
            return Err(none_sent(libc::EAFNOSUPPORT));
        }
        let segment_len = usize::from(segment_len);
        let segments = total.div_ceil(segment_len);
        let to = RawAddress::new(&destination);
        let detour = self
            .way_to_own(destination.ip())
            .map(|interface| Detour::new(interface, &local.address));
        let detour = detour.as_ref();
        let one_call = iov.len() <= MAX_TRAIN_IOVECS
            && (segments == 1
                || total <= MAX_TRAIN_BYTES
                    && segments <= local.max_segments.load(Ordering::Relaxed)
                    && local.segmentation.load(Ordering::Relaxed));
        if !one_call {
            return self.send_each(socket, &to, detour, iov, segment_len);
        }
        match self.send_once(
            socket,
            &to,
            detour,
            iov,
            (segments > 1).then_some(segment_len as u16),
        ) {
            Ok(()) => Ok(()),
            Err(Errno(libc::EINVAL | libc::EIO | libc::EOPNOTSUPP)) if segments > 1 => {
                self.send_each(socket, &to, detour, iov, segment_len)?;
                // The same packets went one by one: it was the train that was refused.
                note_refusal(local, segments);
                Ok(())
            }
            Err(Errno(errno)) => Err(none_sent(errno)),
        }
    }

    /// One `sendmsg`, repeated while it fails with what an earlier packet left behind.
    fn send_once(
        &self,
        socket: &Source,
        to: &(RawAddress, libc::socklen_t),
        detour: Option<&Detour>,
        iov: &[IoVec],
        segment_len: Option<u16>,
    ) -> Result<(), Errno> {
        let mut control = Control::new(detour);
        let mut message = message(to, iov);
        if let Some(segment_len) = segment_len {
            control.push(libc::SOL_UDP, UDP_SEGMENT, segment_len);
        }
        control.attach(&mut message);
        self.retry(socket, || {
            // SAFETY: `message` points at `to`, `iov` and `control`, which outlive the call; the kernel checks every
            // address in `iov` itself and only reads.
            unsafe {
                libc::sendmsg(
                    socket.fd.as_raw_fd(),
                    &raw const message,
                    libc::MSG_DONTWAIT,
                )
            }
        })
        .map(|_| ())
    }

    /// Calls `send` until it succeeds or its error can no longer be that of an earlier packet.
    fn retry(&self, socket: &Source, mut send: impl FnMut() -> isize) -> Result<usize, Errno> {
        let mut tries = 0;
        loop {
            tries += 1;
            let sent = send();
            if sent >= 0 {
                return Ok(sent as usize);
            }
            let errno = std::io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO);
            let is_icmp = may_come_from_icmp(errno);
            if is_icmp {
                self.note_errors(socket);
            }
            if !(is_icmp || errno == libc::EINTR) || tries >= MAX_TRIES {
                return Err(Errno(errno));
            }
        }
    }

    /// Sends each packet by itself, [`FALLBACK_PACKETS`] in one `sendmmsg`.
    fn send_each(
        &self,
        socket: &Source,
        to: &(RawAddress, libc::socklen_t),
        detour: Option<&Detour>,
        iov: &[IoVec],
        segment_len: usize,
    ) -> Result<(), SendFailure> {
        let mut splitter = Splitter::new(iov, segment_len);
        // The kernel only reads it: all packets share it.
        let mut control = Control::new(detour);
        let mut segments_sent = 0;
        loop {
            let mut pieces = [IoVec::from_slice(&[]); FALLBACK_IOVECS];
            // SAFETY: mmsghdr is made of integers and pointers, for which zero is valid.
            let mut headers: [libc::mmsghdr; FALLBACK_PACKETS] = unsafe { zeroed() };
            let (mut packets, mut used) = (0, 0);
            let end = loop {
                if packets == FALLBACK_PACKETS {
                    break false;
                }
                match splitter.next_packet(&mut pieces[used..]) {
                    Split::Packet(count) => {
                        headers[packets].msg_hdr = message(to, &pieces[used..used + count]);
                        control.attach(&mut headers[packets].msg_hdr);
                        packets += 1;
                        used += count;
                    }
                    Split::NoRoom if packets == 0 => {
                        // One packet of more pieces than a whole batch may have.
                        return Err(SendFailure {
                            error: SendError::Other(libc::E2BIG),
                            segments_sent,
                        });
                    }
                    Split::NoRoom => break false,
                    Split::End => break true,
                }
            };
            let mut done = 0;
            while done < packets {
                let rest = &mut headers[done..packets];
                let sent = self.retry(socket, || {
                    // SAFETY: each header points at `to`, at `control` and at a part of `pieces`, which outlive the call.
                    let sent = unsafe {
                        libc::sendmmsg(
                            socket.fd.as_raw_fd(),
                            rest.as_mut_ptr(),
                            rest.len() as libc::c_uint,
                            libc::MSG_DONTWAIT as _,
                        )
                    };
                    sent as isize
                });
                match sent {
                    Ok(count) => done += count,
                    Err(errno) => {
                        return Err(SendFailure {
                            error: classify(errno),
                            segments_sent: segments_sent + done,
                        });
                    }
                }
            }
            segments_sent += done;
            if end {
                return Ok(());
            }
        }
    }
}

/// Room for the control messages of one send, aligned as the kernel wants them.
#[repr(C, align(8))]
struct Control {
    room: [u64; CONTROL_WORDS],
    used_bytes: usize,
}

/// CMSG_SPACE of a u16 and of an in6_pktinfo is 24 and 40.
const CONTROL_WORDS: usize = 8;

impl Control {
    fn new(detour: Option<&Detour>) -> Control {
        let mut control = Control {
            room: [0; CONTROL_WORDS],
            used_bytes: 0,
        };
        match detour {
            None => {}
            Some(Detour::V4(info)) => control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, *info),
            Some(Detour::V6(info)) => control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, *info),
        }
        control
    }

    fn push<T: Copy>(&mut self, level: libc::c_int, kind: libc::c_int, value: T) {
        let length = size_of::<T>() as u32;
        // SAFETY: arithmetic only.
        let (space, with_header) = unsafe { (libc::CMSG_SPACE(length), libc::CMSG_LEN(length)) };
        assert!(self.used_bytes + space as usize <= size_of_val(&self.room));
        // SAFETY: header and data lie within the room, as was just checked. It is aligned for the header, and CMSG_SPACE
        // keeps that so; `write_unaligned` asks for no alignment.
        unsafe {
            let at = self.room.as_mut_ptr().cast::<u8>().add(self.used_bytes);
            let header = at.cast::<libc::cmsghdr>();
            (*header).cmsg_level = level;
            (*header).cmsg_type = kind;
            (*header).cmsg_len = with_header as _;
            libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
        }
        self.used_bytes += space as usize;
    }

    /// `message` bears what was pushed; it must not outlive this.
    fn attach(&mut self, message: &mut libc::msghdr) {
        if self.used_bytes > 0 {
            message.msg_control = self.room.as_mut_ptr().cast();
            message.msg_controllen = self.used_bytes as _;
        }
    }
}

/// Another way out than the socket's own: an address of this host is reached by its own interface only, which the socket's
/// (`IP_UNICAST_IF`) is not if that is the address of another plane.
#[derive(Clone, Copy)]
enum Detour {
    V4(libc::in_pktinfo),
    V6(libc::in6_pktinfo),
}

impl Detour {
    fn new(interface: u32, source: &SocketAddr) -> Detour {
        match source {
            SocketAddr::V4(v4) => Detour::V4(libc::in_pktinfo {
                ipi_ifindex: interface as _,
                // Without it the kernel would choose the source by the interface.
                ipi_spec_dst: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                ipi_addr: libc::in_addr { s_addr: 0 },
            }),
            // The source is that of the socket.
            SocketAddr::V6(_) => Detour::V6(libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr { s6_addr: [0; 16] },
                ipi6_ifindex: interface,
            }),
        }
    }
}

/// A message header that points at `to` and `pieces`; the kernel only reads through these pointers on a send.
fn message(to: &(RawAddress, libc::socklen_t), pieces: &[IoVec]) -> libc::msghdr {
    // SAFETY: msghdr is made of integers and pointers, for which zero is valid.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_name = (&raw const to.0).cast_mut().cast();
    message.msg_namelen = to.1;
    // IoVec is repr(transparent) over iovec.
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.len() as _;
    message
}

/// A link-local destination without an interface is meant on that of the source.
fn with_scope(destination: SocketAddr, local: &SocketAddr) -> SocketAddr {
    match (destination, local) {
        (SocketAddr::V6(mut to), SocketAddr::V6(from))
            if to.ip().is_unicast_link_local() && to.scope_id() == 0 =>
        {
            to.set_scope_id(from.scope_id());
            SocketAddr::V6(to)
        }
        _ => destination,
    }
}

/// Errors that an ICMP answer to an earlier packet may have left on the socket (`icmp_err_convert` of the kernel).
fn may_come_from_icmp(errno: i32) -> bool {
    matches!(
        errno,
        libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EMSGSIZE
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::ENOPROTOOPT
            | libc::EOPNOTSUPP
            | libc::EPROTO
            | libc::EACCES
    )
}

fn classify(errno: Errno) -> SendError {
    match errno.0 {
        libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR => SendError::WouldBlock,
        libc::EMSGSIZE => SendError::MessageTooLarge,
        libc::EFAULT => SendError::BadMemory,
        libc::ECONNREFUSED
        | libc::EHOSTUNREACH
        | libc::ENETUNREACH
        | libc::EHOSTDOWN
        | libc::ENONET
        | libc::ENETDOWN => SendError::Unreachable(errno.0),
        other => SendError::Other(other),
    }
}

/// Remembers that `local` does not take such trains, so that the next one does not try.
fn note_refusal(local: &Local, segments: usize) {
    if segments > SEGMENTS_OF_OLD_KERNELS {
        local
            .max_segments
            .store(SEGMENTS_OF_OLD_KERNELS, Ordering::Relaxed);
        log::debug!(
            "{}: trains are limited to {SEGMENTS_OF_OLD_KERNELS} packets by this kernel",
            local.address.ip()
        );
    } else if local.segmentation.swap(false, Ordering::Relaxed) {
        log::warn!(
            "{}: UDP segmentation is refused here; packets leave one by one, which costs about four times the CPU",
            local.address.ip()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(libc::EAGAIN, SendError::WouldBlock)]
    #[case(libc::ENOBUFS, SendError::WouldBlock)]
    #[case(libc::EMSGSIZE, SendError::MessageTooLarge)]
    #[case(libc::EFAULT, SendError::BadMemory)]
    #[case(libc::EHOSTUNREACH, SendError::Unreachable(libc::EHOSTUNREACH))]
    #[case(libc::EPERM, SendError::Other(libc::EPERM))]
    fn classes(#[case] errno: i32, #[case] expected: SendError) {
        assert_eq!(classify(Errno(errno)), expected);
    }

    #[test]
    fn link_local_destination_takes_the_interface_of_the_source() {
        let to = with_scope(
            "[fe80::2]:9".parse().unwrap(),
            &"[fe80::1%7]:1".parse().unwrap(),
        );
        assert_eq!(to, "[fe80::2%7]:9".parse().unwrap());
        let kept = with_scope(
            "[fe80::2%3]:9".parse().unwrap(),
            &"[fe80::1%7]:1".parse().unwrap(),
        );
        assert_eq!(kept, "[fe80::2%3]:9".parse().unwrap());
    }
}
