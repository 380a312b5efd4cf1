//! The door at which `metaroce stat` knocks: an abstract Unix socket for each engine ([`crate::telemetry`]).
//!
//! Nobody waits at it. The background thread has the socket among what may wake it anyway, looks who is there, and lets
//! a thread of its own answer, which lives for that one answer: it takes the snapshot under the engine's lock in short
//! parts, and writes it out without. So an engine that is not asked does nothing for it, and one that is asked does not
//! stop for a slow reader. Called by `background.rs` and `setup.rs`.

use super::Inner;
use super::core::Core;
use super::report::Report;
use crate::telemetry::SocketName;
use metaroce_proto::types::Time;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, getsockopt, listen, socket,
};
use nix::unistd::Uid;
use std::cell::Cell;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Callers that wait to be let in; more are turned away by the kernel.
const BACKLOG: i32 = 8;
/// Answers that are being given at the same time; whoever comes then gets an empty one.
const MAX_ANSWERS: usize = 4;
/// How long the socket is not looked at after letting somebody in failed (no file descriptor left): it would wake the
/// background thread all the time.
const PAUSE_NS: u64 = 1_000_000_000;
/// While the engine is so busy that its thread never sleeps, it looks at the socket this often.
pub(super) const LOOK_EVERY_NS: u64 = 100_000_000;
/// How often the lock is asked for without waiting, and the pause in between: whoever waits for it is given it, and the
/// others are held up until he has woken.
const TRIES: usize = 100;
const TRY_AGAIN: Duration = Duration::from_micros(100);
/// How long the lock is then waited for.
const LOCK_WITHIN: Duration = Duration::from_millis(200);
/// A reader who has not taken the answer by then does not get the rest.
const READ_WITHIN: Duration = Duration::from_secs(2);
/// Stack of the answering thread.
const STACK_BYTES: usize = 256 << 10;

/// The socket, and who is being answered.
#[derive(Debug)]
pub(super) struct Door {
    listener: UnixListener,
    user: Uid,
    answers: Arc<AtomicUsize>,
}

impl Door {
    /// Opens it. Without one the engine works all the same, unseen.
    pub(super) fn open(device: &str, udp_port: u16) -> Option<Door> {
        let name = SocketName::of_engine(device, udp_port);
        match listen_at(&name) {
            Ok(listener) => Some(Door {
                listener,
                user: Uid::effective(),
                answers: Arc::default(),
            }),
            Err(error) => {
                log::warn!("{device}: `metaroce stat` will not see this process: {name}: {error}");
                None
            }
        }
    }

    /// Readable when somebody knocks.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

fn listen_at(name: &SocketName) -> io::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    let address = UnixAddr::new_abstract(name.to_string().as_bytes())?;
    bind(socket.as_raw_fd(), &address)?;
    listen(&socket, Backlog::new(BACKLOG)?)?;
    Ok(UnixListener::from(socket))
}

/// What the background thread keeps between two looks.
#[derive(Debug, Default)]
pub(super) struct Doorman {
    looked: Cell<Time>,
    paused_until: Cell<Time>,
}

impl Doorman {
    /// The socket to wait for; none while it is paused.
    pub(super) fn watched<'a>(&self, inner: &'a Inner, now: Time) -> Option<BorrowedFd<'a>> {
        let door = inner.door.as_ref()?;
        (self.paused_until.get() <= now).then(|| door.fd())
    }

    /// Looks, if the last look is long ago: for a thread that does not sleep.
    pub(super) fn look_now_and_then(&self, inner: &Arc<Inner>, now: Time) {
        if now.since_ns(self.looked.get()) >= LOOK_EVERY_NS {
            self.look(inner, now);
        }
    }

    /// Lets everybody in who is there.
    pub(super) fn look(&self, inner: &Arc<Inner>, now: Time) {
        self.looked.set(now);
        let Some(door) = inner
            .door
            .as_ref()
            .filter(|_| self.paused_until.get() <= now)
        else {
            return;
        };
        for _ in 0..=BACKLOG {
            match door.listener.accept() {
                Ok((stream, _)) => let_in(inner, door, stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    log::debug!("{}: cannot be asked: {error}", inner.device.name);
                    self.paused_until.set(now + PAUSE_NS);
                    return;
                }
            }
        }
    }
}

/// Answers its own user and root; others find the connection closed.
fn let_in(inner: &Arc<Inner>, door: &Door, stream: UnixStream) {
    let Ok(caller) = getsockopt(&stream, PeerCredentials) else {
        return;
    };
    let caller = Uid::from_raw(caller.uid());
    if caller != door.user && !caller.is_root() {
        log::info!("{}: user {caller} may not ask", inner.device.name);
        return;
    }
    let answers = door.answers.clone();
    if answers.fetch_add(1, Ordering::Relaxed) >= MAX_ANSWERS {
        answers.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let inner = inner.clone();
    // The signals of the application are blocked in the background thread, and so in this one.
    let spawned = Builder::new()
        .name("metaroce-stat".into())
        .stack_size(STACK_BYTES)
        .spawn({
            let answers = answers.clone();
            move || {
                if let Some(text) = answer(inner) {
                    // A caller who has gone away is no error of ours.
                    let _ = write_within(&stream, text.as_bytes(), Instant::now() + READ_WITHIN);
                }
                answers.fetch_sub(1, Ordering::Relaxed);
            }
        });
    if let Err(error) = spawned {
        answers.fetch_sub(1, Ordering::Relaxed);
        log::debug!("cannot answer: {error}");
    }
}

/// The report; nothing if the lock cannot be had. The engine is let go before anything is written: it may end meanwhile.
fn answer(inner: Arc<Inner>) -> Option<String> {
    let mut report = with_core(&inner, |core| Report::begin(core, inner.clock.now()))?;
    while !report.is_complete() {
        with_core(&inner, |core| report.go_on(core))?;
    }
    Some(report.json(&inner) + "\n")
}

/// Lets `look` at the state, for a helper thread that can wait: it disturbs nobody who works; `None` if the lock cannot be
/// had for long.
pub(super) fn with_core<R>(inner: &Inner, look: impl FnOnce(&mut Core) -> R) -> Option<R> {
    let mut entered = None;
    for _ in 0..TRIES {
        entered = inner.gate.try_enter();
        if entered.is_some() {
            break;
        }
        std::thread::sleep(TRY_AGAIN);
    }
    let mut core = entered.or_else(|| inner.gate.enter_within(LOCK_WITHIN))?;
    let result = look(&mut core);
    inner.leave(core);
    Some(result)
}

fn write_within(mut stream: &UnixStream, mut bytes: &[u8], end: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
