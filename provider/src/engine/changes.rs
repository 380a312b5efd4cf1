//! Hearing of changes of the host's interfaces: a netlink socket that the background thread has among what may wake it.
//!
//! What changed is not read from the messages, which may be lost: [`crate::verbs::port::Port`] looks for itself. Called by
//! `background.rs` and `setup.rs`.

use metaroce_proto::types::Time;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Groups of `<linux/rtnetlink.h>`: links, IPv4 addresses, IPv6 addresses.
const GROUPS: u32 = 1 | 1 << 4 | 1 << 8;
/// Messages that one look takes out; what is left wakes the thread again or is seen by the next look.
const MESSAGES_AT_ONCE: usize = 64;
/// A thread that does not sleep in epoll looks this often. A sender that polls loses what it hands to a plane that is gone
/// until somebody looks; a look that finds nothing is one call of the kernel.
const LOOK_EVERY_NS: u64 = 1_000_000;
/// Longest message that is looked at whole, which nobody does.
const MESSAGE_BYTES: usize = 64;

/// The socket.
#[derive(Debug)]
pub(super) struct Changes {
    socket: OwnedFd,
}

impl Changes {
    /// Opens it. Without one, programs learn of changes only when they ask.
    pub(super) fn open(device: &str) -> Option<Changes> {
        match subscribe() {
            Ok(socket) => Some(Changes { socket }),
            Err(error) => {
                log::warn!("{device}: changes of the interface raise no events: {error}");
                None
            }
        }
    }

    /// Readable when something changed.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes the news out; true if there were any.
    fn drain(&self) -> bool {
        let mut news = false;
        for _ in 0..MESSAGES_AT_ONCE {
            let mut message = [0; MESSAGE_BYTES];
            match recv(
                self.socket.as_raw_fd(),
                &mut message,
                MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC,
            ) {
                Err(nix::errno::Errno::EAGAIN) => break,
                // ENOBUFS: more happened than the socket holds, which is news, too.
                Ok(_) | Err(nix::errno::Errno::ENOBUFS) => news = true,
                Err(nix::errno::Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        news
    }
}

fn subscribe() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let family = AddressFamily::Netlink;
    let socket = socket(family, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
    Ok(socket)
}

/// What the background thread keeps between two looks.
#[derive(Debug, Default)]
pub(super) struct Listener {
    looked: Cell<Time>,
}

impl Listener {
    /// True if something changed.
    pub(super) fn hears(&self, changes: Option<&Changes>, now: Time) -> bool {
        self.looked.set(now);
        changes.is_some_and(Changes::drain)
    }

    /// The same for a thread that does not sleep; true only if the last look is long ago.
    pub(super) fn hears_now_and_then(&self, changes: Option<&Changes>, now: Time) -> bool {
        now.since_ns(self.looked.get()) >= LOOK_EVERY_NS && self.hears(changes, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_heard_while_nothing_happens() {
        // Other tests, or the host, may change something at any time: so only that taking out ends.
        let changes = Changes::open("test").expect("a netlink socket needs no rights");
        let listener = Listener::default();
        let quiet = (0..100).any(|_| !listener.hears(Some(&changes), Time::from_ns(1)));
        assert!(quiet && !listener.hears(None, Time::from_ns(2)));
        assert!(!listener.hears_now_and_then(Some(&changes), Time::from_ns(3)));
    }

    /// A plane that its host knows to be gone must not wait for probes that nobody answers: two take some milliseconds.
    #[test]
    fn a_thread_that_does_not_sleep_hears_of_a_change_within_two_milliseconds() {
        // In place of the kernel's news.
        let (news, socket) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let changes = Changes {
            socket: socket.into(),
        };
        let listener = Listener::default();
        let start = Time::from_ns(1);
        assert!(!listener.hears(Some(&changes), start));
        news.send(b"eth2 is down").unwrap();
        let hears_at = |ns| listener.hears_now_and_then(Some(&changes), start + ns);
        assert!(!hears_at(100_000), "not with every turn");
        assert!(hears_at(2_000_000));
        assert!(!hears_at(4_000_000), "once");
    }
}
