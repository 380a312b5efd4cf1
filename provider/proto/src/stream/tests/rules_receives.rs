//! The rules of receives, and of strict visibility, at the responder.

use super::bench::{A, B, Bench};
use super::host::{ALL, ALL_RELAXED};
use super::world::{PD, Setup, World, receive, request};
use crate::event::{Event, QpFailure};
use crate::stream::*;
use crate::types::*;
use crate::wire::{Attempt, DataHeader, NakCode, Opcode, Rkey, Ssn};

fn bench() -> Bench {
    Bench::with_memory(&Setup::default(), ALL_RELAXED, 1 << 20)
}

#[test]
fn a_send_longer_than_its_receive() {
    let mut bench = bench();
    bench.post(70, 3);
    bench.post(71, 100);
    let (key, addr) = bench.local;
    bench
        .world
        .submit(A, request(1, Operation::Send, key, addr, 4));
    bench
        .world
        .submit(A, request(2, Operation::Send, key, addr, 4));
    let credit = bench.world.sides[B]
        .responder
        .credit(&mut bench.world.hosts[1]);
    bench.world.sides[A].requester.credit = credit;
    bench.world.run_in_order();
    assert_eq!(
        bench.world.receive_statuses(B),
        [(70, Status::LocalLength)],
        "the other is still posted"
    );
    assert_eq!(bench.world.failure(B), Some(QpFailure::InvalidRequest));
    assert_eq!(
        bench.world.send_statuses(A),
        [(1, Status::RemoteInvalidRequest), (2, Status::Flushed)]
    );
}

#[test]
fn a_receive_that_cannot_be_written() {
    let mut bench = bench();
    let queue = bench.world.queue(false, B);
    bench.world.post(&[B], queue, receive(70, 12_345, 0, 100));
    let (key, addr) = bench.local;
    bench
        .world
        .submit(A, request(1, Operation::Send, key, addr, 4));
    bench.world.run_in_order();
    assert_eq!(
        bench.world.receive_statuses(B),
        [(70, Status::LocalProtection)]
    );
    assert_eq!(
        bench.world.failure(B),
        Some(QpFailure::Fatal),
        "the peer did nothing wrong"
    );
    assert_eq!(bench.world.send_statuses(A), [(1, Status::RemoteOperation)]);
}

#[test]
fn a_send_without_receive_is_refused_once_and_taken_when_it_comes_again() {
    let mut bench = bench();
    let message = |bench: &Bench, attempt| DataHeader {
        attempt: Attempt(attempt),
        ..bench.header(Opcode::Send, 1, 8, 0, 4)
    };
    assert_eq!(bench.give(message(&bench, 0), 1), Some(Outcome::Refused));
    assert_eq!(bench.told(), (0, NakCode::Rnr, 0));
    assert!(bench.world.sides[B].responder.has_urgent_news());
    bench.world.emit_block(B);
    assert!(!bench.world.sides[B].responder.has_urgent_news());
    assert!(bench.world.sides[B].responder.wants_receive_notice());
    bench.post(70, 8);
    assert!(
        bench.world.sides[B].responder.has_urgent_news(),
        "the posting itself wakes the peer"
    );
    assert_eq!(bench.world.emit_block(B).credit, Ssn(1));
    assert_eq!(
        bench.give(message(&bench, 0), 1),
        Some(Outcome::Refused),
        "the refused attempt is over"
    );
    assert_eq!(bench.give(message(&bench, 1), 2), Some(Outcome::Placed));
    let rest = DataHeader {
        offset: 4,
        ..message(&bench, 1)
    };
    bench.give(rest, 3);
    assert_eq!(bench.world.receive_statuses(B), [(70, Status::Success)]);
    assert_eq!(bench.memory(0x8000, 8), [2, 2, 2, 2, 3, 3, 3, 3]);
    assert_eq!(bench.world.sides[B].responder.rnr_count(), 1);
}

// WIRE 6.14
#[test]
fn a_later_send_leaves_the_earlier_one_its_receive() {
    let mut bench = bench();
    bench.post(70, 8);
    bench.post(71, 8);
    let second = DataHeader {
        ssn: Ssn(1),
        ..bench.header(Opcode::Send, 2, 4, 0, 4)
    };
    bench.give(second, 2);
    assert!(bench.world.receive_statuses(B).is_empty());
    bench.give(bench.header(Opcode::Send, 1, 4, 0, 4), 1);
    assert_eq!(
        bench.world.receive_statuses(B),
        [(70, Status::Success), (71, Status::Success)]
    );
}

