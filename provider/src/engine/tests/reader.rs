//! A thread that blocks for events and does the engine's work meanwhile: when it begins, what ends it, and that nothing is
//! left undone then.

use super::super::reader::Driven;
use super::*;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;

/// What a thread waits for in these tests, in place of a completion channel.
struct TestEvent {
    reader: UnixDatagram,
    writer: UnixDatagram,
}

impl TestEvent {
    fn new() -> Self {
        let (reader, writer) = UnixDatagram::pair().unwrap();
        Self { reader, writer }
    }

    fn raise(&self) {
        self.writer.send(&[1]).unwrap();
    }

    fn take(&self) {
        assert_eq!(self.reader.recv(&mut [0]).unwrap(), 1);
    }

    fn drive(&self, end: &End) -> Driven {
        end.engine().drive(self.reader.as_fd(), &|| false)
    }

    /// Reads again and again, with an event there each time, until the background thread of `end` was told to watch.
    fn read_until_it_drives(&self, end: &End) {
        let give_up = Instant::now() + PATIENCE;
        self.raise();
        while !end.engine().inner.presence.is_reading() {
            assert!(Instant::now() < give_up, "it never drives");
            assert_eq!(self.drive(end), Driven::Read);
        }
        self.take();
    }
}

#[test]
fn without_packets_the_background_thread_takes_over() {
    let (a, _b) = pair(64);
    let event = TestEvent::new();
    event.read_until_it_drives(&a);
    let give_up = Instant::now() + PATIENCE;
    while a.engine().inner.presence.is_reading() {
        assert!(Instant::now() < give_up, "it drives for ever");
        event.drive(&a);
    }
}

#[test]
fn a_reader_that_stays_away_is_noticed() {
    const LENGTH: usize = 100_000;
    let (a, mut b) = pair(LENGTH);
    let event = TestEvent::new();
    fill(&mut b.memory, 7);
    event.read_until_it_drives(&a);
    // Only the background threads are there.
    b.write_to(&a, 1, LENGTH);
    assert_eq!(b.wait(1, pause)[0].status, Status::Success as u32);
    assert_eq!(a.memory, b.memory);
    assert!(!a.engine().inner.presence.is_reading());
}

#[test]
fn a_second_reader_ends_it() {
    let (a, _b) = pair(64);
    let event = TestEvent::new();
    event.read_until_it_drives(&a);
    let inner = &a.engine().inner;
    let seat = inner.reader.sit();
    // Without a row, so that only the taken seat decides.
    inner.presence.watch_reader();
    assert_eq!(event.drive(&a), Driven::Read);
    assert!(seat.is_some() && !inner.presence.is_reading());
}

#[test]
fn who_is_wanted_comes_back_and_may_go_on() {
    let (a, _b) = pair(64);
    let event = TestEvent::new();
    let give_up = Instant::now() + PATIENCE;
    // Time and again, for the background thread may have taken over on a busy machine.
    loop {
        event.read_until_it_drives(&a);
        let driven = a.engine().drive(event.reader.as_fd(), &|| true);
        if driven == Driven::Again {
            return;
        }
        assert!(Instant::now() < give_up, "nobody asked");
    }
}
