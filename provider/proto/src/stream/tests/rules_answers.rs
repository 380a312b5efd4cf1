//! The rules of answers to READs and atomics, at both ends.

use std::collections::VecDeque;

use rstest::rstest;

use super::bench::{A, B, Bench, read_response};
use super::host::{ALL, ALL_RELAXED};
use super::world::{PD, Setup, request};
use crate::event::{Event, QpFailure};
use crate::types::*;
use crate::wire::{Attempt, DataHeader, FillStatus, Msn, NakCode, Opcode};

fn bench() -> Bench {
    Bench::with_memory(&Setup::default(), ALL_RELAXED, 1 << 20)
}

#[test]
fn later_requests_wait_for_the_answer_of_an_earlier_read() {
    let mut bench = Bench::new(&Setup::default());
    bench.world.submit(A, bench.read(1, 1500));
    bench.world.submit(A, bench.write(2, 10));
    assert_eq!(bench.leave(), [(1, 0, 0, 0), (2, 0, 0, 10)]);
    bench.tell(2, NakCode::None, 0);
    assert!(bench.cookies().is_empty());
    let executed = bench.world.flight[1].segment;
    let requester = &bench.world.sides[A].requester;
    assert!(
        requester.describe(&executed).is_none(),
        "all of it arrived, though it is not complete"
    );
    assert_eq!(
        bench.answer(read_response(1, 1500, 1000, 500), &[7; 500]),
        Some(Ok(true))
    );
    assert!(bench.cookies().is_empty());
    assert_eq!(
        bench.answer(read_response(1, 1500, 0, 1000), &[6; 1000]),
        Some(Ok(true))
    );
    assert_eq!(bench.cookies(), [1, 2]);
    let seen = bench.world.hosts[0]
        .memory(bench.local.0, bench.local.1, 1501)
        .expect("registered");
    assert!(seen[..1000] == [6; 1000] && seen[1000..1500] == [7; 500] && seen[1500] == 0);
}

#[test]
fn a_complete_answer_proves_execution_without_a_stream_block() {
    let mut bench = Bench::new(&Setup::default());
    bench.world.submit(A, bench.write(1, 10));
    bench.world.submit(A, bench.read(2, 4));
    bench.leave();
    assert_eq!(
        bench.answer(read_response(2, 4, 0, 4), &[1; 4]),
        Some(Ok(true))
    );
    assert_eq!(bench.cookies(), [1, 2]);
}

#[test]
fn no_more_answers_are_awaited_than_max_rd_atomic() {
    let mut bench = Bench::new(&Setup {
        rd_atomic: 2,
        ..Setup::default()
    });
    (1..=4).for_each(|cookie| bench.world.submit(A, bench.read(cookie, 4)));
    assert_eq!(bench.leave_messages(), [1, 2]);
    bench.answer(read_response(2, 4, 0, 4), &[1; 4]);
    assert_eq!(bench.leave_messages(), [3]);
    assert!(bench.cookies().is_empty());
}

#[test]
fn an_earlier_read_still_completes_before_a_later_refusal() {
    let mut bench = Bench::new(&Setup::default());
    bench.world.submit(A, bench.read(1, 4));
    bench.world.submit(A, bench.write(2, 10));
    bench.leave();
    bench.tell(1, NakCode::RemoteAccess, 0);
    assert!(bench.cookies().is_empty());
    bench.world.submit(A, bench.write(3, 10));
    assert!(bench.leave().is_empty(), "nothing newer leaves");
    bench.answer(read_response(1, 4, 0, 4), &[1; 4]);
    let expected = [
        (1, Status::Success),
        (2, Status::RemoteAccess),
        (3, Status::Flushed),
    ];
    assert_eq!(bench.world.send_statuses(A), expected);
}

