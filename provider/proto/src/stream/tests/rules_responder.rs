//! The responder's rules one by one: checks, order, and what the peer is told.

use rstest::rstest;

use super::bench::{B, Bench};
use super::host::{ALL, ALL_RELAXED};
use super::world::Setup;
use crate::event::QpFailure;
use crate::stream::*;
use crate::types::*;
use crate::wire::{Attempt, DataHeader, Msn, NakCode, Opcode, Rkey};

fn bench() -> Bench {
    Bench::with_memory(&Setup::default(), ALL_RELAXED, 1 << 20)
}

/// What each flaw of a message becomes: the code told, the event here, and the status of its own receive.
#[rstest]
#[case::bad_key(Opcode::Write, |h: &mut DataHeader| h.rkey = Rkey(999), NakCode::RemoteAccess, QpFailure::AccessViolation)]
#[case::beyond_the_region(
    Opcode::Write,
    |h: &mut DataHeader| h.remote_address += 65_530,
    NakCode::RemoteAccess,
    QpFailure::AccessViolation
)]
#[case::bad_key_read(Opcode::ReadReq, |h: &mut DataHeader| h.rkey = Rkey(999), NakCode::RemoteAccess, QpFailure::AccessViolation)]
#[case::bad_key_atomic(Opcode::FetchAdd, |h: &mut DataHeader| h.rkey = Rkey(9), NakCode::RemoteAccess, QpFailure::AccessViolation)]
#[case::misaligned_atomic(
    Opcode::CmpSwap,
    |h: &mut DataHeader| h.remote_address += 4,
    NakCode::InvalidRequest,
    QpFailure::InvalidRequest
)]
#[case::no_such_request(Opcode::UcWrite, |_: &mut DataHeader| (), NakCode::InvalidRequest, QpFailure::InvalidRequest)]
fn flaws_are_raised_when_all_earlier_messages_are_executed(
    #[case] opcode: Opcode,
    #[case] flaw: fn(&mut DataHeader),
    #[case] code: NakCode,
    #[case] failure: QpFailure,
) {
    let mut bench = bench();
    let (length, bytes) = if opcode == Opcode::ReadReq {
        (16, 0)
    } else {
        (16, 16)
    };
    let mut header = bench.header(opcode, 2, length, 0, bytes);
    flaw(&mut header);
    assert_eq!(bench.give(header, 5), Some(Outcome::Refused));
    assert_eq!(
        bench.told(),
        (0, NakCode::None, 0),
        "an earlier message is missing"
    );
    assert!(bench.world.sides[B].events.is_empty());
    bench.give(bench.header(Opcode::Write, 1, 4, 0, 4), 7);
    assert_eq!(bench.told(), (1, code, 0));
    assert_eq!(bench.world.failure(B), Some(failure));
    assert_eq!(
        bench.memory(0, 16),
        [[7; 4], [0; 4], [0; 4], [0; 4]].concat()
    );
    assert_eq!(
        bench.give(bench.header(Opcode::Write, 2, 4, 0, 4), 8),
        Some(Outcome::Refused),
        "it is dead"
    );
    assert_eq!(bench.told(), (1, code, 0), "and goes on saying so");
}

#[rstest]
#[case(Opcode::Write, Access(0xf & !2))]
#[case(Opcode::ReadReq, Access(0xf & !4))]
#[case(Opcode::FetchAdd, Access(0xf & !8))]
fn rights_of_queue_pair_and_key_are_both_needed(#[case] opcode: Opcode, #[case] access: Access) {
    let (length, bytes) = if opcode == Opcode::ReadReq {
        (16, 0)
    } else {
        (16, 16)
    };
    let mut refused = Bench::with_memory(
        &Setup {
            access,
            ..Setup::default()
        },
        ALL_RELAXED,
        0,
    );
    refused.give(refused.header(opcode, 1, length, 0, bytes), 1);
    assert_eq!(
        refused.told(),
        (0, NakCode::InvalidRequest, 0),
        "the queue pair"
    );
    let mut refused = Bench::with_memory(&Setup::default(), access, 0);
    refused.give(refused.header(opcode, 1, length, 0, bytes), 1);
    assert_eq!(refused.told(), (0, NakCode::RemoteAccess, 0), "the key");
}

#[test]
fn another_protection_domain_is_an_access_error() {
    let mut bench = bench();
    let (key, addr) = bench.world.hosts[1].register(PdId(2), 100, ALL);
    let header = bench.header(Opcode::Write, 1, 4, 0, 4);
    bench.give(
        DataHeader {
            rkey: Rkey(key),
            remote_address: addr,
            ..header
        },
        1,
    );
    assert_eq!(bench.told(), (0, NakCode::RemoteAccess, 0));
}

#[rstest]
#[case(Opcode::Write)]
#[case(Opcode::ReadReq)]
fn the_key_of_an_empty_message_is_not_checked(#[case] opcode: Opcode) {
    let mut bench = bench();
    let header = bench.header(opcode, 1, 0, 0, 0);
    assert_eq!(
        bench.give(
            DataHeader {
                rkey: Rkey(999),
                ..header
            },
            0
        ),
        Some(Outcome::Placed)
    );
    assert_eq!(bench.told(), (1, NakCode::None, 0));
}

