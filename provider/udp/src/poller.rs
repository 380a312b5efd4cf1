//! Sleeping until packets, ICMP errors or a wake-up arrive: epoll over all sockets, and an eventfd to wake it.
//! Used by the background thread of the engine, and ([`Sockets::wait_or`]) by a thread of the application that blocks until
//! there is an event; a thread that polls does not come here.

use crate::signals::signals_that_wait;
use crate::sockets::{LocalIndex, MAX_LOCALS, Sockets, SourceSlot};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::time::Duration;

/// Events that one wait takes out of epoll; more stay for the next.
const EVENTS: usize = 32;

/// Wakes a thread that sleeps in [`Poller::wait`] or [`Waker::wait`]. Cheap to share.
#[derive(Debug, Clone)]
pub struct Waker {
    event: Arc<OwnedFd>,
}

impl Waker {
    /// A new one, not set.
    ///
    /// # Errors
    /// Too many open files.
    pub fn new() -> io::Result<Waker> {
        // SAFETY: no pointers; a non-negative result is a descriptor that nobody else owns.
        let event = unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Waker {
            event: Arc::new(event),
        })
    }

    /// Wakes the sleeper, or keeps the next one from sleeping.
    pub fn wake(&self) {
        let one = 1u64;
        // SAFETY: eight readable bytes. The call can fail only with EAGAIN, when the counter is full: it is set then.
        let _ = unsafe { libc::write(self.event.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Takes the wake-up back; true if there was one.
    pub fn clear(&self) -> bool {
        let mut count = 0u64;
        // SAFETY: eight writable bytes.
        unsafe { libc::read(self.event.as_raw_fd(), (&raw mut count).cast(), 8) == 8 }
    }

    /// Sleeps until woken or until `timeout` is over, blind to the sockets. True if woken; the wake-up is used up.
    pub fn wait(&self, timeout: Duration) -> bool {
        self.wait_or(None, timeout).woken
    }

    /// As [`Waker::wait`], but also until `other` is readable.
    pub fn wait_or(&self, other: Option<BorrowedFd<'_>>, timeout: Duration) -> Wakened {
        // ppoll skips a negative descriptor.
        let other = other.map_or(-1, |fd| fd.as_raw_fd());
        let [woken, readable] = wait_readable([self.event.as_raw_fd(), other], Some(timeout));
        Wakened {
            woken: woken && self.clear(),
            readable,
        }
    }
}

/// What ended [`Waker::wait_or`]; neither is set if time did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wakened {
    /// The waker was used; the wake-up is used up.
    pub woken: bool,
    /// The other descriptor is readable.
    pub readable: bool,
}

/// What a wait found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    receive: u16,
    /// The waker was used; the wake-up is used up.
    pub woken: bool,
    /// [`Sockets::recv_errors`] has something to read.
    pub errors: bool,
    /// The descriptor of [`Poller::watch`] became readable.
    pub watched: bool,
}

impl Ready {
    /// True if packets wait at this local address.
    pub fn can_receive(&self, local: LocalIndex) -> bool {
        self.receive & 1u16.checked_shl(u32::from(local.0)).unwrap_or(0) != 0
    }

    /// True if packets wait anywhere.
    pub fn can_receive_any(&self) -> bool {
        self.receive != 0
    }
}

/// An epoll set over all sockets of an engine and its waker.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    waker: Waker,
}

const _: () = assert!(
    MAX_LOCALS <= 16,
    "Ready keeps one bit for each local address"
);

/// What an epoll entry stands for, packed into its 64 bits of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Waker,
    Receive(LocalIndex),
    Source(SourceSlot),
    Watched,
}

impl Token {
    fn pack(self) -> u64 {
        match self {
            Token::Waker => 0,
            Token::Receive(local) => 1 << 32 | u64::from(local.0),
            Token::Source(slot) => 2 << 32 | u64::from(slot.local.0) << 16 | u64::from(slot.index),
            Token::Watched => 3 << 32,
        }
    }

    fn unpack(data: u64) -> Option<Token> {
        match data >> 32 {
            0 => Some(Token::Waker),
            1 => Some(Token::Receive(LocalIndex(data as u8))),
            2 => Some(Token::Source(SourceSlot {
                local: LocalIndex((data >> 16) as u8),
                index: data as u16,
            })),
            3 => Some(Token::Watched),
            _ => None,
        }
    }
}

impl Poller {
    /// Watches all of `sockets` and `waker`. The sockets must outlive the poller's use.
    ///
    /// # Errors
    /// Too many open files or epoll watches.
    pub fn new(sockets: &Sockets, waker: &Waker) -> io::Result<Poller> {
        // SAFETY: no pointers; a non-negative result is a descriptor that nobody else owns.
        let epoll = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let poller = Poller {
            epoll,
            waker: waker.clone(),
        };
        poller.add(waker.event.as_raw_fd(), libc::EPOLLIN, Token::Waker)?;
        for (index, local) in sockets.locals.iter().enumerate() {
            let local_index = LocalIndex(index as u8);
            poller.add(
                local.receive.as_raw_fd(),
                libc::EPOLLIN,
                Token::Receive(local_index),
            )?;
            for (index, source) in local.sources.iter().enumerate() {
                let slot = SourceSlot {
                    local: local_index,
                    index: index as u16,
                };
                // EPOLLERR comes unasked. Edge-triggered: a queue that the engine has not read yet must not keep
                // the thread awake.
                poller.add(source.fd.as_raw_fd(), libc::EPOLLET, Token::Source(slot))?;
            }
        }
        Ok(poller)
    }

