//! Probes, the last resort, rest, markers and windows.

use super::*;

// WIRE 4.14
#[test]
fn a_probe_shows_a_tail_that_was_lost_whole() {
    let mut pair = Pair::warmed_up();
    let flights = pair.send_many(10);
    pair.deliver_all(&flights[..4]);
    pair.ack();
    let asked = pair.now;
    assert_eq!(pair.time_out(), PathAction::Probe);
    assert_eq!(pair.now, asked + 50_000);
    let probe = pair.send_bare(Bare::Probe);
    pair.pass(RTT_NS / 2);
    assert!(pair.deliver(probe).ack_twice);
    pair.pass(RTT_NS / 2);
    let outcome = pair.ack();
    assert_eq!((outcome.lost, outcome.probe_answered), (6, true));
    let again = pair.repair();
    pair.deliver_all(&again);
    pair.ack();
    pair.assert_done();
    assert_eq!(pair.tx.poll_timeout(), None);
}

#[test]
fn sending_does_not_push_the_probe_back() {
    let mut pair = Pair::warmed_up();
    pair.send();
    let due = pair.tx.poll_timeout();
    for _ in 0..10 {
        pair.pass(1_000);
        pair.send();
    }
    assert_eq!(pair.tx.poll_timeout(), due);
}

// WIRE 4.15, 4.16, 4.20
#[test]
fn without_answers_the_path_probes_twice_moves_rests_and_backs_off() {
    let mut pair = Pair::warmed_up();
    pair.send_many(5);
    let mut actions = Vec::new();
    let mut gaps = Vec::new();
    for _ in 0..40 {
        let before = pair.now;
        let action = pair.time_out();
        match action {
            PathAction::Rto => {
                pair.repair();
                continue;
            }
            PathAction::MoveAndProbe => pair.tx.move_to(pair.now),
            PathAction::Probe => {}
            other => panic!("{other:?}"),
        }
        let rests = actions.len() >= 2;
        assert_eq!(pair.tx.is_resting(), rests);
        assert_eq!(pair.tx.can_send(pair.now), !rests);
        actions.push(action);
        gaps.push(pair.now.since_ns(before));
        pair.send_bare(Bare::Probe);
    }
    let (probe, moves) = (PathAction::Probe, PathAction::MoveAndProbe);
    let expected = [probe, probe, moves, probe, moves, probe, moves];
    assert_eq!(actions[..7], expected);
    assert!(gaps[..8].iter().all(|gap| *gap == 50_000), "{gaps:?}");
    assert!(gaps.iter().all(|gap| *gap <= 20_000_000), "{gaps:?}");
    assert_eq!(*gaps.last().unwrap(), 20_000_000);
    // The first answer wakes it and proves all five lost.
    let probe = pair.send_bare(Bare::Probe);
    pair.deliver(probe);
    let outcome = pair.ack();
    assert!(outcome.woke && outcome.probe_answered && outcome.route_works);
    assert!(!pair.tx.is_resting());
}

// WIRE 4.15
#[test]
fn a_receiver_that_did_not_run_costs_no_retransmission() {
    let mut pair = Pair::warmed_up();
    let mut queue = pair.send_many(100);
    let start = pair.now;
    // Silence for 4 ms: probes and moves, but nothing is declared lost.
    while pair.tx.poll_timeout().unwrap().since_ns(start) < 4_000_000 {
        match pair.time_out() {
            PathAction::Probe => {}
            PathAction::MoveAndProbe => pair.tx.move_to(pair.now),
            other => panic!("{other:?}"),
        }
        let probe = pair.send_bare(Bare::Probe);
        queue.push(probe);
    }
    assert!(pair.tx.next_lost().is_none());
    pair.deliver_all(&queue);
    let outcome = pair.ack();
    assert_eq!((outcome.acked_packets, outcome.lost), (100, 0));
    assert!(outcome.woke);
    pair.assert_done();
}

