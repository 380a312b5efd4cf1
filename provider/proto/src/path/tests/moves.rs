//! Moves and numbers that wrap: epochs, stamps, PSNs.

use rstest::rstest;

use super::*;

// WIRE 4.7
#[test]
fn after_a_move_the_old_route_may_be_slower() {
    let mut pair = Pair::warmed_up();
    let old = pair.send_many(10);
    pair.tx.move_to(pair.now);
    pair.pass(64);
    let new = pair.send_many(10);
    pair.pass(RTT_NS / 2);
    // The new route overtakes the old one.
    pair.deliver_all(&new);
    pair.pass(RTT_NS / 2);
    let outcome = pair.ack();
    assert_eq!((outcome.acked_packets, outcome.lost), (10, 0));
    pair.pass(RTT_NS / 2);
    pair.deliver_all(&old);
    let outcome = pair.ack();
    assert_eq!((outcome.acked_packets, outcome.lost), (10, 0));
    assert!(
        !outcome.route_works,
        "packets of an old route prove nothing of the new"
    );
    pair.assert_done();
}

// WIRE 4.7
#[test]
fn after_a_move_a_later_packet_of_the_old_epoch_proves_earlier_ones_lost() {
    let mut pair = Pair::warmed_up();
    let old = pair.send_many(10);
    pair.tx.move_to(pair.now);
    let new = pair.send();
    pair.deliver(new);
    assert_eq!(pair.ack().lost, 0);
    pair.deliver(old[6]);
    let outcome = pair.ack();
    assert_eq!(outcome.lost, 6);
    let again = pair.repair();
    pair.deliver_all(&again);
    pair.deliver_all(&old[7..]);
    assert_eq!(pair.ack().spurious, 0);
    pair.assert_done();
}

// WIRE 4.7
#[test]
fn after_a_move_time_decides_once_the_new_route_was_heard() {
    let mut pair = Pair::warmed_up();
    pair.send_many(10);
    pair.tx.move_to(pair.now);
    let moved = pair.now;
    let new = pair.send();
    pair.pass(RTT_NS);
    pair.deliver(new);
    assert_eq!(pair.ack().lost, 0);
    assert_eq!(pair.time_out(), PathAction::Lost(10));
    assert_eq!(pair.now.since_ns(moved), 2 * RTT_NS);
    let again = pair.repair();
    assert_eq!(again.len(), 10);
    pair.deliver_all(&again);
    pair.ack();
    pair.assert_done();
}

#[test]
fn an_answer_after_two_round_trips_decides_at_once() {
    let mut pair = Pair::warmed_up();
    pair.send_many(10);
    pair.tx.move_to(pair.now);
    pair.pass(3 * RTT_NS);
    assert_eq!(
        pair.time_out(),
        PathAction::Probe,
        "time alone decides nothing"
    );
    assert_eq!(pair.tx.next_lost(), None);
    let probe = pair.send_bare(Bare::Probe);
    pair.deliver(probe);
    assert_eq!(pair.ack().lost, 10);
}

/// The round trip that holds the pause of a peer says nothing about how long packets of a route stay under way.
#[test]
fn a_peer_that_stood_still_for_half_a_minute_does_not_hold_verdicts_back() {
    const PAUSE_NS: u64 = 34_000_000_000;
    let mut pair = Pair::new();
    let flight = pair.send();
    pair.pass(PAUSE_NS);
    pair.deliver(flight);
    pair.ack();
    assert_eq!(pair.tx.rtt().smoothed_ns(), Some(PAUSE_NS));
    pair.send_many(10);
    let moved = pair.now;
    pair.tx.move_to(moved);
    let probe = pair.send_bare(Bare::Probe);
    pair.pass(RTT_NS);
    pair.deliver(probe);
    assert_eq!(pair.ack().lost, 0);
    while pair.tx.next_lost().is_none() {
        if pair.time_out() == PathAction::Probe {
            let probe = pair.send_bare(Bare::Probe);
            pair.deliver(probe);
            pair.ack();
        }
    }
    assert_eq!(pair.now.since_ns(moved), 500_000_000);
    let again = pair.repair();
    assert_eq!(again.len(), 10);
    pair.deliver_all(&again);
    pair.ack();
    pair.assert_done();
}