#[test]
fn a_write_with_immediate_takes_its_receive_when_it_is_executed() {
    let mut bench = bench();
    let header = DataHeader {
        immediate: 0x0102_0304,
        ..bench.header(Opcode::WriteImm, 2, 4, 0, 4)
    };
    bench.give(header, 9);
    assert_eq!(bench.memory(0, 4), [9; 4], "placed without a receive");
    assert_eq!(bench.told(), (0, NakCode::None, 0));
    bench.give(
        DataHeader {
            remote_address: bench.remote.1 + 8,
            ..bench.header(Opcode::Write, 1, 4, 0, 4)
        },
        8,
    );
    assert_eq!(bench.told(), (1, NakCode::Rnr, 0));
    bench.world.emit_block(B);
    bench.post(70, 0);
    assert_eq!(
        bench.told(),
        (2, NakCode::None, 0),
        "nothing has to be sent again"
    );
    assert!(bench.world.sides[B].responder.has_urgent_news());
    let done = bench.world.sides[B]
        .events
        .iter()
        .find_map(|event| match event {
            Event::ReceiveDone(done) => Some(*done),
            _ => None,
        });
    let done = done.expect("a completion");
    assert_eq!(
        (done.kind, done.byte_length),
        (crate::event::ReceiveKind::WriteImm([1, 2, 3, 4]), 4)
    );
}

// WIRE 6.11
/// What users complain about: "zero-length write-with-immediate completes before earlier writes are visible".
#[test]
fn an_empty_write_with_immediate_waits_for_earlier_writes() {
    let mut bench = bench();
    bench.post(70, 0);
    bench.give(bench.header(Opcode::WriteImm, 2, 0, 0, 0), 0);
    assert!(bench.world.receive_statuses(B).is_empty());
    bench.give(bench.header(Opcode::Write, 1, 8, 4, 4), 2);
    assert!(bench.world.receive_statuses(B).is_empty());
    bench.give(bench.header(Opcode::Write, 1, 8, 0, 4), 1);
    assert_eq!(bench.world.receive_statuses(B), [(70, Status::Success)]);
}

// WIRE 6.20
#[test]
fn bound_receives_are_flushed_and_answers_still_go() {
    let mut bench = bench();
    (70..73).for_each(|cookie| bench.post(cookie, 8));
    bench.give(bench.header(Opcode::ReadReq, 1, 8, 0, 0), 0);
    bench.give(
        DataHeader {
            ssn: Ssn(1),
            ..bench.header(Opcode::Send, 3, 8, 0, 4)
        },
        1,
    );
    bench.give(
        DataHeader {
            rkey: Rkey(999),
            ..bench.header(Opcode::Write, 2, 4, 0, 4)
        },
        1,
    );
    assert_eq!(
        bench.world.receive_statuses(B),
        [(70, Status::Flushed), (71, Status::Flushed)]
    );
    assert_eq!(bench.world.failure(B), Some(QpFailure::AccessViolation));
    assert!(
        bench.world.send(B, true).is_some(),
        "what was executed before is answered"
    );
    let side = &mut bench.world.sides[B];
    side.responder
        .end(&mut bench.world.holds[1], &mut side.events);
    assert!(!side.responder.has_responses());
}

// WIRE 6.14
#[test]
fn a_shared_queue_serves_the_refused_message_that_is_told_of_it() {
    let mut world = World::new(1000, 0);
    let setup = Setup {
        shared: true,
        ..Setup::default()
    };
    let (first, second) = (world.connect(&setup) + 1, world.connect(&setup) + 1);
    let (key, addr) = world.hosts[1].register(PD, 100, ALL);
    let (lkey, laddr) = world.hosts[0].register(PD, 100, ALL);
    for side in [first, second] {
        world.submit(
            side - 1,
            request(side as u64, Operation::Send, lkey, laddr, 4),
        );
    }
    world.run_in_order();
    assert!(world.receive_statuses(first).is_empty() && world.receive_statuses(second).is_empty());
    let queue = world.queue(true, first);
    world.post(&[first, second], queue, receive(70, key, addr, 8));
    world.run_in_order();
    assert_eq!(world.receive_statuses(first), [(70, Status::Success)]);
    assert!(world.receive_statuses(second).is_empty());
    world.post(&[first, second], queue, receive(71, key, addr, 8));
    world.run_in_order();
    assert_eq!(world.receive_statuses(second), [(71, Status::Success)]);
    assert_eq!(
        world.send_statuses(second - 1),
        [(second as u64, Status::Success)]
    );
}