    /// Watches one descriptor of the caller's own too: [`Ready::watched`] says when something *new* can be read there, once.
    ///
    /// # Errors
    /// Too many epoll watches, or a descriptor that cannot be watched.
    pub fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        // Edge-triggered: what the caller leaves there must not keep the thread awake.
        self.add(
            fd.as_raw_fd(),
            libc::EPOLLIN | libc::EPOLLET,
            Token::Watched,
        )
    }

    fn add(&self, fd: RawFd, events: i32, token: Token) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: events as u32,
            u64: token.pack(),
        };
        // SAFETY: `event` is read during the call only.
        let rc = unsafe {
            libc::epoll_ctl(
                self.epoll.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                fd,
                &raw mut event,
            )
        };
        if rc < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Sleeps until something is ready or `timeout` (none: for ever) is over, with the resolution of the timer.
    /// Returns early, with nothing ready, if a signal arrives.
    ///
    /// # Errors
    /// What `epoll_wait` answers, which is not expected.
    pub fn wait(&self, sockets: &Sockets, timeout: Option<Duration>) -> io::Result<Ready> {
        // epoll_wait counts in milliseconds and epoll_pwait2 is younger than our oldest kernel: an epoll descriptor can
        // itself be polled, by ppoll, which counts in nanoseconds.
        if timeout != Some(Duration::ZERO) {
            wait_readable([self.epoll.as_raw_fd()], timeout);
        }
        // SAFETY: epoll_event is made of integers, for which zero is valid.
        let mut events: [libc::epoll_event; EVENTS] = unsafe { zeroed() };
        // SAFETY: room for EVENTS events.
        let count = unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                EVENTS as i32,
                0,
            )
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted {
                Ok(Ready::default())
            } else {
                Err(error)
            };
        }
        let mut ready = Ready::default();
        for event in &events[..count as usize] {
            let data = event.u64;
            match Token::unpack(data) {
                Some(Token::Waker) => ready.woken = self.waker.clear(),
                Some(Token::Watched) => ready.watched = true,
                Some(Token::Receive(local)) => ready.receive |= 1 << local.0,
                Some(Token::Source(slot)) => {
                    if let Some((_, source)) = sockets.source(slot) {
                        sockets.note_errors(source);
                    }
                }
                None => {}
            }
        }
        ready.errors = sockets.has_errors();
        Ok(ready)
    }

    /// The epoll descriptor: readable when something is ready.
    pub fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}

impl Sockets {
    /// Sleeps until packets arrive at any local address, until `other` is readable, `timeout` is over or a signal arrives.
    /// True if `other` is readable. For a thread that does the engine's work while it waits for something else.
    pub fn wait_or(&self, other: BorrowedFd<'_>, timeout: Duration) -> bool {
        // ppoll skips negative descriptors.
        let mut fds = [-1; MAX_LOCALS + 1];
        fds[0] = other.as_raw_fd();
        for (fd, local) in fds[1..].iter_mut().zip(&self.locals) {
            *fd = local.receive.as_raw_fd();
        }
        wait_readable(fds, Some(timeout))[0]
    }
}

/// Whether `fd` can be read without waiting.
pub fn is_readable(fd: BorrowedFd<'_>) -> bool {
    wait_readable([fd.as_raw_fd()], Some(Duration::ZERO))[0]
}

/// Sleeps until one of `fds` is readable, `timeout` is over or a signal arrives; says which are readable.
fn wait_readable<const N: usize>(fds: [RawFd; N], timeout: Option<Duration>) -> [bool; N] {
    let mut polls = fds.map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    let time = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    });
    let time = time.as_ref().map_or(null(), std::ptr::from_ref);
    let no_mask: *mut libc::sigset_t = null_mut();
    // SAFETY: N pollfds; `time` is null or points at a timespec of this frame; no signal mask.
    unsafe { libc::ppoll(polls.as_mut_ptr(), N as libc::nfds_t, time, no_mask) };
    polls.map(|poll| poll.revents & libc::POLLIN != 0)
}

/// Makes the calling thread a quiet helper: its timers are late by `slack_ns` at most (the kernel's default is 50 µs,
/// more than many waits of ours), and no signal that others send to the process is delivered to it.
pub fn prepare_background_thread(slack_ns: u64) {
    // SAFETY: prctl with this option takes no pointers. Failure leaves the default, which is only less exact.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack_ns as libc::c_ulong) };
    let held = signals_that_wait();
    // SAFETY: changes the calling thread only; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const held, null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::time::Instant;

    #[rstest]
    #[case(Token::Waker)]
    #[case(Token::Receive(LocalIndex(15)))]
    #[case(Token::Watched)]
    #[case(Token::Source(SourceSlot { local: LocalIndex(3), index: 255 }))]
    fn tokens_round_trip(#[case] token: Token) {
        assert_eq!(Token::unpack(token.pack()), Some(token));
    }

    #[test]
    fn a_wake_before_the_wait_is_not_lost() {
        let waker = Waker::new().unwrap();
        waker.wake();
        waker.wake();
        let start = Instant::now();
        assert!(waker.wait(Duration::from_secs(5)));
        assert!(start.elapsed() < Duration::from_secs(4));
        assert!(!waker.wait(Duration::from_millis(1)));
    }
}