// WIRE 4.17
/// A route dies, with a round trip so long that the least retransmission timeout plays no part, and timers that are a
/// little late as they always are: the move finds a route that works, and what was lost is told by its time.
#[test]
fn a_move_that_was_answered_needs_no_retransmission_timeout() {
    const LONG_RTT_NS: u64 = 4_000_000;
    const LATE_NS: u64 = 50_000;
    let mut pair = Pair::new();
    for _ in 0..20 {
        let flights = pair.send_many(8);
        pair.pass(LONG_RTT_NS / 2);
        pair.deliver_all(&flights);
        let block = pair.block();
        pair.pass(LONG_RTT_NS / 2);
        pair.take(block);
    }
    let window = pair.tx.window().packets();
    pair.send_many(10);
    let late = |pair: &mut Pair| {
        pair.now = pair.tx.poll_timeout().expect("no timer") + LATE_NS;
        pair.tx.handle_timeout(pair.now, None)
    };
    for action in [
        PathAction::Probe,
        PathAction::Probe,
        PathAction::MoveAndProbe,
    ] {
        assert_eq!(late(&mut pair), action);
        if action == PathAction::Probe {
            pair.send_bare(Bare::Probe);
        }
    }
    pair.tx.move_to(pair.now);
    let probe = pair.send_bare(Bare::Probe);
    pair.pass(LONG_RTT_NS / 2);
    pair.deliver(probe);
    let block = pair.block();
    pair.pass(LONG_RTT_NS / 2);
    let outcome = pair.take(block);
    assert!(outcome.route_works && outcome.lost == 0);
    assert_eq!(late(&mut pair), PathAction::Lost(10));
    assert!(
        pair.tx.window().packets() >= window / 2.0,
        "the window starts over: {} of {window} packets",
        pair.tx.window().packets()
    );
    let again = pair.repair();
    pair.deliver_all(&again);
    pair.ack();
    pair.assert_done();
}

#[test]
fn several_moves_are_judged_each_by_its_own_time() {
    let mut pair = Pair::warmed_up();
    let mut moves = Vec::new();
    for _ in 0..5 {
        pair.send_many(3);
        pair.tx.move_to(pair.now);
        moves.push(pair.now);
        pair.pass(RTT_NS / 4);
    }
    let probe = pair.send_bare(Bare::Probe);
    pair.deliver(probe);
    assert_eq!(pair.ack().lost, 0);
    let mut lost = 0;
    for moved in moves {
        let action = pair.time_out();
        assert_eq!(pair.now.since_ns(moved), 2 * RTT_NS);
        let repaired = pair.repair().len();
        assert_eq!(action, PathAction::Lost(repaired as u32));
        lost += repaired;
    }
    assert_eq!(lost, 15);
}

// WIRE 4.13
#[test]
fn a_path_is_never_more_than_64_epochs_ahead() {
    let mut pair = Pair::starting_at(Time::from_ns(1_000), 0, 200);
    pair.warm_up();
    for _ in 0..300 {
        pair.send_bare(Bare::Probe);
        pair.tx.move_to(pair.now);
        pair.pass(RTT_NS);
    }
    assert_eq!(pair.tx.epoch(), Epoch(200).advance(64));
    let flight = pair.send();
    pair.deliver(flight);
    assert!(pair.ack().route_works);
    pair.tx.move_to(pair.now);
    assert_eq!(pair.tx.epoch(), Epoch(200).advance(65));
    pair.assert_done();
}

// WIRE 1.20
#[rstest]
#[case::psn(Time::from_ns(5_000), u32::MAX - 300, 0)]
#[case::stamp(Time::from_ns((1 << 38) - 2_000_000), 0, 0)]
#[case::epoch(Time::from_ns(5_000), 0, 250)]
#[case::all(Time::from_ns((1 << 38) - 3_000_000), u32::MAX - 100, 254)]
fn numbers_may_wrap(#[case] start: Time, #[case] psn: u32, #[case] epoch: u8) {
    let mut pair = Pair::starting_at(start, psn, epoch);
    pair.warm_up();
    for round in 0..300u32 {
        let flights = pair.send_many(1 + (round as usize * 7) % 20);
        let marker = pair.send_bare(Bare::Marker);
        pair.pass(RTT_NS / 2);
        for (index, flight) in flights.iter().enumerate() {
            if !(index as u32 + round).is_multiple_of(5) {
                pair.deliver(*flight);
            }
        }
        pair.deliver(marker);
        let block = pair.block();
        pair.pass(RTT_NS / 2);
        assert_eq!(pair.take(block).rtt_ns, Some(RTT_NS), "round {round}");
        let again = pair.repair();
        pair.deliver_all(&again);
        assert_eq!(pair.ack().spurious, 0);
        assert!(pair.tx.is_idle(), "round {round}");
        if round % 10 == 9 {
            pair.tx.move_to(pair.now);
        }
    }
    pair.assert_done();
}

