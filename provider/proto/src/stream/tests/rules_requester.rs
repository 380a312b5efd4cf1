//! The requester's rules one by one: what leaves, and when it completes.

use std::collections::VecDeque;

use rstest::rstest;

use super::bench::{A, B, Bench, read_response};
use super::host::ALL;
use super::world::{PD, Setup, World, request};
use crate::event::QpFailure;
use crate::stream::*;
use crate::types::*;
use crate::wire::{Attempt, Msn, NakCode, Opcode, Ssn};

#[test]
fn a_request_completes_when_it_is_executed_not_when_it_is_acknowledged() {
    let mut bench = Bench::new(&Setup::default());
    bench.world.submit(A, bench.write(1, 2500));
    bench.world.submit(A, bench.write(2, 0));
    assert_eq!(
        bench.leave(),
        [
            (1, 0, 0, 1000),
            (1, 0, 1000, 1000),
            (1, 0, 2000, 500),
            (2, 0, 0, 0)
        ]
    );
    assert!(
        !bench.world.sides[A].requester.wants_probe(),
        "packets are under way"
    );
    for packet in std::mem::take(&mut bench.world.flight) {
        bench.world.deliver_ack(A, &packet.segment);
    }
    assert!(bench.cookies().is_empty());
    assert!(
        bench.world.sides[A].requester.wants_probe(),
        "acknowledged, not executed"
    );
    bench.tell(1, NakCode::None, 0);
    assert_eq!(bench.cookies(), [1]);
    bench.tell(2, NakCode::None, 0);
    assert_eq!(
        bench.world.send_statuses(A),
        [(1, Status::Success), (2, Status::Success)]
    );
    assert!(bench.world.sides[A].requester.is_idle());
}

#[test]
fn a_claim_about_what_was_never_sent_is_ignored() {
    let mut bench = Bench::new(&Setup::default());
    bench.world.submit(A, bench.write(1, 10));
    bench.tell(1, NakCode::None, 0);
    bench.tell(77, NakCode::None, 0);
    assert!(bench.cookies().is_empty());
    assert_eq!(bench.leave_messages(), [1]);
}

#[test]
fn a_fence_waits_for_answers_and_not_for_writes() {
    let mut bench = Bench::new(&Setup::default());
    bench.world.submit(A, bench.write(1, 10));
    bench.world.submit(
        A,
        SendRequest {
            fence: true,
            ..bench.write(2, 10)
        },
    );
    bench.world.submit(A, bench.read(3, 4));
    bench.world.submit(
        A,
        SendRequest {
            fence: true,
            ..bench.write(4, 10)
        },
    );
    bench.world.submit(A, bench.write(5, 10));
    assert_eq!(bench.leave_messages(), [1, 2, 3]);
    bench.tell(3, NakCode::None, 0);
    assert!(
        bench.leave_messages().is_empty(),
        "executed, but its answer is not here"
    );
    bench.answer(read_response(3, 4, 0, 4), &[1; 4]);
    assert_eq!(bench.leave_messages(), [4, 5]);
}

#[test]
fn a_read_that_could_never_leave_fails() {
    let mut bench = Bench::new(&Setup {
        rd_atomic: 0,
        ..Setup::default()
    });
    bench.world.submit(A, bench.write(1, 4));
    bench.world.submit(A, bench.read(2, 4));
    bench.leave();
    bench.tell(1, NakCode::None, 0);
    assert_eq!(
        bench.world.send_statuses(A),
        [(1, Status::Success), (2, Status::LocalQpOperation)]
    );
}

#[test]
fn credits_hold_all_but_the_oldest_that_wants_a_receive() {
    let mut bench = Bench::new(&Setup::default());
    bench.world.submit(A, bench.message(1, 4));
    bench.world.submit(A, bench.message(2, 4));
    bench.world.submit(A, bench.write(3, 4));
    assert_eq!(bench.leave_messages(), [1]);
    assert!(bench.world.sides[A].requester.waits_for_credit());
    bench.tell_credit(0, NakCode::None, 0, Ssn(1));
    assert!(
        bench.leave_messages().is_empty(),
        "credit for the first only"
    );
    bench.tell_credit(0, NakCode::None, 0, Ssn(2));
    assert_eq!(bench.leave_messages(), [2, 3]);
    assert!(!bench.world.sides[A].requester.waits_for_credit());
    bench.tell_credit(0, NakCode::None, 0, Ssn(1));
    bench.world.submit(A, bench.message(4, 4));
    assert!(
        bench.leave_messages().is_empty(),
        "credit that came late takes nothing back"
    );
    bench.tell_credit(2, NakCode::None, 0, Ssn(2));
    assert_eq!(
        bench.leave_messages(),
        [4],
        "the oldest that wants a receive now"
    );
}

