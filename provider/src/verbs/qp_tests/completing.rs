//! Posting and completing, while the queue pair lives.

use smallvec::smallvec;

use super::*;

#[test]
fn signaled_sends_complete_with_all_fields_and_unsignaled_ones_silently() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    let work = SendWork {
        wr_id: 5,
        operation: Operation::Write {
            remote_addr: 1,
            rkey: 2,
        },
        payload: Payload::Inline(smallvec![1; 40]),
        signaled: true,
        fence: false,
        solicited: false,
    };
    bench.post(4, false).expect("RTS");
    bench.qp.send_poster().post(work).expect("RTS");
    bench.core.drain(&bench.qp);
    bench.core.complete(&bench.qp, Status::Success);
    assert_eq!(bench.sent(), []);
    bench.core.complete(&bench.qp, Status::Success);
    let expected = Cqe {
        wr_id: 5,
        opcode: 1,
        byte_length: 40,
        qpn: 0x88,
        ..Cqe::default()
    };
    assert_eq!(bench.sent(), [expected]);
}

#[test]
fn sq_sig_all_reports_every_send() {
    let bench = bench_with(100, true);
    bench.bring_to(ReadyToSend);
    bench.post(1, false).expect("RTS");
    bench.core.complete(&bench.qp, Status::Success);
    assert_eq!(ids(&bench.sent()), [(1, 0)]);
}

#[test]
fn a_failed_unsignaled_send_and_all_behind_it_are_reported() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    for wr_id in 0..3 {
        bench.post(wr_id, false).expect("RTS");
    }
    bench.post_receive(50).expect("RTS");
    bench.core.complete(&bench.qp, Status::RetryExceeded);
    assert_eq!(
        bench.qp.state(),
        Error,
        "the state shows it before the completion can be polled"
    );
    bench.core.fail_by_itself(&bench.qp, QpFailure::Fatal);
    let sent = bench.sent();
    assert_eq!(ids(&sent), [(0, 12), (1, FLUSHED), (2, FLUSHED)]);
    assert!(sent.iter().all(|cqe| cqe.qpn == 0x88 && cqe.opcode == 0));
    let received = bench.received();
    assert_eq!(ids(&received), [(50, FLUSHED)]);
    assert_eq!(
        (received[0].qpn, received[0].opcode, received[0].source_qpn),
        (0x88, 128, PEER)
    );
    assert_eq!(bench.events(), [EventKind::QpFatal]);
}

#[test]
fn what_is_posted_in_the_error_state_is_flushed_in_order() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    bench.modify(Error).expect("legal");
    for wr_id in 0..3 {
        bench.post(wr_id, false).expect("ERR takes posts");
        assert_eq!(
            bench.post_receive(wr_id),
            Ok(false),
            "no notice for a queue pair that has failed"
        );
    }
    bench.core.flush(&bench.qp);
    assert_eq!(
        ids(&bench.sent()),
        [(0, FLUSHED), (1, FLUSHED), (2, FLUSHED)]
    );
    assert_eq!(
        ids(&bench.received()),
        [(0, FLUSHED), (1, FLUSHED), (2, FLUSHED)]
    );
}

#[test]
fn a_receive_posted_while_failing_is_not_flushed_before_those_that_messages_had_bound() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    bench.post(0, false).expect("RTS");
    bench.post_receive(1).expect("RTS");
    bench.core.bind(&bench.qp);
    // The send has failed, the core is about to report the rest.
    bench.core.complete(&bench.qp, Status::RetryExceeded);
    bench.post_receive(2).expect("ERR takes posts");
    assert_eq!(bench.received(), []);
    bench.core.fail_by_itself(&bench.qp, QpFailure::Fatal);
    assert_eq!(ids(&bench.received()), [(1, FLUSHED), (2, FLUSHED)]);
}