// WIRE 2.10
#[test]
fn an_idle_path_starts_a_new_epoch_and_so_outlives_the_stamps() {
    for idle_ns in [
        60_000_000_000,
        137_500_000_000,
        200_000_000_000,
        280_000_000_000,
    ] {
        let mut pair = Pair::warmed_up();
        let before = pair.tx.epoch();
        pair.pass(idle_ns);
        let flight = pair.send();
        assert_eq!(flight.sent.epoch, before.next());
        pair.pass(RTT_NS);
        pair.deliver(flight);
        let outcome = pair.ack();
        assert!(outcome.route_works && !outcome.invalid);
        pair.assert_done();
    }
    let mut pair = Pair::warmed_up();
    pair.pass(59_999_000_000);
    assert_eq!(pair.send().sent.epoch, Epoch(0));
}

// WIRE 2.9
#[test]
fn stamps_strictly_increase_while_the_clock_stands() {
    let mut pair = Pair::new();
    let flights = pair.send_many(100);
    for pair in flights.windows(2) {
        assert_eq!(pair[1].sent.stamp.since(pair[0].sent.stamp), 1);
    }
}

// WIRE 4.23
#[test]
fn what_leaves_by_another_route_proves_nothing() {
    let aside = |pair: &mut Pair| Flight {
        sent: pair.tx.send_aside(pair.now),
        psn: None,
        flags: BaseFlags::PROBE,
    };
    for warm in [false, true] {
        let mut pair = if warm { Pair::warmed_up() } else { Pair::new() };
        let flights = pair.send_many(10);
        let stray = aside(&mut pair);
        assert!(pair.deliver(stray).ack_twice);
        let outcome = pair.ack();
        assert_eq!((outcome.lost, outcome.invalid), (0, false));
        pair.deliver_all(&flights[..3]);
        let stray = aside(&mut pair);
        pair.deliver(stray);
        assert_eq!(pair.ack().lost, 0);
        pair.deliver_all(&flights[3..]);
        pair.ack();
        pair.assert_done();
        let first = pair.send();
        let stray = aside(&mut pair);
        assert!(stray.sent.stamp.is_before(first.sent.stamp));
        pair.deliver(stray);
        assert_eq!(pair.ack().lost, 0);
    }
}

#[test]
fn a_packet_sent_twice_does_not_say_which_of_both_arrived() {
    let mut pair = Pair::warmed_up();
    let flights = pair.send_many(2);
    while pair.time_out() != PathAction::Rto {}
    assert_eq!(pair.repair()[0].psn, flights[0].psn);
    pair.tx.move_to(pair.now);
    // The first transmission of the first packet arrives: the second packet may be right behind it.
    pair.deliver(flights[0]);
    let outcome = pair.ack();
    assert_eq!((outcome.acked_packets, outcome.lost), (1, 0));
    pair.deliver(flights[1]);
    pair.ack();
    pair.assert_done();
}

#[test]
fn an_answer_by_the_old_route_does_not_end_the_rest_on_the_new_one() {
    let mut pair = Pair::warmed_up();
    let flights = pair.send_many(2);
    while pair.time_out() != PathAction::MoveAndProbe {}
    pair.tx.move_to(pair.now);
    let probe = pair.send_bare(Bare::Probe);
    pair.deliver(flights[0]);
    let outcome = pair.ack();
    assert!(outcome.news && !outcome.route_works && !outcome.woke);
    assert!(pair.tx.is_resting() && pair.tx.last_ack_time().is_none());
    pair.deliver(probe);
    assert!(pair.ack().woke);
    assert_eq!(pair.tx.last_ack_time(), Some(pair.now));
}

// WIRE 4.13
#[test]
fn a_block_of_an_epoch_long_ago_does_not_let_the_path_run_ahead() {
    let mut pair = Pair::warmed_up();
    let ancient = pair.block();
    for _ in 0..200 {
        pair.tx.move_to(pair.now);
        let flight = pair.send();
        pair.pass(RTT_NS);
        pair.deliver(flight);
        pair.ack();
    }
    while pair.tx.can_begin_epoch() {
        pair.tx.move_to(pair.now);
    }
    assert_eq!(pair.tx.epoch(), Epoch(200u8.wrapping_add(EPOCHS_AHEAD_MAX)));
    // Its epoch 0 looks like the 56th after the newest one that was heard.
    pair.take(ancient);
    assert!(!pair.tx.can_begin_epoch());
}

// WIRE 5.8
#[test]
fn counts_of_a_block_from_long_ago_are_not_taken() {
    let mut pair = Pair::warmed_up();
    let ancient = pair.block();
    for _ in 0..40_000 {
        let flight = pair.send();
        pair.pass(1_000);
        pair.deliver(flight);
        pair.ack();
    }
    // 40,000 packets fewer look like 25,536 more.
    let outcome = pair.take(ancient);
    assert_eq!((outcome.received, outcome.news), (0, false));
    let flight = pair.send();
    pair.deliver(flight);
    assert_eq!(pair.ack().received, 1);
}