// WIRE 6.18
#[test]
fn a_shared_queue_needs_no_credit() {
    let mut bench = Bench::new(&Setup {
        shared: true,
        ..Setup::default()
    });
    (1..=3).for_each(|cookie| bench.world.submit(A, bench.message(cookie, 4)));
    assert_eq!(bench.leave_messages(), [1, 2, 3]);
}

#[rstest]
#[case(0, 1)]
#[case(1, 2)]
#[case(6, 7)]
fn rnr_retries_are_counted(#[case] rnr_retry: u8, #[case] attempts: u8) {
    let mut bench = Bench::new(&Setup {
        rnr_retry,
        ..Setup::default()
    });
    bench.world.submit(A, bench.message(1, 4));
    bench.world.submit(A, bench.write(2, 4));
    for attempt in 0..attempts {
        assert!(
            bench.leave().contains(&(1, attempt, 0, 4)),
            "attempt {attempt}"
        );
        bench.tell(0, NakCode::Rnr, attempt);
        bench.pass_ns(10_000);
    }
    assert_eq!(
        bench.world.send_statuses(A),
        [(1, Status::RnrRetryExceeded), (2, Status::Flushed)]
    );
    assert_eq!(bench.world.failure(A), Some(QpFailure::Fatal));
}

// WIRE 6.17, 1.20
#[test]
fn rnr_retry_7_is_for_ever_and_attempts_wrap() {
    let mut bench = Bench::new(&Setup::default());
    bench.world.submit(A, bench.message(1, 4));
    for round in 0..1000_u32 {
        assert_eq!(bench.leave(), [(1, round as u8, 0, 4)]);
        bench.tell(0, NakCode::Rnr, round as u8);
        bench.pass_ns(10_000);
    }
    bench.leave();
    bench.tell(1, NakCode::None, 0);
    assert_eq!(bench.cookies(), [1]);
}

#[test]
fn each_message_has_its_own_rnr_retries() {
    let mut bench = Bench::new(&Setup {
        rnr_retry: 1,
        shared: true,
        ..Setup::default()
    });
    (1..=3).for_each(|cookie| bench.world.submit(A, bench.message(cookie, 4)));
    for executed in 0..3 {
        bench.leave();
        bench.tell(executed, NakCode::Rnr, 0);
        bench.pass_ns(10_000);
        bench.leave();
        bench.tell(executed + 1, NakCode::None, 0);
    }
    assert_eq!(bench.cookies(), [1, 2, 3]);
}

#[test]
fn an_rnr_refusal_waits_for_the_timer_and_stale_ones_count_for_nothing() {
    let mut bench = Bench::new(&Setup {
        rnr_retry: 2,
        ..Setup::default()
    });
    bench.world.submit(A, bench.message(1, 4));
    bench.leave();
    (0..5).for_each(|_| bench.tell(0, NakCode::Rnr, 0));
    let due = bench.world.now + 10_000;
    assert_eq!(
        bench.world.sides[A].requester.poll_timeout(bench.world.now),
        Some(due)
    );
    assert_eq!(
        bench.world.sides[A].requester.waiting_since(),
        Some(due),
        "no silence meanwhile"
    );
    assert!(!bench.world.sides[A].requester.wants_probe());
    bench.pass_ns(9_999);
    assert!(bench.leave().is_empty());
    bench.pass_ns(1);
    assert_eq!(bench.leave(), [(1, 1, 0, 4)]);
    assert_eq!(
        bench.world.sides[A].requester.poll_timeout(bench.world.now),
        None
    );
    assert_eq!(bench.world.sides[A].requester.rnr_count(), 1);
    bench.tell(0, NakCode::Rnr, 0);
    assert!(bench.leave().is_empty() && bench.world.sides[A].failure.is_none());
}