// WIRE 6.19
#[test]
fn a_waiting_flag_asks_for_the_credit_of_the_next_posting() {
    let mut bench = bench();
    bench.post(70, 8);
    bench.world.emit_block(B);
    let side = &mut bench.world.sides[B];
    assert!(
        !side.responder.wants_receive_notice(),
        "the peer has credit"
    );
    side.responder.on_peer_waits(&mut bench.world.hosts[1]);
    assert!(side.responder.wants_receive_notice() && !side.responder.has_urgent_news());
    // A block that tells nothing new leaves it waiting.
    bench.world.emit_block(B);
    assert!(bench.world.sides[B].responder.wants_receive_notice());
    bench.post(71, 8);
    assert!(bench.world.sides[B].responder.has_urgent_news());
    assert_eq!(bench.world.emit_block(B).credit, Ssn(2));
}

// WIRE 7.3, 7.4
#[test]
fn a_strict_write_shows_its_end_last_and_after_earlier_writes() {
    let mut bench = Bench::with_memory(&Setup::default(), ALL, 1 << 20);
    bench.give(bench.header(Opcode::Write, 1, 8, 4, 4), 1);
    assert_eq!(bench.memory(0, 8), [0; 8], "the final packet is held");
    let later = |bench: &Bench, offset| DataHeader {
        remote_address: bench.remote.1 + 8,
        ..bench.header(Opcode::Write, 2, 8, offset, 4)
    };
    bench.give(later(&bench, 0), 2);
    bench.give(later(&bench, 4), 2);
    assert_eq!(
        bench.memory(0, 16),
        [0; 16],
        "complete, but an earlier one is not"
    );
    assert!(bench.world.holds[1].held_bytes() > 0);
    bench.give(bench.header(Opcode::Write, 1, 8, 0, 4), 1);
    assert_eq!(bench.memory(0, 16), [[1; 8], [2; 8]].concat());
    assert_eq!((bench.told().0, bench.world.holds[1].held_bytes()), (2, 0));
}

// WIRE 7.6
#[test]
fn what_exceeds_the_hold_memory_is_refused_and_comes_again() {
    let mut bench = Bench::with_memory(&Setup::default(), ALL, 100);
    let (key, addr) = bench.local;
    let (rkey, remote_addr) = bench.remote;
    bench.world.hosts[0].fill(key, addr, &[7; 500]);
    bench.world.max_payload = 50;
    for cookie in 1..=3 {
        let remote_addr = remote_addr + 100 * cookie;
        bench.world.submit(
            A,
            request(
                cookie,
                Operation::Write { remote_addr, rkey },
                key,
                addr,
                100,
            ),
        );
    }
    let packets: Vec<_> = (0..6)
        .map(|_| bench.world.send(A, false).expect("a packet"))
        .collect();
    let outcomes: Vec<_> = packets[1..]
        .iter()
        .map(|packet| bench.world.deliver(packet))
        .collect();
    assert_eq!(
        outcomes[0],
        Some(Outcome::Placed),
        "the final packet of the oldest is always held"
    );
    assert_eq!(outcomes[1], Some(Outcome::Refused));
    assert_eq!(bench.told(), (0, NakCode::None, 0), "not its turn yet");
    bench.world.deliver(&packets[0]);
    assert_eq!(bench.told(), (1, NakCode::Hold, 0));
    bench.world.flight.clear();
    bench.world.run_in_order();
    assert_eq!(bench.world.send_statuses(A).len(), 3);
    assert_eq!(bench.memory(100, 300), [7; 300]);
    assert_eq!(bench.world.holds[1].held_bytes(), 0);
}

#[test]
fn held_packets_of_a_region_that_is_gone_are_an_access_error() {
    let mut bench = Bench::with_memory(&Setup::default(), ALL, 1 << 20);
    let (gone, remote_address) = bench.world.hosts[1].register(PD, 100, ALL);
    let header = DataHeader {
        rkey: Rkey(gone),
        remote_address,
        ..bench.header(Opcode::Write, 2, 4, 0, 4)
    };
    bench.give(header, 2);
    bench.world.hosts[1].deregister(gone);
    bench.give(bench.header(Opcode::Write, 1, 4, 0, 4), 1);
    assert_eq!(bench.told(), (1, NakCode::RemoteAccess, 0));
    assert_eq!(bench.world.holds[1].held_bytes(), 0);
}
