//! Changes of state, and the end.

use super::*;

#[test]
fn every_transition_from_every_state_is_as_the_table_says() {
    for from in [
        Reset,
        Init,
        ReadyToReceive,
        ReadyToSend,
        SendQueueDrained,
        Error,
    ] {
        for target in QpState::ALL {
            let bench = bench();
            bench.bring_to(from);
            assert_eq!(bench.qp.state(), from);
            let before = bench.qp.attributes();
            let legal = qp_state::transition(from, target).is_some();
            let result = bench.modify(target);
            assert_eq!(
                result,
                if legal { Ok(()) } else { Err(Errno::INVALID) },
                "{from:?} -> {target:?}"
            );
            assert_eq!(
                bench.qp.state(),
                if legal { target } else { from },
                "{from:?} -> {target:?}"
            );
            if !legal {
                assert_eq!(
                    bench.qp.attributes(),
                    before,
                    "{from:?} -> {target:?} changed attributes"
                );
                assert_eq!(
                    bench.core.calls(),
                    [""; 0],
                    "{from:?} -> {target:?} reached the core"
                );
            }
        }
    }
}

#[test]
fn a_connection_is_made_with_the_values_given_and_a_query_returns_them() {
    let bench = bench();
    bench.modify(Init).expect("legal");
    bench.modify(ReadyToReceive).expect("legal");
    bench.modify(ReadyToSend).expect("legal");
    assert_eq!(bench.core.calls(), ["connect 0x4001", "enable 14 6"]);
    assert_eq!(bench.qp.attributes(), attributes());
}

#[rstest]
#[case(|m: &mut Modification| m.attributes.path_mtu = 9)]
#[case(|m: &mut Modification| m.attributes.address.is_global = false)]
#[case(|m: &mut Modification| m.attributes.address.sgid_index = 2)]
#[case(|m: &mut Modification| m.mask = Mask(m.mask.0 & !Mask::DEST_QPN.0))]
#[case(|m: &mut Modification| m.mask = m.mask | Mask::SQ_PSN)]
#[case(|m: &mut Modification| m.mask = m.mask | Mask::CURRENT_STATE)]
#[case(|m: &mut Modification| m.state = 7)]
#[case(|m: &mut Modification| m.state = u32::MAX)]
fn a_bad_argument_changes_nothing(#[case] spoil: fn(&mut Modification)) {
    let bench = bench();
    bench.bring_to(Init);
    let before = bench.qp.attributes();
    let mut wanted = to(Init, ReadyToReceive);
    spoil(&mut wanted);
    assert_eq!(modify(&bench.qp, &bench.core, &wanted), Err(Errno::INVALID));
    assert_eq!((bench.qp.state(), bench.qp.attributes()), (Init, before));
    assert_eq!(bench.core.calls(), [""; 0]);
}

#[test]
fn a_peer_that_the_core_refuses_leaves_the_queue_pair_as_it_was() {
    let mut bench = bench();
    bench.bring_to(Init);
    let before = bench.qp.attributes();
    bench.core.refuses = true;
    assert_eq!(bench.modify(ReadyToReceive), Err(Errno::INVALID));
    assert_eq!((bench.qp.state(), bench.qp.attributes()), (Init, before));
}

#[test]
fn attributes_change_without_a_change_of_state() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    let mut wanted = Modification {
        mask: Mask::ACCESS,
        attributes: attributes(),
        ..Modification::default()
    };
    wanted.attributes.access = 0x2;
    modify(&bench.qp, &bench.core, &wanted).expect("legal in RTS");
    assert_eq!(bench.core.calls(), ["access 0x2"]);
    assert_eq!(bench.qp.attributes().access, 2);
    wanted.mask = Mask::ACCESS | Mask::CURRENT_STATE;
    wanted.current_state = ReadyToSend as u32;
    assert_eq!(modify(&bench.qp, &bench.core, &wanted), Ok(()));
    wanted.current_state = ReadyToReceive as u32;
    assert_eq!(modify(&bench.qp, &bench.core, &wanted), Err(Errno::INVALID));
}