// WIRE 4.17
#[test]
fn the_last_resort_gives_up_one_packet_and_backs_off() {
    let mut pair = Pair::warmed_up();
    let flights = pair.send_many(20);
    let start = pair.now;
    let mut resorts = Vec::new();
    while resorts.len() < 3 {
        if pair.time_out() == PathAction::Rto {
            resorts.push(pair.now.since_ns(start));
            assert_eq!(pair.repair().len(), 1);
            assert_eq!(pair.tx.window().packets(), 1.0);
        }
    }
    assert_eq!(resorts, [5_000_000, 15_000_000, 35_000_000]);
    // The packets were there all along: duplicates after that say nothing of order.
    pair.deliver_all(&flights);
    pair.ack();
    assert_eq!(pair.tx.reorder_tolerance_ns(), 0);
    pair.assert_done();
}

#[test]
fn a_caller_that_waits_is_probed_for_and_less_and_less() {
    let mut pair = Pair::warmed_up();
    assert_eq!(pair.tx.poll_timeout(), None);
    pair.tx.set_waiting(pair.now, true);
    let mut gaps = Vec::new();
    for _ in 0..30 {
        let before = pair.now;
        assert_eq!(pair.time_out(), PathAction::Probe);
        gaps.push(pair.now.since_ns(before));
        let probe = pair.send_bare(Bare::Probe);
        pair.deliver(probe);
        assert!(pair.ack().probe_answered);
    }
    assert_eq!(gaps[0], 50_000);
    assert_eq!(*gaps.last().unwrap(), 20_000_000);
    pair.tx.set_waiting(pair.now, false);
    assert_eq!(pair.tx.poll_timeout(), None);
    pair.tx.set_waiting(pair.now, true);
    assert_eq!(pair.tx.poll_timeout(), Some(pair.now + 50_000));
}

#[test]
fn a_path_that_rests_is_asked_even_if_nothing_is_outstanding() {
    let mut pair = Pair::warmed_up();
    pair.tx.move_to(pair.now);
    pair.tx.rest_until_proved(pair.now);
    pair.send_bare(Bare::Probe);
    assert!(pair.tx.is_resting() && !pair.tx.can_send(pair.now));
    assert_eq!(pair.time_out(), PathAction::Probe);
    assert_eq!(pair.time_out(), PathAction::MoveAndProbe);
    pair.tx.move_to(pair.now);
    let probe = pair.send_bare(Bare::Probe);
    pair.deliver(probe);
    assert!(pair.ack().woke);
    assert_eq!(pair.tx.poll_timeout(), None);
}

// WIRE 4.1
#[test]
fn the_span_is_256_from_the_lowest_that_is_missing() {
    let mut pair = Pair::warmed_up();
    pair.tx = PathTx::new(
        PathId(3),
        Constants::new(Driving::Busy, <&Algorithm>::default()),
        pair.now,
    );
    pair.rx = PathRx::new(PathId(3));
    let flights = pair.send_many(256);
    assert_eq!(pair.tx.room(pair.now), 0);
    pair.deliver_all(&flights[1..]);
    let outcome = pair.ack();
    assert_eq!((outcome.acked_packets, outcome.lost), (255, 1));
    assert_eq!(pair.tx.room(pair.now), 0, "the first is still missing");
    let again = pair.repair();
    pair.deliver_all(&again);
    pair.ack();
    assert!(pair.tx.room(pair.now) > 0);
}

#[test]
fn marks_cut_the_window() {
    let mut pair = Pair::warmed_up();
    let before = pair.tx.window().packets();
    let flight = pair.send();
    let Sent { stamp, epoch, psn } = flight.sent;
    let arrival = pair
        .rx
        .handle_packet(pair.now, epoch, Some(psn), stamp, true, BaseFlags::NONE);
    assert!(arrival.ack_at_once);
    let outcome = pair.ack();
    assert_eq!((outcome.ce, outcome.received), (1, 1));
    assert!(pair.tx.window().packets() < before);
}