#[rstest]
#[case::wrong_length(read_response(1, 5, 0, 4), Some(Status::BadResponse))]
#[case::beyond_the_end(read_response(1, 8, 5, 4), Some(Status::BadResponse))]
#[case::of_an_atomic(DataHeader { opcode: Opcode::AtomicResp, ..read_response(1, 8, 0, 4) }, Some(Status::BadResponse))]
#[case::unknown_message(read_response(3, 8, 0, 4), None)]
#[case::not_sent(read_response(2, 8, 0, 4), None)]
#[case::nothing(DataHeader { opcode: Opcode::Fill, ..read_response(1, 8, 0, 0) }, None)]
#[case::access(
    DataHeader { opcode: Opcode::Fill, immediate: FillStatus::RemoteAccess as u32, ..read_response(1, 8, 0, 0) },
    Some(Status::RemoteAccess)
)]
#[case::operation(
    DataHeader { opcode: Opcode::Fill, immediate: FillStatus::RemoteOperational as u32, ..read_response(1, 8, 0, 0) },
    Some(Status::RemoteOperation)
)]
fn answers_are_checked(#[case] header: DataHeader, #[case] status: Option<Status>) {
    let mut bench = Bench::new(&Setup {
        rd_atomic: 1,
        ..Setup::default()
    });
    bench.world.submit(A, bench.read(1, 8));
    bench.world.submit(A, bench.read(2, 8));
    bench.leave();
    let payload = vec![9; usize::from(header.payload_bytes)];
    bench.answer(header, &payload);
    let expected: Vec<_> = status
        .iter()
        .flat_map(|status| [(1, *status), (2, Status::Flushed)])
        .collect();
    assert_eq!(bench.world.send_statuses(A), expected);
    let seen = bench.world.hosts[0]
        .memory(bench.local.0, bench.local.1, 8)
        .expect("registered");
    assert_eq!(seen, [0; 8], "nothing was placed");
}

#[test]
fn an_answer_begun_afresh_is_counted_afresh() {
    let mut bench = Bench::new(&Setup::default());
    bench.world.submit(A, bench.read(1, 8));
    bench.leave();
    bench.answer(read_response(1, 8, 0, 4), &[1; 4]);
    let again = |offset, bytes| DataHeader {
        attempt: Attempt(1),
        ..read_response(1, 8, offset, bytes)
    };
    assert_eq!(bench.answer(again(4, 4), &[2; 4]), Some(Ok(true)));
    assert!(bench.cookies().is_empty());
    assert_eq!(
        bench.answer(read_response(1, 8, 4, 4), &[3; 4]),
        Some(Ok(false)),
        "the older attempt"
    );
    bench.answer(again(0, 4), &[4; 4]);
    assert_eq!(bench.cookies(), [1]);
    let seen = bench.world.hosts[0]
        .memory(bench.local.0, bench.local.1, 8)
        .expect("registered");
    assert_eq!(seen, [4, 4, 4, 4, 2, 2, 2, 2]);
}

#[test]
fn a_local_buffer_that_cannot_be_written_is_a_protection_error() {
    let mut bench = Bench::new(&Setup::default());
    bench.world.submit(A, bench.read(1, 8));
    bench.leave();
    bench.world.hosts[0].deregister(bench.local.0);
    bench.answer(read_response(1, 8, 0, 8), &[1; 8]);
    assert_eq!(bench.world.send_statuses(A), [(1, Status::LocalProtection)]);
}

#[test]
fn answers_after_the_end_place_nothing() {
    let mut bench = Bench::new(&Setup::default());
    bench.world.submit(A, bench.read(1, 8));
    bench.world.submit(A, bench.read(2, 8));
    bench.leave();
    let mut events = VecDeque::new();
    bench.world.sides[A]
        .requester
        .fail(Status::RetryExceeded, &mut events);
    assert!(matches!(events[0], Event::SendDone(done) if done.status == Status::RetryExceeded));
    assert!(matches!(events[1], Event::SendDone(done) if done.status == Status::Flushed));
    assert_eq!(
        bench.answer(read_response(1, 8, 0, 8), &[1; 8]),
        Some(Ok(false))
    );
    let seen = bench.world.hosts[0]
        .memory(bench.local.0, bench.local.1, 8)
        .expect("registered");
    assert_eq!(seen, [0; 8]);
}

#[rstest]
#[case(2, 2, None)]
#[case(2, 3, Some(QpFailure::InvalidRequest))]
#[case(0, 1, Some(QpFailure::InvalidRequest))]
fn no_more_answers_may_be_outstanding_than_max_dest_rd_atomic(
    #[case] limit: u8,
    #[case] reads: u32,
    #[case] failure: Option<QpFailure>,
) {
    let mut bench = Bench::with_memory(
        &Setup {
            rd_atomic: limit,
            ..Setup::default()
        },
        ALL,
        0,
    );
    for msn in 1..=reads {
        bench.give(bench.header(Opcode::ReadReq, msn, 8, 0, 0), 0);
    }
    assert_eq!(bench.world.failure(B), failure);
}

