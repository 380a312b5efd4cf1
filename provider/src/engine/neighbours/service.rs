//! How the engines of a host come to share one [`Table`], without a file, without rights, and without any one of them that
//! must live: whoever can bind an abstract Unix socket of a certain name hands the table that it has, or makes, to everybody
//! who connects. Such names belong to a network namespace, as the NIC does, and the name says which NIC.
//!
//! Those who have a table look whether the name is free every few seconds, as long as there is traffic: when the one
//! who served is gone, another one serves the same table. One who has the name but does not answer (it was stopped, or a
//! child process holds the socket) makes the others go on to the next of a few names; who answers under an earlier
//! name is right, and whoever had another table takes that one. So all come together again whatever happened.
//!
//! All of it in the background thread, at its occasions: nothing here waits, and nothing sets a timer.

use super::Table;
use crate::engine::Inner;
use metaroce_proto::types::Time;
use metaroce_udp::{Poller, receive_descriptor, send_descriptor};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

/// Names that are tried: one who has the name and does not answer is an accident, two at a time are a bad one.
const RANKS: u8 = 3;
/// Who is asked has so long to answer.
const ANSWER_WITHIN_NS: u64 = 500_000_000;
/// Between two looks at what others serve, and whether somebody does.
const ASK_EVERY_NS: u64 = 5_000_000_000;
/// A thread that does not sleep looks this often who has come, and whether there is an answer.
const LOOK_EVERY_NS: u64 = 100_000_000;
/// Callers that wait; more are turned away, and come back.
const BACKLOG: i32 = 64;

/// See the file's head. The background thread's.
#[derive(Debug, Default)]
pub(in crate::engine) struct Service {
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    table: Option<Arc<Table>>,
    /// The engine's core does not have it yet.
    is_new: bool,
    /// The name that is ours.
    serving: Option<(u8, UnixListener)>,
    asking: Option<Asking>,
    looked: Option<Time>,
    ask_at: Time,
}

/// A question that was put.
#[derive(Debug)]
struct Asking {
    rank: u8,
    stream: UnixStream,
    until: Time,
}

impl Service {
    /// Does what there is to do, if the last time is long ago: for a thread that does not sleep.
    pub(in crate::engine) fn look_now_and_then(&self, inner: &Inner, poller: &Poller, now: Time) {
        let looked = self.state.borrow().looked;
        if looked.is_none_or(|at| now.since_ns(at) >= LOOK_EVERY_NS) {
            self.look(inner, poller, now);
        }
    }

    /// Does what there is to do.
    pub(in crate::engine) fn look(&self, inner: &Inner, poller: &Poller, now: Time) {
        let mut state = self.state.borrow_mut();
        if let Err(error) = state.look(inner.device.index, poller, now) {
            let device = &inner.device.name;
            log::debug!("{device}: no shared table, grants are this process's own: {error}");
            state.ask_at = now + ASK_EVERY_NS;
        }
        if state.is_new
            && let Some(mut core) = inner.gate.try_enter()
        {
            if let Some(table) = state.table.clone() {
                core.neighbours.join(table);
            }
            inner.leave(core);
            state.is_new = false;
        }
    }
}

impl State {
    fn look(&mut self, interface: u32, poller: &Poller, now: Time) -> io::Result<()> {
        self.looked = Some(now);
        self.hand_out();
        match self.asking.take() {
            Some(asking) => self.hear(asking, interface, poller, now),
            None if now >= self.ask_at => self.ask(0, interface, poller, now),
            None => Ok(()),
        }
    }