#[rstest]
#[case(QpFailure::Fatal, EventKind::QpFatal)]
#[case(QpFailure::InvalidRequest, EventKind::QpRequestError)]
#[case(QpFailure::AccessViolation, EventKind::QpAccessError)]
fn each_failure_has_its_event(#[case] failure: QpFailure, #[case] kind: EventKind) {
    let bench = bench();
    bench.bring_to(ReadyToReceive);
    bench.qp.on_failed(failure);
    bench.qp.on_failed(failure);
    assert_eq!(bench.events(), [kind], "exactly once");
    assert_eq!(bench.qp.state(), Error);
}

#[test]
fn failing_by_the_program_flushes_in_order_and_raises_no_event() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    for wr_id in 0..4 {
        bench.post(wr_id, wr_id == 3).expect("RTS");
        bench.post_receive(10 + wr_id).expect("RTS");
    }
    bench.core.bind(&bench.qp);
    bench.core.bind(&bench.qp);
    bench.modify(Error).expect("legal");
    assert_eq!(
        ids(&bench.sent()),
        [(0, FLUSHED), (1, FLUSHED), (2, FLUSHED), (3, FLUSHED)]
    );
    assert_eq!(
        ids(&bench.received()),
        [(10, FLUSHED), (11, FLUSHED), (12, FLUSHED), (13, FLUSHED)]
    );
    assert_eq!(bench.events(), []);
}

#[rstest]
#[case(Reset, Err(Errno::INVALID))]
#[case(Init, Ok(true))]
#[case(ReadyToReceive, Ok(true))]
#[case(ReadyToSend, Ok(true))]
#[case(SendQueueDrained, Ok(true))]
fn states_in_which_receives_may_be_posted(
    #[case] state: QpState,
    #[case] expected: Result<bool, Errno>,
) {
    let bench = bench();
    bench.bring_to(state);
    assert_eq!(bench.post_receive(1), expected);
    assert_eq!(
        bench.qp.receive_queue().available(),
        u32::from(expected.is_ok())
    );
}

#[test]
fn a_reset_forgets_everything_without_completions_and_a_new_life_works() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    for wr_id in 0..16 {
        bench.post(wr_id, true).expect("a free slot");
        bench.post_receive(wr_id).expect("a free slot");
    }
    let stale = bench.core.submitted.borrow()[0];
    bench.modify(Reset).expect("legal");
    assert_eq!(bench.core.calls(), ["reset"]);
    assert_eq!(
        (bench.sent(), bench.received(), bench.events()),
        (vec![], vec![], vec![])
    );
    assert_eq!(bench.qp.attributes(), Attributes::default());
    assert_eq!(bench.post(0, true), Err(Errno::INVALID));
    assert_eq!(bench.post_receive(0), Err(Errno::INVALID));

    bench.bring_to(ReadyToSend);
    for wr_id in 0..16 {
        bench.post(wr_id, true).expect("a free slot");
        bench.post_receive(wr_id).expect("a free slot");
    }
    bench.qp.on_send_done(&SendDone {
        qp: ID,
        cookie: stale,
        status: Status::Success,
        vendor_error: 0,
    });
    assert_eq!(bench.sent(), [], "a completion of the life before");
    bench.core.complete(&bench.qp, Status::Success);
    assert_eq!(ids(&bench.sent()), [(0, 0)]);
}

#[test]
fn after_a_failure_and_a_reset_the_next_failure_is_told_again() {
    let bench = bench();
    for _ in 0..2 {
        bench.bring_to(ReadyToSend);
        bench.core.fail_by_itself(&bench.qp, QpFailure::Fatal);
        assert_eq!(bench.events(), [EventKind::QpFatal]);
        bench.modify(Reset).expect("legal");
    }
}

#[test]
fn destroying_completes_everything_in_order_before_it_returns() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    for wr_id in 0..3 {
        bench.post(wr_id, false).expect("a free slot");
        bench.post_receive(wr_id).expect("a free slot");
    }
    bench.core.bind(&bench.qp);
    assert!(bench.pd.is_used());
    assert_eq!(bench.send_cq.silence(), Err(Errno::BUSY));
    destroy(&bench.qp, &bench.core);
    assert_eq!(
        ids(&bench.sent()),
        [(0, FLUSHED), (1, FLUSHED), (2, FLUSHED)]
    );
    assert_eq!(
        ids(&bench.received()),
        [(0, FLUSHED), (1, FLUSHED), (2, FLUSHED)]
    );
    assert_eq!(bench.events(), []);
    assert!(!bench.pd.is_used());
    assert_eq!(
        (bench.send_cq.silence(), bench.receive_cq.silence()),
        (Ok((0, 0)), Ok((0, 0)))
    );
    assert_eq!(bench.post(9, true), Err(Errno::INVALID));
}

