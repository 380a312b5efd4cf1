//! Verdicts on one route: what is lost, when, and what blocks may do to it.

use rstest::rstest;

use super::*;

// WIRE 4.5
#[test]
fn a_single_loss_anywhere_is_seen_at_once_and_is_the_only_one() {
    for lost in 0..256 {
        let mut pair = Pair::warmed_up();
        let flights = pair.send_many(256);
        let marker = pair.send_bare(Bare::Marker);
        let mut told = 0;
        for (index, flight) in flights.iter().enumerate() {
            if index != lost {
                pair.deliver(*flight);
                told += pair.ack().lost;
                assert_eq!(told, u32::from(index > lost), "at {index}, lost {lost}");
            }
        }
        pair.deliver(marker);
        told += pair.ack().lost;
        assert_eq!(told, 1);
        assert_eq!(pair.tx.next_lost().unwrap().0, flights[lost].sent.psn);
        let again = pair.repair();
        assert_eq!(again.len(), 1);
        assert!(pair.deliver(again[0]).ack_twice);
        assert_eq!(pair.ack().spurious, 0);
        pair.assert_done();
    }
}

#[rstest]
fn bursts_are_seen_as_a_whole(
    #[values(0, 1, 31, 64, 200, 254)] start: usize,
    #[values(1, 2, 33, 64, 129, 255)] length: usize,
) {
    let mut pair = Pair::warmed_up();
    let flights = pair.send_many(256);
    let marker = pair.send_bare(Bare::Marker);
    let lost = start..(start + length).min(256);
    for (index, flight) in flights.iter().enumerate() {
        if !lost.contains(&index) {
            pair.deliver(*flight);
        }
    }
    pair.deliver(marker);
    let outcome = pair.ack();
    assert_eq!(outcome.lost as usize, lost.len());
    assert_eq!(outcome.acked_packets as usize, 256 - lost.len());
    assert_eq!(pair.tx.packets_in_flight(), 0);
    let again = pair.repair();
    assert_eq!(again.len(), lost.len());
    pair.deliver_all(&again);
    pair.ack();
    pair.assert_done();
}

// WIRE 4.5
#[test]
fn a_lost_retransmission_is_seen_by_whatever_was_sent_after_it() {
    let mut pair = Pair::warmed_up();
    let flights = pair.send_many(4);
    pair.deliver_all(&flights[1..]);
    assert_eq!(pair.ack().lost, 1);
    for round in 0..20 {
        let again = pair.repair();
        assert_eq!(again.len(), 1, "round {round}");
        assert_eq!(
            pair.tx.transmissions(again[0].psn.unwrap()),
            Some(round + 2)
        );
        let later = match round % 2 {
            0 => pair.send(),
            _ => pair.send_bare(Bare::Marker),
        };
        pair.deliver(later);
        assert_eq!(pair.ack().lost, 1, "round {round}");
    }
    let again = pair.repair();
    pair.deliver_all(&again);
    pair.ack();
    pair.assert_done();
}

#[test]
fn losses_among_many_retransmissions_are_told_apart() {
    let mut pair = Pair::warmed_up();
    let flights = pair.send_many(100);
    pair.deliver(flights[99]);
    assert_eq!(pair.ack().lost, 99);
    // Every third retransmission is lost as well, again and again.
    let mut rounds = 0;
    loop {
        let again = pair.repair();
        if again.is_empty() {
            break;
        }
        let marker = pair.send_bare(Bare::Marker);
        let mut expected = 0;
        for (index, flight) in again.iter().enumerate() {
            if index % 3 == rounds % 3 && rounds < 10 {
                expected += 1;
            } else {
                assert_eq!(pair.deliver(*flight).verdict, Verdict::New);
            }
        }
        pair.deliver(marker);
        assert_eq!(pair.ack().lost, expected);
        rounds += 1;
    }
    assert!(rounds > 3);
    pair.assert_done();
}

// WIRE 4.6
#[test]
fn spurious_retransmissions_raise_a_tolerance_that_falls_again() {
    let mut pair = Pair::warmed_up();
    let mut spurious = 0;
    let mut raised = 0;
    for _ in 0..400 {
        let flights = pair.send_many(4);
        pair.pass(RTT_NS / 2);
        // The network swaps the last two for a moment.
        pair.deliver_all(&flights[..2]);
        pair.deliver(flights[3]);
        let block = pair.block();
        pair.pass(100);
        pair.deliver(flights[2]);
        pair.pass(RTT_NS / 2);
        pair.take(block);
        let again = pair.repair();
        pair.deliver_all(&again);
        spurious += pair.ack().spurious;
        raised += u64::from(pair.tx.reorder_tolerance_ns() > 0);
        assert!(pair.tx.is_idle());
    }
    // Without the tolerance it would be one each time.
    assert!(spurious < 60, "{spurious}");
    assert!(raised > 200);
    for _ in 0..400 {
        let flight = pair.send();
        pair.pass(RTT_NS);
        pair.deliver(flight);
        pair.ack();
    }
    assert_eq!(pair.tx.reorder_tolerance_ns(), 0);
    pair.assert_done();
}

