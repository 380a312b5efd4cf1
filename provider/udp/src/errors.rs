//! Reads what ICMP (or the local stack) said about packets that were sent: the error queues of the source sockets.
//! Called by the engine when the poller or a failed send says that there is something.
//! An error is a *hint*: anybody on the way may forge one. The engine decides what to believe.

use crate::address::RawAddress;
use crate::sockets::{LocalIndex, Sockets, SourceSlot};
use std::mem::zeroed;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;

/// Most errors that one call of [`Sockets::recv_errors`] reads: a flood of forged ICMP must not hold the engine.
pub const MAX_ERRORS_PER_CALL: usize = 64;
/// Room for `sock_extended_err`, the offender's address and their header.
const CONTROL_BYTES: usize = 256;

/// Who raised an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorOrigin {
    /// This host: for example a packet larger than the device carries.
    Local,
    /// An ICMP or ICMPv6 message.
    Icmp {
        /// ICMP type.
        kind: u8,
        /// ICMP code.
        code: u8,
    },
    /// Something else, by the kernel's number.
    Other(u8),
}

/// One error about a packet that was sent earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerError {
    /// The destination of that packet.
    pub peer: SocketAddr,
    /// The socket that sent it.
    pub source: SourceSlot,
    /// The error as an errno: ECONNREFUSED, EHOSTUNREACH, EMSGSIZE …
    pub errno: i32,
    /// Who says so.
    pub origin: ErrorOrigin,
    /// For EMSGSIZE: the MTU that was told, in bytes with the IP header. Else 0.
    pub mtu: u32,
}

impl PeerError {
    /// True if the peer's host says that nobody listens at the port. Everything else (no route, no answer to ARP, an
    /// interface that is down, a firewall) is about the way there: it may pass, and says nothing about the peer.
    pub fn says_nobody_listens(&self) -> bool {
        self.errno == libc::ECONNREFUSED && matches!(self.origin, ErrorOrigin::Icmp { .. })
    }
}

#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

impl Sockets {
    /// True if [`Sockets::recv_errors`] has something to read. Costs one load.
    pub fn has_errors(&self) -> bool {
        self.any_errors.load(Ordering::Relaxed)
    }

    /// Appends the waiting errors to `out`, [`MAX_ERRORS_PER_CALL`] at most; what is left keeps [`Sockets::has_errors`] true.
    pub fn recv_errors(&self, out: &mut Vec<PeerError>) {
        // Acquire/Release with `note_errors`. Cleared first: an error that arrives while we read sets it again.
        if !self.any_errors.swap(false, Ordering::Acquire) {
            return;
        }
        let mut room = MAX_ERRORS_PER_CALL;
        for (local_index, local) in self.locals.iter().enumerate() {
            for (index, source) in local.sources.iter().enumerate() {
                if !source.has_errors.swap(false, Ordering::Acquire) {
                    continue;
                }
                let slot = SourceSlot {
                    local: LocalIndex(local_index as u8),
                    index: index as u16,
                };
                loop {
                    if room == 0 {
                        self.note_errors(source);
                        return;
                    }
                    match read_one(source.fd.as_raw_fd(), slot) {
                        Queue::Empty => break,
                        Queue::Unknown => {}
                        Queue::Error(error) => out.push(error),
                    }
                    room -= 1;
                }
            }
        }
    }
}

enum Queue {
    Empty,
    /// A message that is no error about a packet of ours.
    Unknown,
    Error(PeerError),
}

fn read_one(fd: RawFd, source: SourceSlot) -> Queue {
    let mut name = RawAddress::empty();
    let mut control = Control([0; CONTROL_BYTES]);
    // SAFETY: msghdr is made of integers and pointers, for which zero is valid.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = RawAddress::CAPACITY;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = CONTROL_BYTES as _;
    // SAFETY: `message` points at `name` and `control`, which outlive the call; no buffer for the packet's own bytes.
    let rc = unsafe {
        libc::recvmsg(
            fd,
            &raw mut message,
            libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT,
        )
    };
    if rc < 0 {
        return Queue::Empty;
    }
    let Some(peer) = name.get() else {
        return Queue::Unknown;
    };
    // SAFETY: the kernel filled `msg_controllen` bytes of `control`; CMSG_NXTHDR stays within, and a message of this
    // type starts with a whole sock_extended_err.
    let extended = unsafe {
        let mut found = None;
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if matches!(
                ((*header).cmsg_level, (*header).cmsg_type),
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
            ) {
                found = Some(
                    libc::CMSG_DATA(header)
                        .cast::<libc::sock_extended_err>()
                        .read_unaligned(),
                );
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
        found
    };
    let Some(extended) = extended else {
        return Queue::Unknown;
    };
    let errno = extended.ee_errno as i32;
    let origin = match extended.ee_origin {
        libc::SO_EE_ORIGIN_LOCAL => ErrorOrigin::Local,
        libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6 => ErrorOrigin::Icmp {
            kind: extended.ee_type,
            code: extended.ee_code,
        },
        other => ErrorOrigin::Other(other),
    };
    let mtu = if errno == libc::EMSGSIZE {
        extended.ee_info
    } else {
        0
    };
    Queue::Error(PeerError {
        peer,
        source,
        errno,
        origin,
        mtu,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockets::LocalIndex;
    use rstest::rstest;

    const PORT: ErrorOrigin = ErrorOrigin::Icmp { kind: 3, code: 3 };
    const PORT_V6: ErrorOrigin = ErrorOrigin::Icmp { kind: 1, code: 4 };
    const HOST: ErrorOrigin = ErrorOrigin::Icmp { kind: 3, code: 1 };
    const NET: ErrorOrigin = ErrorOrigin::Icmp { kind: 3, code: 0 };

    #[rstest]
    #[case(libc::ECONNREFUSED, PORT, true)]
    #[case(libc::ECONNREFUSED, PORT_V6, true)]
    #[case(libc::ECONNREFUSED, ErrorOrigin::Local, false)]
    #[case(libc::EHOSTUNREACH, HOST, false)]
    #[case(libc::EHOSTUNREACH, ErrorOrigin::Local, false)]
    #[case(libc::ENETUNREACH, NET, false)]
    #[case(libc::EACCES, ErrorOrigin::Icmp { kind: 1, code: 1 }, false)]
    #[case(libc::EMSGSIZE, ErrorOrigin::Icmp { kind: 3, code: 4 }, false)]
    fn only_a_refused_port_tells_of_the_peer(
        #[case] errno: i32,
        #[case] origin: ErrorOrigin,
        #[case] expected: bool,
    ) {
        let error = PeerError {
            peer: "10.0.0.2:9".parse().unwrap(),
            source: SourceSlot {
                local: LocalIndex(0),
                index: 0,
            },
            errno,
            origin,
            mtu: 0,
        };
        assert_eq!(error.says_nobody_listens(), expected);
    }
}
