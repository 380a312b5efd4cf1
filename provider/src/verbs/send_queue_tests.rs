//! Tests of the send queue.

use metaroce_proto::types::{Sge, SgeList};
use rstest::rstest;
use smallvec::smallvec;

use super::super::mr_memory::Region;
use super::*;

const PD: PdId = PdId(1);
const NOTHING: CqeNumber = CqeNumber(0);
const READ: Operation = Operation::Read {
    remote_addr: 0,
    rkey: 1,
};
const WRITE: Operation = Operation::Write {
    remote_addr: 0,
    rkey: 1,
};
const ADD: Operation = Operation::FetchAdd {
    remote_addr: 0,
    rkey: 1,
    add: 1,
};
const SWAP: Operation = Operation::CompareSwap {
    remote_addr: 0,
    rkey: 1,
    compare: 1,
    swap: 2,
};
const WRITE_IMM: Operation = Operation::WriteImm {
    remote_addr: 0,
    rkey: 1,
    imm: [1; 4],
};

fn queue(capacity: u32) -> SendQueue {
    SendQueue::new(SendLimits {
        capacity,
        max_sge: 4,
        max_inline: 256,
        signal_all: false,
    })
}

fn work(wr_id: u64, operation: Operation, payload: Payload) -> SendWork {
    SendWork {
        wr_id,
        operation,
        payload,
        signaled: false,
        fence: false,
        solicited: false,
    }
}

fn empty(wr_id: u64) -> SendWork {
    work(wr_id, Operation::Send, Payload::Gather(SgeList::new()))
}

fn post(queue: &mut SendQueue, polled: CqeNumber, work: SendWork) -> Result<(), Errno> {
    queue.post(QpState::ReadyToSend, polled, PD, &MrTable::default(), work)
}

fn sge(length: u32, lkey: u32) -> Sge {
    Sge {
        addr: 0x1000,
        length,
        lkey,
    }
}

#[rstest]
#[case(QpState::Reset, Err(Errno::INVALID))]
#[case(QpState::Init, Err(Errno::INVALID))]
#[case(QpState::ReadyToReceive, Err(Errno::INVALID))]
#[case(QpState::ReadyToSend, Ok(()))]
#[case(QpState::SendQueueDrained, Ok(()))]
#[case(QpState::SendQueueError, Err(Errno::INVALID))]
#[case(QpState::Error, Ok(()))]
fn states_in_which_sends_may_be_posted(
    #[case] state: QpState,
    #[case] expected: Result<(), Errno>,
) {
    let mut queue = queue(4);
    assert_eq!(
        queue.post(state, NOTHING, PD, &MrTable::default(), empty(1)),
        expected
    );
    assert_eq!(queue.take().is_some(), expected.is_ok());
}

#[rstest]
#[case(Operation::Send, 256, Ok(()))]
#[case(Operation::Send, 0, Ok(()))]
#[case(WRITE, 256, Ok(()))]
#[case(WRITE_IMM, 1, Ok(()))]
#[case(Operation::Send, 257, Err(Errno::INVALID))]
#[case(READ, 8, Err(Errno::INVALID))]
#[case(ADD, 8, Err(Errno::INVALID))]
fn inline_data(
    #[case] operation: Operation,
    #[case] bytes: usize,
    #[case] expected: Result<(), Errno>,
) {
    let payload = Payload::Inline(smallvec![7; bytes]);
    assert_eq!(
        post(&mut queue(4), NOTHING, work(1, operation, payload)),
        expected
    );
}