#[test]
fn an_executed_message_is_never_placed_again() {
    let mut bench = bench();
    bench.give(bench.header(Opcode::Write, 1, 4, 0, 4), 7);
    while bench.world.sides[B].responder.has_news() {
        bench.world.emit_block(B);
    }
    let again = DataHeader {
        attempt: Attempt(1),
        ..bench.header(Opcode::Write, 1, 4, 0, 4)
    };
    assert_eq!(bench.give(again, 9), Some(Outcome::AlreadyExecuted));
    assert_eq!(bench.memory(0, 4), [7; 4]);
    assert!(
        bench.world.sides[B].responder.has_news(),
        "the stream block answers it"
    );
}

// WIRE 5.9
#[test]
fn a_changed_block_goes_into_three_acks() {
    let mut bench = bench();
    bench.give(bench.header(Opcode::Write, 1, 4, 0, 4), 7);
    for _ in 0..3 {
        assert!(bench.world.sides[B].responder.has_news());
        bench.world.emit_block(B);
    }
    assert!(!bench.world.sides[B].responder.has_news());
}

#[test]
fn a_higher_attempt_starts_afresh_and_a_lower_one_is_dropped() {
    let mut bench = bench();
    bench.give(bench.header(Opcode::Write, 1, 8, 0, 4), 1);
    let again = |bench: &Bench, offset| DataHeader {
        attempt: Attempt(1),
        ..bench.header(Opcode::Write, 1, 8, offset, 4)
    };
    bench.give(again(&bench, 0), 2);
    assert_eq!(
        bench.give(bench.header(Opcode::Write, 1, 8, 4, 4), 1),
        Some(Outcome::Refused)
    );
    assert_eq!(bench.told().0, 0, "half of it is there");
    bench.give(again(&bench, 4), 2);
    assert_eq!(bench.told().0, 1);
    assert_eq!(bench.memory(0, 8), [2; 8]);
}

// WIRE 9.7
#[rstest]
#[case::too_far_ahead(|h: &mut DataHeader| h.msn = Msn(MESSAGE_SPAN + 1))]
#[case::another_length(|h: &mut DataHeader| h.message_bytes = 20)]
#[case::another_address(|h: &mut DataHeader| h.remote_address += 8)]
#[case::another_opcode(|h: &mut DataHeader| h.opcode = Opcode::Send)]
#[case::beyond_the_end(|h: &mut DataHeader| h.offset = 7)]
#[case::more_than_all(|h: &mut DataHeader| (h.offset, h.payload_bytes) = (0, 10))]
#[case::empty_part(|h: &mut DataHeader| h.payload_bytes = 0)]
#[case::gigantic(|h: &mut DataHeader| (h.msn, h.message_bytes) = (Msn(2), MESSAGE_BYTES_MAX + 1))]
fn a_broken_rule_fails_the_queue_pair_at_once(#[case] flaw: fn(&mut DataHeader)) {
    let mut bench = bench();
    bench.give(bench.header(Opcode::Write, 1, 10, 0, 4), 1);
    let mut header = bench.header(Opcode::Write, 1, 10, 4, 4);
    flaw(&mut header);
    assert_eq!(bench.give(header, 2), None);
    assert_eq!(bench.world.failure(B), Some(QpFailure::InvalidRequest));
    assert_eq!(bench.told().1, NakCode::InvalidRequest);
}

// WIRE 6.28
#[test]
fn the_packet_span_binds_later_messages_only() {
    let mut bench = bench();
    for offset in 0..PACKET_SPAN {
        bench.give(bench.header(Opcode::Write, 2, 1 << 16, offset, 1), 1);
    }
    assert_eq!(bench.world.failure(B), None);
    bench.give(bench.header(Opcode::Write, 3, 1, 0, 1), 1);
    assert_eq!(bench.world.failure(B), Some(QpFailure::InvalidRequest));
    let mut exempt = self::bench();
    for offset in 0..=PACKET_SPAN {
        exempt.give(exempt.header(Opcode::Write, 1, 1 << 16, offset, 1), 1);
    }
    assert_eq!(exempt.world.failure(B), None);
}

#[test]
fn packets_of_executed_messages_are_not_counted_any_more() {
    let mut bench = bench();
    for pair in 0..PACKET_SPAN {
        let (first, second) = (2 * pair + 1, 2 * pair + 2);
        bench.give(bench.header(Opcode::Write, second, 2, 0, 1), 1);
        bench.give(bench.header(Opcode::Write, second, 2, 1, 1), 1);
        bench.give(bench.header(Opcode::Write, first, 1, 0, 1), 1);
    }
    assert_eq!(bench.world.failure(B), None);
    assert_eq!(bench.told().0, 2 * PACKET_SPAN);
}
