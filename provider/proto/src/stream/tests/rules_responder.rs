//! The responder's rules one by one.

use rstest::rstest;

use super::host::{ALL, ALL_RELAXED};
use super::world::{PD, Setup, World, receive, request};
use crate::event::{Event, QpFailure};
use crate::stream::*;
use crate::types::*;
use crate::wire::{Attempt, DataHeader, FillStatus, Msn, NakCode, Opcode, Rkey, Ssn};

const A: usize = 0;
const B: usize = 1;

/// One pair, 64 KiB at each end; packets to side B are made by hand.
struct Bench {
    world: World,
    local: (u32, u64),
    remote: (u32, u64),
}

impl Bench {
    fn new(setup: &Setup, access: Access, hold_bytes: u32) -> Self {
        let mut world = World::new(1000, hold_bytes);
        let local = world.hosts[0].register(PD, 1 << 16, ALL);
        let remote = world.hosts[1].register(PD, 1 << 16, access);
        world.connect(setup);
        Self {
            world,
            local,
            remote,
        }
    }

    fn header(&self, opcode: Opcode, msn: u32, length: u32, offset: u32, bytes: u16) -> DataHeader {
        DataHeader {
            opcode,
            msn: Msn(msn),
            message_bytes: length,
            offset,
            payload_bytes: bytes,
            remote_address: self.remote.1,
            rkey: Rkey(self.remote.0),
            ..DataHeader::default()
        }
    }

    fn give(&mut self, header: DataHeader, byte: u8) -> Option<Outcome> {
        let side = &mut self.world.sides[B];
        let payload = vec![byte; usize::from(header.payload_bytes)];
        let (host, hold) = (&mut self.world.hosts[1], &mut self.world.holds[1]);
        match side
            .responder
            .handle_request(&header, &payload, host, hold, &mut side.events)
        {
            Ok(outcome) => Some(outcome),
            Err(failure) => {
                self.world.settle(B, Some(failure));
                None
            }
        }
    }

    fn post(&mut self, cookie: u64, length: u32) {
        let queue = self.world.queue(false, B);
        let (key, addr) = self.remote;
        self.world
            .post(&[B], queue, receive(cookie, key, addr + 0x8000, length));
    }

    fn told(&mut self) -> (u32, NakCode, u8) {
        let block = self.world.sides[B]
            .responder
            .block(&mut self.world.hosts[1]);
        (block.msn_executed.0, block.code, block.attempt.0)
    }

    fn memory(&self, offset: u64, length: usize) -> &[u8] {
        self.world.hosts[1]
            .memory(self.remote.0, self.remote.1 + offset, length)
            .expect("registered")
    }
}

fn bench() -> Bench {
    Bench::new(&Setup::default(), ALL_RELAXED, 1 << 20)
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
    let mut refused = Bench::new(
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
    let mut refused = Bench::new(&Setup::default(), access, 0);
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

#[rstest]
#[case(2, 2, None)]
#[case(2, 3, Some(QpFailure::InvalidRequest))]
#[case(0, 1, Some(QpFailure::InvalidRequest))]
fn no_more_answers_may_be_outstanding_than_max_dest_rd_atomic(
    #[case] limit: u8,
    #[case] reads: u32,
    #[case] failure: Option<QpFailure>,
) {
    let mut bench = Bench::new(
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
    let mut bench = Bench::new(
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
    bench.post(71, 8);
    assert!(bench.world.sides[B].responder.has_urgent_news());
    assert_eq!(bench.world.emit_block(B).credit, Ssn(2));
}

#[test]
fn a_strict_write_shows_its_end_last_and_after_earlier_writes() {
    let mut bench = Bench::new(&Setup::default(), ALL, 1 << 20);
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

#[test]
fn what_exceeds_the_hold_memory_is_refused_and_comes_again() {
    let mut bench = Bench::new(&Setup::default(), ALL, 100);
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
    let mut bench = Bench::new(&Setup::default(), ALL, 1 << 20);
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