    /// Gives the table to all who have come.
    fn hand_out(&self) {
        let (Some((_, listener)), Some(table)) = (&self.serving, &self.table) else {
            return;
        };
        // As many as can wait; who comes meanwhile wakes the thread again.
        for _ in 0..=BACKLOG {
            match listener.accept() {
                // Who has gone already, or has filled his queue with something else, needs none.
                Ok((stream, _)) => drop(send_descriptor(&stream, table.descriptor())),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Serves under the first name from `rank` on that is free, or asks whoever has it.
    fn ask(&mut self, rank: u8, interface: u32, poller: &Poller, now: Time) -> io::Result<()> {
        self.ask_at = now + ASK_EVERY_NS;
        // Nobody behind our own name matters.
        let end = self.serving.as_ref().map_or(RANKS, |(rank, _)| *rank);
        for rank in rank..end {
            let name = name(interface, rank)?;
            match listen_at(&name) {
                Ok(listener) => return self.serve(rank, listener, poller),
                Err(Errno::EADDRINUSE) => {}
                Err(error) => return Err(error.into()),
            }
            // Refused: it ended this moment, or so many wait that it does not answer.
            if let Ok(stream) = connect_to(&name) {
                poller.watch(stream.as_fd())?;
                self.asking = Some(Asking {
                    rank,
                    stream,
                    until: now + ANSWER_WITHIN_NS,
                });
                return Ok(());
            }
        }
        Ok(())
    }

    fn serve(&mut self, rank: u8, listener: UnixListener, poller: &Poller) -> io::Result<()> {
        if self.table.is_none() {
            self.table = Some(Arc::new(Table::create()?));
            self.is_new = true;
        }
        poller.watch(listener.as_fd())?;
        self.serving = Some((rank, listener));
        // Somebody may have come before it was watched.
        self.hand_out();
        Ok(())
    }

    fn hear(
        &mut self,
        asking: Asking,
        interface: u32,
        poller: &Poller,
        now: Time,
    ) -> io::Result<()> {
        match receive_descriptor(&asking.stream).and_then(Table::adopt) {
            Ok(table) => {
                let has_it = self.table.as_ref().is_some_and(|old| old.is_same(&table));
                if !has_it {
                    self.table = Some(Arc::new(table));
                    self.is_new = true;
                }
                // Whoever asked us is told the same by the one before.
                self.serving = None;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && now < asking.until => {
                self.asking = Some(asking);
                Ok(())
            }
            // Silent, gone, or no table.
            Err(_) => self.ask(asking.rank + 1, interface, poller, now),
        }
    }
}

fn name(interface: u32, rank: u8) -> nix::Result<UnixAddr> {
    UnixAddr::new_abstract(format!("metaroce-share/1/{interface}/{rank}").as_bytes())
}

fn open() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::Stream, flags, None)
}

fn listen_at(name: &UnixAddr) -> nix::Result<UnixListener> {
    let socket = open()?;
    bind(socket.as_raw_fd(), name)?;
    listen(&socket, Backlog::new(BACKLOG)?)?;
    Ok(UnixListener::from(socket))
}

fn connect_to(name: &UnixAddr) -> nix::Result<UnixStream> {
    let socket = open()?;
    connect(socket.as_raw_fd(), name)?;
    Ok(UnixStream::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;
    use metaroce_udp::{Config, Sockets, Waker};
    use std::array::from_fn;
    use std::net::{IpAddr, Ipv4Addr};

    /// A NIC that no host has, one for each test.
    fn interface() -> u32 {
        rand::random::<u32>() | 1 << 31
    }

    /// Processes of a host, as far as they matter here.
    struct Host {
        interface: u32,
        poller: Poller,
        now: Time,
    }

    impl Host {
        fn new() -> Host {
            let config = Config {
                locals: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
                source_ports: 1,
                ..Config::default()
            };
            let sockets = Sockets::open(&config).unwrap();
            Host {
                interface: interface(),
                poller: Poller::new(&sockets, &Waker::new().unwrap()).unwrap(),
                now: Time::from_ns(1 << 40),
            }
        }

        /// All of them look so often, in turn, within so much time.
        fn run(&mut self, states: &mut [&mut State], rounds: u64, ns: u64) {
            for _ in 0..rounds {
                self.now = self.now + ns / rounds;
                for state in states.iter_mut() {
                    state.look(self.interface, &self.poller, self.now).unwrap();
                }
            }
        }
    }

    fn rank(state: &State) -> Option<u8> {
        state.serving.as_ref().map(|(rank, _)| *rank)
    }

    fn share(one: &State, two: &State) -> bool {
        let (Some(one), Some(two)) = (&one.table, &two.table) else {
            return false;
        };
        one.is_same(two)
    }

    #[test]
    fn the_first_serves_and_the_others_get_its_table() {
        let mut host = Host::new();
        let [mut a, mut b, mut c] = from_fn::<State, 3, _>(|_| State::default());
        host.run(&mut [&mut a, &mut b, &mut c], 3, 3_000);
        assert_eq!([&a, &b, &c].map(rank), [Some(0), None, None]);
        assert!(share(&a, &b) && share(&a, &c));
        assert!(a.is_new && b.is_new);
        // Asked again it is the same one.
        b.is_new = false;
        host.run(&mut [&mut a, &mut b], 4, 4 * ASK_EVERY_NS);
        assert!(share(&a, &b) && !b.is_new);
    }

    #[test]
    fn when_it_is_gone_another_serves_the_same_table() {
        let mut host = Host::new();
        let [mut a, mut b, mut c] = from_fn::<State, 3, _>(|_| State::default());
        host.run(&mut [&mut a, &mut b], 3, 3_000);
        let table = a.table.clone().unwrap();
        drop(a);
        host.run(&mut [&mut b], 1, ASK_EVERY_NS);
        assert_eq!(rank(&b), Some(0));
        host.run(&mut [&mut c, &mut b], 3, 3_000);
        assert!(share(&b, &c) && c.table.unwrap().is_same(&table));
    }

    #[test]
    fn a_newcomer_who_was_first_at_the_name_wins_and_all_meet_again() {
        let mut host = Host::new();
        let [mut a, mut b, mut c, mut d] = from_fn::<State, 4, _>(|_| State::default());
        host.run(&mut [&mut a, &mut b, &mut c], 3, 3_000);
        drop(a);
        host.run(&mut [&mut d], 1, 1_000);
        assert!(rank(&d) == Some(0) && !share(&d, &b));
        host.run(&mut [&mut d, &mut b, &mut c], 4, 2 * ASK_EVERY_NS);
        assert!(share(&d, &b) && share(&d, &c) && b.is_new);
    }

    #[test]
    fn one_who_does_not_answer_is_gone_around_until_it_does() {
        let mut host = Host::new();
        let [mut stopped, mut b, mut c] = from_fn::<State, 3, _>(|_| State::default());
        host.run(&mut [&mut stopped], 1, 1_000);
        host.run(&mut [&mut b, &mut c], 4, 2 * ANSWER_WITHIN_NS);
        host.run(&mut [&mut b, &mut c], 4, 3 * ASK_EVERY_NS);
        host.run(&mut [&mut b, &mut c], 4, 4 * ANSWER_WITHIN_NS);
        assert!(share(&b, &c) && !share(&b, &stopped));
        assert!(rank(&b) == Some(1) || rank(&c) == Some(1), "{b:?} {c:?}");
        host.run(&mut [&mut stopped, &mut b, &mut c], 12, 3 * ASK_EVERY_NS);
        assert!(share(&b, &stopped) && share(&c, &stopped));
        assert_eq!([&stopped, &b, &c].map(rank), [Some(0), None, None]);
    }

    #[test]
    fn one_who_hands_out_something_else_is_gone_around() {
        let mut host = Host::new();
        let listener = listen_at(&name(host.interface, 0).unwrap()).unwrap();
        let mut a = State::default();
        host.run(&mut [&mut a], 1, 1_000);
        let (stream, _) = listener.accept().unwrap();
        send_descriptor(&stream, stream.as_fd()).unwrap();
        host.run(&mut [&mut a], 1, 1_000);
        assert!(rank(&a) == Some(1) && a.table.is_some());
        // Nor does it matter how many do so.
        drop((a, listener));
        let _all: Vec<UnixListener> = (0..RANKS)
            .map(|rank| listen_at(&name(host.interface, rank).unwrap()).unwrap())
            .collect();
        let mut b = State::default();
        host.run(&mut [&mut b], 20, 20 * ANSWER_WITHIN_NS);
        assert!(rank(&b).is_none() && b.table.is_none());
    }
}