#[test]
fn destroying_completes_even_what_the_core_never_reports() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    for wr_id in 0..3 {
        bench.post(wr_id, false).expect("a free slot");
    }
    // A core that forgets them, as after a fork.
    bench.core.submitted.borrow_mut().clear();
    bench.post_receive(7).expect("a free slot");
    destroy(&bench.qp, &bench.core);
    assert_eq!(
        ids(&bench.sent()),
        [(0, FLUSHED), (1, FLUSHED), (2, FLUSHED)]
    );
    assert_eq!(ids(&bench.received()), [(7, FLUSHED)]);
}

#[test]
fn receives_posted_in_init_are_flushed_by_destroying_too() {
    let bench = bench();
    bench.bring_to(Init);
    bench.post_receive(1).expect("INIT");
    destroy(&bench.qp, &bench.core);
    assert_eq!(ids(&bench.received()), [(1, FLUSHED)]);
}

#[test]
fn draining_holds_back_what_is_posted_and_tells_when_the_core_is_done() {
    let bench = bench();
    bench.bring_to(ReadyToSend);
    bench.post(1, true).expect("RTS");
    let mut drain = to(ReadyToSend, SendQueueDrained);
    drain.mask = drain.mask | Mask::DRAINED_NOTIFY;
    drain.attributes.drained_notify = true;
    modify(&bench.qp, &bench.core, &drain).expect("legal");
    assert!(bench.qp.is_draining());
    bench.post(2, true).expect("SQD takes posts");
    assert_eq!(
        bench.core.submitted.borrow().len(),
        1,
        "the core must not get it yet"
    );
    assert_eq!(bench.events(), []);
    bench.core.complete(&bench.qp, Status::Success);
    assert!(!bench.qp.is_draining());
    assert_eq!(bench.events(), [EventKind::SendQueueDrained]);
    bench.modify(ReadyToSend).expect("legal");
    assert_eq!(bench.core.calls(), ["doorbell"]);
    assert_eq!(bench.core.submitted.borrow().len(), 1);
    bench.core.complete(&bench.qp, Status::Success);
    assert_eq!(ids(&bench.sent()), [(1, 0), (2, 0)]);
}

#[test]
fn the_first_packet_in_rtr_is_told_and_later_ones_are_not() {
    let bench = bench();
    bench.bring_to(ReadyToReceive);
    bench.qp.on_established();
    assert_eq!(bench.events(), [EventKind::CommunicationEstablished]);
    bench.modify(ReadyToSend).expect("legal");
    bench.qp.on_established();
    assert_eq!(bench.events(), []);
}

#[test]
fn destroying_withdraws_events_that_nobody_read() {
    let bench = bench();
    bench.bring_to(ReadyToReceive);
    bench.qp.on_established();
    bench.qp.on_failed(QpFailure::Fatal);
    assert_eq!(bench.qp.silence(), 0);
    bench.qp.on_failed(QpFailure::Fatal);
    assert_eq!(bench.events(), []);
}

#[rstest]
#[case(Capabilities { max_send_wr: 32_768, ..Default::default() }, true)]
#[case(Capabilities { max_send_wr: 32_769, ..Default::default() }, false)]
#[case(Capabilities { max_recv_wr: 32_769, ..Default::default() }, false)]
#[case(Capabilities { max_send_sge: 30, max_recv_sge: 30, ..Default::default() }, true)]
#[case(Capabilities { max_send_sge: 31, ..Default::default() }, false)]
#[case(Capabilities { max_recv_sge: 31, ..Default::default() }, false)]
#[case(Capabilities { max_inline_data: 1_024, ..Default::default() }, true)]
#[case(Capabilities { max_inline_data: 1_025, ..Default::default() }, false)]
fn depths(#[case] wanted: Capabilities, #[case] valid: bool) {
    let granted = wanted.grant();
    assert_eq!(granted.is_ok(), valid);
    if let Ok(granted) = granted {
        assert!(
            granted.max_inline_data >= 220 && granted.max_inline_data >= wanted.max_inline_data
        );
        assert!(
            granted.max_send_wr == wanted.max_send_wr
                && granted.max_recv_sge >= wanted.max_recv_sge.max(1)
        );
    }
}
