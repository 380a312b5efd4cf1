//! One sender against one receiver, step by step; the test carries the packets.

mod loss;
mod moves;
mod timers;

use super::*;
use crate::types::Time;
use crate::wire::{BaseFlags, PathBlock, PathId};

const RTT_NS: u64 = 20_000;

/// A packet on its way; `psn` is none for one without a PSN of its own.
#[derive(Clone, Copy, Debug)]
struct Flight {
    sent: Sent,
    psn: Option<Psn>,
    flags: BaseFlags,
}

/// Both halves of a path and a clock; the test carries the packets.
struct Pair {
    tx: PathTx<u32>,
    rx: PathRx,
    now: Time,
    next_record: u32,
    acked: Vec<u32>,
}

impl Pair {
    fn new() -> Self {
        Self::starting_at(Time::from_ns(1_000_000), 0, 0)
    }

    fn starting_at(now: Time, psn: u32, epoch: u8) -> Self {
        let constants = Constants::new(Driving::Busy, <&Algorithm>::default());
        Self {
            tx: PathTx::starting_at(PathId(3), constants, now, Psn(psn), Epoch(epoch)),
            rx: PathRx::starting_at(PathId(3), Psn(psn)),
            now,
            next_record: 0,
            acked: Vec::new(),
        }
    }

    /// With a round trip known, and nothing outstanding.
    fn warmed_up() -> Self {
        let mut pair = Self::new();
        pair.warm_up();
        pair
    }

    fn warm_up(&mut self) {
        let first = self.send();
        self.pass(RTT_NS / 2);
        self.deliver(first);
        let block = self.block();
        self.pass(RTT_NS / 2);
        assert_eq!(self.take(block).rtt_ns, Some(RTT_NS));
    }

    fn pass(&mut self, ns: u64) {
        self.now = self.now + ns;
    }

    fn send(&mut self) -> Flight {
        let sent = self.tx.send_new(self.now, self.next_record, 100);
        self.next_record += 1;
        Flight {
            sent,
            psn: Some(sent.psn),
            flags: BaseFlags::NONE,
        }
    }

    fn send_many(&mut self, count: usize) -> Vec<Flight> {
        (0..count).map(|_| self.send()).collect()
    }

    fn send_bare(&mut self, kind: Bare) -> Flight {
        Flight {
            sent: self.tx.send_bare(self.now, kind),
            psn: None,
            flags: BaseFlags::PROBE,
        }
    }

    /// Retransmits all that is lost.
    fn repair(&mut self) -> Vec<Flight> {
        let mut flights = Vec::new();
        while let Some((psn, _)) = self.tx.next_lost() {
            let sent = self.tx.send_again(self.now, psn);
            flights.push(Flight {
                sent,
                psn: Some(psn),
                flags: BaseFlags::RETRANSMISSION,
            });
        }
        flights
    }

    fn deliver(&mut self, flight: Flight) -> Arrival {
        let Sent { stamp, epoch, .. } = flight.sent;
        self.rx
            .handle_packet(self.now, epoch, flight.psn, stamp, false, flight.flags)
    }

    fn deliver_all(&mut self, flights: &[Flight]) {
        for flight in flights {
            self.deliver(*flight);
        }
    }

    fn block(&mut self) -> PathBlock {
        self.rx.block(self.now).expect("nothing has arrived")
    }

    fn take(&mut self, block: PathBlock) -> BlockOutcome {
        let outcome = self.tx.handle_block(self.now, &block, &mut self.acked);
        assert!(
            self.tx.is_idle() || self.tx.poll_timeout().is_some(),
            "no timer"
        );
        outcome
    }

    fn ack(&mut self) -> BlockOutcome {
        let block = self.block();
        self.take(block)
    }

    /// Lets the clock run to the next timeout and handles it.
    fn time_out(&mut self) -> PathAction {
        self.now = self.tx.poll_timeout().expect("no timer").max(self.now);
        self.tx.handle_timeout(self.now, None)
    }

    fn assert_done(&self) {
        assert!(self.tx.is_idle());
        assert_eq!(
            (self.tx.packets_in_flight(), self.tx.bytes_in_flight()),
            (0, 0)
        );
        let mut acked = self.acked.clone();
        acked.sort_unstable();
        assert_eq!(acked, (0..self.next_record).collect::<Vec<_>>());
    }
}