// WIRE 6.17
/// What users complain about: "RNR timer 0 stalls for 655 ms": posting a receive wakes the sender.
#[test]
fn a_posted_receive_ends_the_rnr_wait() {
    let mut bench = Bench::new(&Setup::default());
    bench.world.submit(A, bench.message(1, 4));
    bench.leave();
    bench.tell(0, NakCode::Rnr, 0);
    assert!(bench.leave().is_empty());
    bench.tell_credit(0, NakCode::Rnr, 0, Ssn(1));
    assert_eq!(bench.leave(), [(1, 1, 0, 4)]);
}

// WIRE 6.16
#[test]
fn after_rnr_only_what_wants_no_receive_overtakes() {
    let mut bench = Bench::new(&Setup {
        shared: true,
        ..Setup::default()
    });
    bench.world.submit(A, bench.message(1, 4));
    bench.leave();
    bench.tell(0, NakCode::Rnr, 0);
    bench.world.submit(A, bench.write(2, 4));
    bench.world.submit(A, bench.message(3, 4));
    assert_eq!(bench.leave_messages(), [2]);
    bench.pass_ns(10_000);
    assert_eq!(
        bench.leave_messages(),
        [1],
        "the newer one waits until it is executed"
    );
    bench.tell(2, NakCode::None, 0);
    assert_eq!(bench.leave_messages(), [3]);
}

#[test]
fn a_held_message_goes_again_at_once_and_first() {
    let mut bench = Bench::new(&Setup {
        rnr_retry: 0,
        ..Setup::default()
    });
    (1..=3).for_each(|cookie| bench.world.submit(A, bench.write(cookie, 1500)));
    bench.leave();
    bench.world.submit(A, bench.write(4, 10));
    bench.tell(1, NakCode::Hold, 0);
    assert_eq!(
        bench.leave(),
        [(2, 1, 0, 1000), (2, 1, 1000, 500), (4, 0, 0, 10)]
    );
    bench.tell(1, NakCode::Hold, 0);
    assert!(bench.leave().is_empty(), "a stale refusal");
    bench.tell(2, NakCode::Hold, 0);
    assert_eq!(bench.leave(), [(3, 1, 0, 1000), (3, 1, 1000, 500)]);
    bench.tell(4, NakCode::None, 0);
    assert_eq!(bench.cookies(), [1, 2, 3, 4]);
    assert_eq!(bench.world.sides[A].requester.backlog_bytes(), 0);
}

#[rstest]
#[case(NakCode::RemoteAccess, Status::RemoteAccess)]
#[case(NakCode::InvalidRequest, Status::RemoteInvalidRequest)]
#[case(NakCode::Length, Status::RemoteInvalidRequest)]
#[case(NakCode::RemoteOperational, Status::RemoteOperation)]
fn a_fatal_code_fails_the_oldest_unexecuted(#[case] code: NakCode, #[case] status: Status) {
    let mut bench = Bench::new(&Setup::default());
    (1..=4).for_each(|cookie| bench.world.submit(A, bench.write(cookie, 10)));
    bench.leave();
    bench.tell(2, code, 0);
    let expected = [
        (1, Status::Success),
        (2, Status::Success),
        (3, status),
        (4, Status::Flushed),
    ];
    assert_eq!(bench.world.send_statuses(A), expected);
    assert_eq!(bench.world.failure(A), Some(QpFailure::Fatal));
    bench.world.submit(A, bench.write(5, 10));
    assert_eq!(
        bench.world.send_statuses(A).last(),
        Some(&(5, Status::Flushed))
    );
    assert!(bench.leave().is_empty());
}

#[test]
fn a_faulty_request_fails_at_its_turn() {
    let mut bench = Bench::new(&Setup::default());
    bench.world.submit(A, bench.write(1, 10));
    bench.world.submit(
        A,
        SendRequest {
            fault: Some(Status::LocalProtection),
            ..bench.write(2, 10)
        },
    );
    bench.world.submit(A, bench.write(3, 10));
    assert_eq!(bench.leave_messages(), [1]);
    assert!(bench.cookies().is_empty());
    bench.tell(1, NakCode::None, 0);
    let expected = [
        (1, Status::Success),
        (2, Status::LocalProtection),
        (3, Status::Flushed),
    ];
    assert_eq!(bench.world.send_statuses(A), expected);
}