#[rstest]
#[case(Operation::Send, &[8, 8, 8, 8], Ok(()))]
#[case(Operation::Send, &[8, 8, 8, 8, 8], Err(Errno::INVALID))]
#[case(WRITE, &[1 << 30, 1 << 30], Ok(()))]
#[case(WRITE, &[1 << 30, 1 << 30, 1], Err(Errno::INVALID))]
#[case(READ, &[u32::MAX], Err(Errno::INVALID))]
#[case(WRITE, &[], Ok(()))]
#[case(READ, &[], Ok(()))]
#[case(ADD, &[8], Ok(()))]
#[case(ADD, &[4, 4], Err(Errno::INVALID))]
#[case(ADD, &[16], Err(Errno::INVALID))]
#[case(SWAP, &[4], Err(Errno::INVALID))]
#[case(SWAP, &[], Err(Errno::INVALID))]
fn lengths_and_entries(
    #[case] operation: Operation,
    #[case] lengths: &[u32],
    #[case] expected: Result<(), Errno>,
) {
    let sges = lengths.iter().map(|length| sge(*length, 1)).collect();
    assert_eq!(
        post(
            &mut queue(4),
            NOTHING,
            work(1, operation, Payload::Gather(sges))
        ),
        expected
    );
}

#[test]
fn a_refused_request_leaves_no_trace() {
    let mut queue = queue(1);
    let five = (0..5).map(|_| sge(1, 1)).collect();
    assert!(post(&mut queue, NOTHING, work(1, WRITE, Payload::Gather(five))).is_err());
    post(&mut queue, NOTHING, empty(2)).expect("a free slot");
    assert_eq!(post(&mut queue, NOTHING, empty(3)), Err(Errno::NO_MEMORY));
    assert_eq!(queue.take().map(|request| request.cookie), Some(0));
    assert_eq!(queue.take(), None);
    assert_eq!(queue.complete(WqeNumber(0)).map(|wqe| wqe.wr_id), Some(2));
}

#[rstest]
#[case(Operation::Send, 0, None)]
#[case(WRITE, 0, None)]
#[case(READ, 0, Some(Status::LocalProtection))]
#[case(ADD, 0, Some(Status::LocalProtection))]
#[case(READ, 1, None)]
#[case(SWAP, 1, None)]
fn keys_are_judged_when_posted_and_punished_in_turn(
    #[case] operation: Operation,
    #[case] access: u32,
    #[case] fault: Option<Status>,
) {
    let memory = MrTable::default();
    let region = Region {
        pd: PD,
        iova: 0x1000,
        length: 8,
        host_addr: 0,
        access: Access(access),
    };
    let key = memory.register(region).expect("room");
    let mut queue = queue(9);
    for (sges, expected) in [
        (smallvec![sge(8, key)], fault),
        (
            smallvec![sge(8, key ^ 1 << 31)],
            Some(Status::LocalProtection),
        ),
        (
            smallvec![Sge {
                addr: 0x1001,
                ..sge(8, key)
            }],
            Some(Status::LocalProtection),
        ),
    ] {
        let work = work(1, operation, Payload::Gather(sges));
        assert_eq!(
            queue.post(QpState::ReadyToSend, NOTHING, PD, &memory, work),
            Ok(())
        );
        assert_eq!(queue.take().expect("posted").fault, expected);
    }
    let foreign = work(1, operation, Payload::Gather(smallvec![sge(8, key)]));
    queue
        .post(QpState::ReadyToSend, NOTHING, PdId(2), &memory, foreign)
        .expect("a slot");
    assert_eq!(
        queue.take().expect("posted").fault,
        Some(Status::LocalProtection)
    );
}

#[test]
fn what_the_core_gets_is_what_was_posted() {
    let mut queue = queue(4);
    let request = SendWork {
        fence: true,
        solicited: true,
        ..work(7, WRITE_IMM, Payload::Inline(smallvec![1, 2]))
    };
    post(&mut queue, NOTHING, request).expect("valid");
    let taken = queue.take().expect("posted");
    assert_eq!(
        (taken.operation, taken.length, taken.fence, taken.solicited),
        (WRITE_IMM, 2, true, true)
    );
    assert_eq!(taken.payload, Payload::Inline(smallvec![1, 2]));
    let wqe = queue.complete(WqeNumber(taken.cookie)).expect("the oldest");
    assert_eq!(
        wqe,
        Wqe {
            wr_id: 7,
            opcode: 1,
            length: 2,
            signaled: false
        }
    );
}