#[test]
fn what_the_tolerance_holds_back_is_lost_a_little_later() {
    let mut pair = Pair::warmed_up();
    // Duplicates without any verdict by time: the network's own.
    let flight = pair.send();
    pair.deliver(flight);
    pair.deliver(flight);
    pair.ack();
    let tolerance_ns = pair.tx.reorder_tolerance_ns();
    assert!(tolerance_ns > 0);
    let flights = pair.send_many(3);
    pair.deliver_all(&flights[1..]);
    assert_eq!(pair.ack().lost, 0);
    let told = pair.now;
    assert_eq!(pair.time_out(), PathAction::Lost(1));
    assert_eq!(pair.now.since_ns(told), tolerance_ns);
    let again = pair.repair();
    assert_eq!(again.len(), 1);
    // What was sent long before the arrival is lost at once all the same.
    let early = pair.send();
    pair.pass(2 * tolerance_ns);
    let late = pair.send();
    pair.deliver_all(&[again[0], late]);
    assert_eq!(pair.ack().lost, 1);
    assert_eq!(pair.tx.next_lost().unwrap().0, early.sent.psn);
}

// WIRE 5.8
#[test]
fn blocks_may_overtake_each_other() {
    let mut pair = Pair::warmed_up();
    let flights = pair.send_many(199);
    let mut blocks = Vec::new();
    for (index, flight) in flights.iter().enumerate() {
        if index % 7 != 3 {
            pair.deliver(*flight);
            blocks.push(pair.block());
        }
    }
    let newest = *blocks.last().unwrap();
    let outcome = pair.take(newest);
    let lost = outcome.lost;
    assert_eq!(lost, (0..199).filter(|i| i % 7 == 3).count() as u32);
    let state = format!("{:?}", pair.tx.outstanding());
    for block in blocks.iter().rev() {
        let outcome = pair.take(*block);
        assert_eq!(
            (outcome.lost, outcome.acked_packets, outcome.invalid),
            (0, 0, false)
        );
        assert_eq!((outcome.received, outcome.ce, outcome.spurious), (0, 0, 0));
        assert!(!outcome.news && !outcome.route_works);
    }
    assert_eq!(format!("{:?}", pair.tx.outstanding()), state);
    let again = pair.repair();
    pair.deliver_all(&again);
    pair.ack();
    // Blocks from before the base moved are still harmless.
    for block in blocks {
        assert!(!pair.take(block).news);
    }
    pair.assert_done();
}

#[test]
fn an_older_block_may_add_what_a_newer_one_did_not_say() {
    let mut pair = Pair::warmed_up();
    let flights = pair.send_many(3);
    pair.deliver(flights[1]);
    let older = pair.block();
    pair.deliver(flights[2]);
    let newer = pair.block();
    assert_eq!(pair.take(newer).acked_packets, 2);
    assert_eq!(pair.take(older).acked_packets, 0);
    assert_eq!(pair.tx.next_lost().unwrap().0, flights[0].sent.psn);
}

#[test]
fn blocks_that_contradict_what_was_sent_are_not_used() {
    let mut pair = Pair::warmed_up();
    let flights = pair.send_many(10);
    pair.deliver_all(&flights[..5]);
    let good = pair.block();
    let mut beyond = good;
    beyond.cumulative = pair.tx.next_psn().next();
    let mut bit = good;
    bit.vector.set(5);
    let mut epoch = good;
    epoch.epoch = pair.tx.epoch().next();
    let mut wild = good;
    wild.cumulative = Psn(0x8000_0000);
    for bad in [beyond, bit, epoch, wild] {
        assert!(pair.take(bad).invalid, "{bad:?}");
        assert_eq!(pair.tx.outstanding(), 10);
    }
    let mut future = good;
    future.echoed_stamp = flights[9].sent.stamp.advance(1);
    let outcome = pair.take(future);
    assert_eq!((outcome.acked_packets, outcome.lost), (5, 0));
    assert!(!outcome.route_works && outcome.rtt_ns.is_none());
    let mut nothing: PathTx<u32> = PathTx::new(
        PathId(0),
        Constants::new(Driving::Busy, <&Algorithm>::default()),
        pair.now,
    );
    assert!(
        nothing
            .handle_block(pair.now, &good, &mut Vec::new())
            .invalid
    );
}

// WIRE 6.27
#[test]
fn a_fill_takes_the_place_of_a_packet() {
    let mut pair = Pair::warmed_up();
    let flights = pair.send_many(2);
    assert_eq!(pair.tx.bytes_in_flight(), 200);
    pair.tx.replace(flights[0].sent.psn, 77, 10);
    assert_eq!(pair.tx.bytes_in_flight(), 110);
    pair.deliver(flights[1]);
    pair.ack();
    let (psn, record) = pair.tx.next_lost().unwrap();
    assert_eq!((psn, record), (flights[0].sent.psn, 77));
    pair.tx.replace(psn, 78, 20);
    let again = pair.repair();
    assert_eq!(pair.tx.bytes_in_flight(), 20);
    pair.deliver_all(&again);
    pair.ack();
    assert_eq!(pair.acked.last(), Some(&78));
    pair.tx.replace(psn, 79, 1);
}