#[test]
fn memory_that_cannot_be_read_fails_its_request_at_its_turn() {
    let mut bench = Bench::new(&Setup::default());
    bench.world.submit(A, bench.write(1, 10));
    let (gone, addr) = bench.world.hosts[0].register(PD, 10, ALL);
    let (rkey, remote_addr) = bench.remote;
    bench.world.submit(
        A,
        request(2, Operation::Write { remote_addr, rkey }, gone, addr, 10),
    );
    bench.world.hosts[0].deregister(gone);
    bench.leave();
    assert!(bench.world.flight[1].header.opcode == Opcode::Fill);
    bench.tell(1, NakCode::None, 0);
    assert_eq!(
        bench.world.send_statuses(A),
        [(1, Status::Success), (2, Status::LocalProtection)]
    );
}

#[test]
fn content_is_gone_once_executed_or_begun_afresh_or_of_another_life() {
    let mut bench = Bench::new(&Setup::default());
    bench.world.submit(A, bench.write(1, 10));
    bench.world.submit(A, bench.write(2, 10));
    let first = bench.world.send(A, false).expect("a packet").segment;
    let second = bench.world.send(A, false).expect("a packet").segment;
    let requester = &mut bench.world.sides[A].requester;
    assert!(requester.describe(&first).is_some());
    assert!(
        requester
            .describe(&SegmentRef { life: 4, ..first })
            .is_none()
    );
    requester.restart_message(second.msn);
    assert!(requester.describe(&second).is_none());
    assert!(
        requester
            .describe(&SegmentRef {
                attempt: Attempt(1),
                ..second
            })
            .is_some()
    );
    assert_eq!(requester.describe_fill(&second).opcode, Opcode::Fill);
    bench.tell(1, NakCode::None, 0);
    assert!(bench.world.sides[A].requester.describe(&first).is_none());
}

// WIRE 6.28
#[test]
fn the_spans_of_the_peer_are_kept() {
    let mut bench = Bench::new(&Setup {
        message_span: 3,
        packet_span: 4,
        ..Setup::default()
    });
    bench.world.submit(A, bench.write(1, 10_000));
    (2..=6).for_each(|cookie| bench.world.submit(A, bench.write(cookie, 2_000)));
    let left = bench.leave();
    assert_eq!(
        left.len(),
        10 + 4,
        "any number of the oldest, four of later ones"
    );
    bench.tell(1, NakCode::None, 0);
    assert_eq!(
        bench.leave_messages(),
        [4],
        "at most three beyond the last executed"
    );
    bench.tell(2, NakCode::None, 0);
    assert_eq!(bench.leave_messages(), [5]);
}

#[test]
fn message_numbers_wrap() {
    let mut bench = Bench::new(&Setup::default());
    bench.world.sides[A].requester.first = Msn(u32::MAX - 1);
    bench.world.sides[A].requester.executed = Msn(u32::MAX - 2);
    bench.world.sides[B]
        .responder
        .messages
        .start_after(Msn(u32::MAX - 2));
    (1..=6).for_each(|cookie| bench.world.submit(A, bench.write(cookie, 1500)));
    bench.world.run_in_order();
    assert_eq!(bench.cookies(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(bench.world.sides[B].responder.executed(), Msn(3));
}

#[test]
fn nothing_leaves_before_the_peer_answered() {
    let config = RequesterConfig {
        qp: QpId::new(1, 0),
        life: 0,
        pd: PD,
        peer_qpn: World::qpn(B),
    };
    let mut requester = Requester::new(&config);
    let mut events = VecDeque::new();
    let bench = Bench::new(&Setup::default());
    requester
        .submit(Time::from_ns(5), bench.write(1, 10), &mut events)
        .expect("no failure");
    assert_eq!(requester.next_segment(Time::from_ns(6), 1000), None);
    assert_eq!(
        requester.waiting_since(),
        Some(Time::from_ns(5)),
        "the bound counts from the post"
    );
    assert_eq!(requester.backlog_bytes(), 10);
}
