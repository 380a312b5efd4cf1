//! Tests of completion queues and their events.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;

use rstest::rstest;

use super::super::channel;
use super::*;

const HANDLE: u64 = 0x5eed;

/// A queue, and the program's end of its channel.
struct Bench {
    cq: Cq,
    channel: File,
    events: Arc<AsyncEvents>,
}

fn bench(entries: i64) -> Bench {
    let channel = File::from(channel::create_owned().expect("a channel"));
    nix::fcntl::fcntl(
        &channel,
        nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK),
    )
    .expect("flags");
    let events = Arc::new(AsyncEvents::new().expect("a pipe"));
    let cq = Cq::new(entries, channel::find(channel.as_raw_fd()), &events).expect("valid");
    cq.set_user_handle(HANDLE);
    Bench {
        cq,
        channel,
        events,
    }
}

impl Bench {
    /// Reads an event if there is one, as `ibv_get_cq_event` does.
    fn event(&mut self) -> bool {
        let mut record = [0; 8];
        let found = self.channel.read(&mut record).is_ok_and(|count| count == 8);
        if found {
            assert_eq!(u64::from_ne_bytes(record), HANDLE);
            self.cq.event_delivered();
        }
        found
    }

    fn push(&self, wr_id: u64) -> Pushed {
        self.cq.push(Cqe {
            wr_id,
            ..Cqe::default()
        })
    }

    fn push_solicited(&self, wr_id: u64) {
        self.cq.push(Cqe {
            wr_id,
            solicited: true,
            ..Cqe::default()
        });
    }

    fn poll(&self, limit: usize) -> Vec<u64> {
        let mut seen = Vec::new();
        let count = self.cq.poll(limit, |index, cqe| {
            assert_eq!(index, seen.len());
            seen.push(cqe.wr_id);
        });
        assert_eq!(count, seen.len());
        seen
    }
}

#[rstest]
#[case(i64::MIN, None)]
#[case(-1, None)]
#[case(0, None)]
#[case(1, Some(1))]
#[case(2, Some(3))]
#[case(256, Some(511))]
#[case(4_096, Some(8_191))]
#[case(i64::from(MAX_CQE), Some(MAX_CQE))]
#[case(i64::from(MAX_CQE) + 1, None)]
#[case(i64::MAX, None)]
fn sizes(#[case] entries: i64, #[case] expected: Option<u32>) {
    let events = Arc::new(AsyncEvents::new().expect("a pipe"));
    let capacity = Cq::new(entries, None, &events).map(|cq| cq.capacity());
    assert_eq!(capacity, expected.ok_or(Errno::INVALID));
}

#[test]
fn completions_come_out_in_order_and_count_as_polled() {
    let bench = bench(10);
    for number in 0..10 {
        assert_eq!(bench.push(number), Pushed::At(CqeNumber(number)));
    }
    assert_eq!(bench.poll(3), [0, 1, 2]);
    assert_eq!(bench.cq.polled(), CqeNumber(3));
    assert_eq!(bench.poll(100), (3..10).collect::<Vec<_>>());
    assert_eq!(bench.poll(100), [0; 0]);
    assert_eq!(bench.push(10), Pushed::At(CqeNumber(10)));
}

#[test]
fn an_overflow_is_told_once_and_loses_nothing_that_was_in() {
    let bench = bench(3);
    for number in 0..3 {
        bench.push(number);
    }
    assert!(!bench.cq.overflowed());
    assert_eq!(bench.push(3), Pushed::Overflow);
    assert_eq!(bench.push(4), Pushed::Overflow);
    assert!(bench.cq.overflowed());
    assert_eq!(bench.poll(10), [0, 1, 2]);
    assert_eq!(bench.events.withdraw(HANDLE, EventKind::is_of_cq), 1);
}

#[test]
fn resizing_keeps_the_completions() {
    let bench = bench(3);
    for number in 0..3 {
        bench.push(number);
    }
    assert_eq!(bench.cq.resize(1), Err(Errno::INVALID));
    assert_eq!(bench.cq.resize(0), Err(Errno::INVALID));
    assert_eq!(bench.cq.capacity(), 3);
    assert_eq!(bench.cq.resize(100), Ok(127));
    for number in 3..100 {
        assert_ne!(bench.push(number), Pushed::Overflow);
    }
    assert_eq!(bench.poll(200), (0..100).collect::<Vec<_>>());
    assert_eq!(bench.cq.resize(2), Ok(3));
}