#[rstest]
#[case(ReceiveKind::Send, 128, 0, 0)]
#[case(ReceiveKind::SendImm([1, 2, 3, 4]), 128, 2, u32::from_ne_bytes([1, 2, 3, 4]))]
#[case(ReceiveKind::SendInv(77), 128, 8, 77)]
#[case(ReceiveKind::WriteImm([4, 3, 2, 1]), 129, 2, u32::from_ne_bytes([4, 3, 2, 1]))]
fn receives_complete_with_all_fields(
    #[case] kind: ReceiveKind,
    #[case] opcode: u32,
    #[case] flags: u32,
    #[case] immediate: u32,
) {
    let bench = bench();
    bench.bring_to(ReadyToReceive);
    bench.post_receive(6).expect("RTR");
    bench.qp.receive_queue().take().expect("posted");
    bench.qp.on_receive_done(&ReceiveDone {
        solicited: true,
        ..received(6, Status::Success, kind)
    });
    let expected = Cqe {
        wr_id: 6,
        opcode,
        flags,
        immediate,
        byte_length: 100,
        qpn: 0x88,
        source_qpn: PEER,
        solicited: true,
        ..Cqe::default()
    };
    assert_eq!(bench.received(), [expected]);
}

#[test]
fn receive_slots_are_free_when_their_completions_were_polled() {
    let bench = bench();
    bench.bring_to(ReadyToReceive);
    for wr_id in 0..16 {
        bench.post_receive(wr_id).expect("a free slot");
    }
    assert_eq!(bench.post_receive(16), Err(Errno::NO_MEMORY));
    for wr_id in 0..2 {
        bench.qp.receive_queue().take().expect("posted");
        assert_eq!(bench.post_receive(16), Err(Errno::NO_MEMORY));
        bench
            .qp
            .on_receive_done(&received(wr_id, Status::Success, ReceiveKind::Send));
        assert_eq!(
            bench.post_receive(16),
            Err(Errno::NO_MEMORY),
            "completed, but not polled"
        );
    }
    assert_eq!(bench.received().len(), 2);
    assert_eq!(bench.post_receive(16), Ok(false));
    assert_eq!(bench.post_receive(17), Ok(false));
    assert_eq!(bench.post_receive(18), Err(Errno::NO_MEMORY));
}

#[test]
fn a_notice_is_due_when_somebody_looked_in_vain() {
    let bench = bench();
    bench.bring_to(ReadyToReceive);
    assert_eq!(bench.post_receive(1), Ok(true), "the queue was empty");
    assert_eq!(bench.post_receive(2), Ok(false));
    let queue = bench.qp.receive_queue();
    assert_eq!(
        (
            queue.take().is_some(),
            queue.take().is_some(),
            queue.take().is_some()
        ),
        (true, true, false)
    );
    assert_eq!(bench.post_receive(3), Ok(true));
    assert_eq!(bench.post_receive(4), Ok(false));
}

#[test]
fn too_many_entries_are_refused() {
    let bench = bench();
    bench.bring_to(Init);
    let sge = metaroce_proto::types::Sge {
        addr: 0,
        length: 1,
        lkey: 0,
    };
    let mut poster = bench.qp.receive_poster().expect("INIT");
    let request = ReceiveRequest {
        wr_id: 1,
        sges: smallvec![sge, sge],
    };
    assert_eq!(poster.post(request), Err(Errno::INVALID));
    assert!(!poster.finish());
}

#[test]
fn an_overflowing_completion_queue_fails_the_queue_pair_instead_of_losing_silently() {
    let bench = bench_with(1, true);
    bench.bring_to(ReadyToSend);
    bench.post(0, true).expect("RTS");
    bench.post(1, true).expect("RTS");
    bench.core.complete(&bench.qp, Status::Success);
    assert!(!bench.qp.take_fail_request());
    bench.core.complete(&bench.qp, Status::Success);
    assert_eq!(bench.qp.state(), Error);
    assert!(bench.send_cq.overflowed());
    assert!(bench.qp.take_fail_request(), "the core must be told");
    assert!(!bench.qp.take_fail_request(), "once");
    assert_eq!(bench.events(), [EventKind::QpFatal]);
    assert_eq!(
        bench.events.withdraw(0, EventKind::is_of_cq),
        1,
        "and the queue's own event"
    );
}