#[test]
fn an_answer_counts_as_outstanding_until_it_was_sent_once() {
    let mut bench = Bench::with_memory(
        &Setup {
            rd_atomic: 1,
            ..Setup::default()
        },
        ALL,
        0,
    );
    for msn in 1..=3 {
        bench.give(bench.header(Opcode::ReadReq, msn, 1500, 0, 0), 0);
        while bench.world.send(B, true).is_some() {}
        bench.world.sides[B].responder.restart_response(Msn(msn));
    }
    assert_eq!(bench.world.failure(B), None);
}

// WIRE 6.12
#[test]
fn an_atomic_is_executed_once_and_its_result_kept_until_acknowledged() {
    let mut bench = bench();
    let (rkey, remote_addr) = bench.remote;
    bench.world.hosts[1].fill(rkey, remote_addr, &40_u64.to_ne_bytes());
    let (key, addr) = bench.local;
    bench.world.submit(
        A,
        request(
            1,
            Operation::FetchAdd {
                remote_addr,
                rkey,
                add: 2,
            },
            key,
            addr,
            8,
        ),
    );
    let asked = bench.world.send(A, false).expect("a packet");
    bench.world.deliver(&asked);
    bench.world.deliver(&asked);
    let answer = bench.world.send(B, true).expect("an answer");
    assert_eq!(answer.payload, 40_u64.to_be_bytes());
    bench.world.hosts[1].fill(rkey, remote_addr, &[0; 8]);
    let again = bench.world.build(B, answer.segment);
    assert_eq!(
        (again.header, again.payload.clone()),
        (answer.header, answer.payload)
    );
    bench.world.deliver(&again);
    assert_eq!(
        bench.world.hosts[0].memory(key, addr, 8),
        Some(&40_u64.to_ne_bytes()[..])
    );
    assert!(bench.world.sides[B].responder.has_responses());
    bench.world.deliver_ack(B, &answer.segment);
    assert!(!bench.world.sides[B].responder.has_responses());
    assert_eq!(
        bench.world.build(B, answer.segment).header.opcode,
        Opcode::Fill
    );
}

#[test]
fn memory_that_is_gone_fails_the_read_that_is_being_answered() {
    let mut bench = bench();
    let (gone, gone_addr) = bench.world.hosts[1].register(PD, 5000, ALL);
    let (key, addr) = bench.local;
    let read = Operation::Read {
        remote_addr: gone_addr,
        rkey: gone,
    };
    bench.world.submit(A, request(1, read, key, addr, 5000));
    bench.world.submit(
        A,
        request(
            2,
            Operation::Read {
                remote_addr: gone_addr,
                rkey: gone,
            },
            key,
            addr,
            10,
        ),
    );
    let asked = bench.world.send(A, false).expect("a packet");
    bench.world.deliver(&asked);
    let first = bench.world.send(B, true).expect("an answer");
    bench.world.deliver(&first);
    bench.world.hosts[1].deregister(gone);
    let second = bench.world.send(B, true).expect("an answer");
    assert_eq!(second.header.opcode, Opcode::Fill);
    assert_eq!(second.header.fill_status(), FillStatus::RemoteAccess);
    bench.world.deliver(&second);
    assert_eq!(
        bench.world.send_statuses(A),
        [(1, Status::RemoteAccess), (2, Status::Flushed)]
    );
    assert_eq!(
        bench.world.failure(B),
        None,
        "the responder's queue pair lives"
    );
    while bench.world.send(B, true).is_some() {}
    for (side, segment) in std::mem::take(&mut bench.world.acks) {
        bench.world.deliver_ack(side, &segment);
    }
    let rest: Vec<_> = bench
        .world
        .flight
        .iter()
        .filter(|p| p.from == B)
        .map(|p| p.segment)
        .collect();
    rest[2..]
        .iter()
        .for_each(|segment| bench.world.deliver_ack(B, segment));
    assert!(!bench.world.sides[B].responder.has_responses());
    assert_eq!(bench.world.sides[B].responder.backlog_bytes(), 0);
}