#[test]
fn no_event_without_arming_and_one_for_each_arming() {
    let mut bench = bench(100);
    bench.push(0);
    assert!(!bench.event());
    bench.poll(10);
    bench.cq.arm(false);
    assert!(!bench.event(), "nothing has come yet");
    bench.push(1);
    bench.push(2);
    assert!(bench.event());
    assert!(!bench.event(), "armed once, told twice");
    assert_eq!(bench.poll(10), [1, 2], "an event without a completion");
}

#[test]
fn a_completion_between_the_last_poll_and_the_arming_is_not_stranded() {
    let mut bench = bench(100);
    bench.poll(10);
    bench.push(1);
    bench.cq.arm(false);
    assert!(bench.event());
}

#[test]
fn a_completion_that_was_told_of_does_not_raise_a_second_event() {
    let mut bench = bench(100);
    bench.cq.arm(false);
    bench.push(1);
    assert!(bench.event());
    // The usual order: event, arm, poll until empty, wait.
    bench.cq.arm(false);
    assert!(
        !bench.event(),
        "an event whose completions the program finds in the poll that follows"
    );
    assert_eq!(bench.poll(10), [1]);
    bench.push(2);
    assert!(bench.event());
}

#[test]
fn one_that_came_after_the_event_and_before_the_arming_raises_another() {
    let mut bench = bench(100);
    bench.cq.arm(false);
    bench.push(1);
    bench.push(2);
    assert!(bench.event());
    bench.push(3);
    assert_eq!(bench.poll(1), [1]);
    bench.cq.arm(false);
    assert!(bench.event());
}

#[test]
fn armed_for_solicited_ones_others_do_not_count_but_errors_do() {
    let mut bench = bench(100);
    bench.push(0);
    bench.cq.arm(true);
    bench.push(1);
    assert!(!bench.event());
    bench.push_solicited(2);
    assert!(bench.event());
    bench.cq.arm(true);
    bench.cq.push(Cqe {
        wr_id: 3,
        status: 5,
        ..Cqe::default()
    });
    assert!(bench.event());
    assert_eq!(bench.poll(10), [0, 1, 2, 3]);

    // A solicited one that came before the arming and was not polled.
    bench.push_solicited(4);
    bench.push(5);
    bench.cq.arm(true);
    assert!(bench.event());
    // Polled: counts no more.
    bench.push_solicited(6);
    bench.poll(10);
    bench.push(7);
    bench.cq.arm(true);
    assert!(!bench.event());
}

#[test]
fn arming_for_less_does_not_disarm() {
    let mut bench = bench(100);
    bench.cq.arm(false);
    bench.cq.arm(true);
    bench.push(1);
    assert!(bench.event());
}

#[test]
fn a_queue_without_a_channel_can_be_armed() {
    let events = Arc::new(AsyncEvents::new().expect("a pipe"));
    let cq = Cq::new(4, None, &events).expect("valid");
    cq.arm(false);
    assert_eq!(cq.push(Cqe::default()), Pushed::At(CqeNumber(0)));
    assert_eq!(cq.silence(), Ok((0, 0)));
}

#[test]
fn destroying_withdraws_what_was_not_read_and_counts_what_was() {
    let mut bench = bench(3);
    for number in 0..3 {
        bench.cq.arm(false);
        bench.push(number);
    }
    assert!(bench.event());
    bench.push(3);
    bench.cq.attach();
    assert_eq!(bench.cq.silence(), Err(Errno::BUSY));
    bench.cq.detach();
    assert_eq!(
        bench.cq.silence(),
        Ok((1, 0)),
        "one was read and must be acknowledged; the rest is withdrawn"
    );
    assert!(!bench.event());
    bench.cq.arm(false);
    assert!(
        !bench.event(),
        "an event of a queue that is being destroyed"
    );
    bench.cq.unsilence();
    assert_eq!(bench.poll(10), [0, 1, 2]);
    bench.cq.arm(false);
    bench.push(9);
    assert!(bench.event());
}