#[rstest]
#[case(Operation::Send, 0)]
#[case(Operation::SendImm([0; 4]), 0)]
#[case(WRITE, 1)]
#[case(WRITE_IMM, 1)]
#[case(READ, 2)]
#[case(SWAP, 3)]
#[case(ADD, 4)]
fn opcodes_of_completions(#[case] operation: Operation, #[case] opcode: u32) {
    assert_eq!(completion_opcode(&operation), opcode);
}

#[test]
fn unsignaled_requests_retire_with_a_later_signaled_one_that_was_polled() {
    let mut queue = queue(4);
    for wr_id in 0..4 {
        let signaled = wr_id == 2;
        post(
            &mut queue,
            NOTHING,
            SendWork {
                signaled,
                ..empty(wr_id)
            },
        )
        .expect("a free slot");
        queue.take();
    }
    for number in 0..4 {
        let wqe = queue.complete(WqeNumber(number)).expect("in order");
        if wqe.signaled {
            queue.completed(CqeNumber(10));
        }
    }
    // Done, but not polled: the slots are taken, as on hardware.
    assert_eq!(
        post(&mut queue, CqeNumber(10), empty(4)),
        Err(Errno::NO_MEMORY)
    );
    // Number 10 was polled: three slots are free, the one of the unsignaled request behind it is not.
    for wr_id in 4..7 {
        post(&mut queue, CqeNumber(11), empty(wr_id)).expect("a free slot");
    }
    assert_eq!(
        post(&mut queue, CqeNumber(11), empty(7)),
        Err(Errno::NO_MEMORY)
    );
}

#[test]
fn completions_of_another_life_or_out_of_turn_are_not_taken() {
    let mut queue = queue(8);
    assert_eq!(queue.complete(WqeNumber(0)), None);
    for wr_id in 0..3 {
        post(&mut queue, NOTHING, empty(wr_id)).expect("a free slot");
    }
    queue.take();
    queue.take();
    assert_eq!(queue.complete(WqeNumber(1)), None, "not the oldest");
    queue.clear();
    post(&mut queue, NOTHING, empty(9)).expect("a free slot");
    assert_eq!(queue.complete(WqeNumber(0)), None, "of the life before");
    assert_eq!(queue.take().map(|request| request.cookie), Some(3));
    assert_eq!(queue.complete(WqeNumber(3)).map(|wqe| wqe.wr_id), Some(9));
}

#[test]
fn clearing_frees_all_slots() {
    let mut queue = queue(2);
    for wr_id in 0..2 {
        post(&mut queue, NOTHING, empty(wr_id)).expect("a free slot");
    }
    queue.take();
    queue.clear_pending();
    assert_eq!(queue.take(), None);
    assert_eq!(
        queue.complete(WqeNumber(0)).map(|wqe| wqe.wr_id),
        Some(0),
        "what the core has stays until it is gone"
    );
    queue.clear();
    for wr_id in 0..2 {
        post(&mut queue, NOTHING, empty(wr_id)).expect("a free slot");
    }
}

#[test]
fn drained_is_when_the_core_has_nothing() {
    let mut queue = queue(4);
    assert!(queue.is_drained());
    post(&mut queue, NOTHING, empty(0)).expect("a free slot");
    assert!(queue.is_drained(), "the core has not seen it");
    queue.take();
    assert!(!queue.is_drained());
    queue.complete(WqeNumber(0));
    assert!(queue.is_drained());
}

#[test]
fn what_is_abandoned_comes_in_order() {
    let mut queue = queue(4);
    for wr_id in 0..4 {
        post(&mut queue, NOTHING, empty(wr_id)).expect("a free slot");
    }
    queue.take();
    let ids: Vec<_> = std::iter::from_fn(|| queue.abandon())
        .map(|wqe| wqe.wr_id)
        .collect();
    assert_eq!(ids, [0, 1, 2, 3]);
    assert_eq!(queue.take(), None);
}
