//! One path under acknowledgements that nobody chose with care: the sending half of the transport's path layer, driven
//! by bytes, beside a model that only counts.
//!
//! A step sends (new, again, bare), lets time pass, serves the timer, moves the path, replaces a record, lets the real
//! receiving half see a packet, or hands in a block: an honest one, one that was honest some time ago, or one whose
//! fields the input chose. Whatever comes, what the path says must add up: every record is handed back at most once and
//! only if it was sent; outstanding, in flight and lost agree with the model; nothing runs without a timer. At the end a
//! patient and honest receiver takes over, and then every record must come back, exactly once, within bounded steps.

use std::collections::VecDeque;

use arbitrary::{Result, Unstructured};
use metaroce_proto::path::{
    Bare, Constants, IDLE_EPOCH_NS, PathAction, PathRx, PathTx, SPAN_PACKETS, Sent,
};
use metaroce_proto::types::{Driving, Time};
use metaroce_proto::wire::{
    AckDelay, BaseFlags, BitVector, Epoch, PathBlock, PathFlags, PathId, Psn, Stamp, VECTOR_WORDS,
};

/// Steps of one input at most.
const STEPS_MAX: u32 = 1_000;
/// Packets that the network keeps for later; older ones are lost.
const KEPT_MAX: usize = 64;
/// Rounds (timer, or delivery of all) that the honest end may take: every packet of a full ring may need its probe.
const ROUNDS_MAX: u32 = 5_000;
/// The same for a path that was lied to, which may never come to an end.
const LIED_ROUNDS_MAX: u32 = 50;
/// A block that speaks of an epoch so long ago may seem to speak of one to come: they compare modulo 256.
const EPOCHS_TOLD_APART: u64 = 127;
/// Time that the answer of the honest end takes.
const HONEST_RTT_NS: u64 = 20_000;

/// A packet on its way.
#[derive(Clone, Copy, Debug)]
struct Flight {
    sent: Sent,
    at: Time,
    psn: Option<Psn>,
    flags: BaseFlags,
}

/// See the file's head.
struct Bench {
    tx: PathTx<u32>,
    rx: PathRx,
    now: Time,
    /// By record: whether it came back.
    acked: Vec<bool>,
    /// By record: bytes of its packet.
    bytes: Vec<u32>,
    /// Record of each PSN from 0; replaced ones have a new record.
    record_of: Vec<u32>,
    returned: Vec<u32>,
    flights: VecDeque<Flight>,
    /// Honest blocks, and of each the true number of the epoch of which it speaks.
    blocks: VecDeque<(PathBlock, u64)>,
    /// Epochs that the path has begun.
    epochs: u64,
    /// A block said something that the receiver did not: an acknowledgement proves nothing any more.
    lied_to: bool,
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut bytes = Unstructured::new(input);
    // The reader only fails where it must not here: it fills up with zeroes.
    if let Ok(mut bench) = Bench::new(&mut bytes) {
        for _ in 0..STEPS_MAX {
            if bytes.is_empty() || bench.step(&mut bytes).is_err() {
                break;
            }
            bench.count_epochs();
            bench.check();
        }
        bench.finish();
    }
}

impl Bench {
    fn new(bytes: &mut Unstructured<'_>) -> Result<Self> {
        let driving = match bytes.arbitrary()? {
            true => Driving::Busy,
            false => Driving::Sockets,
        };
        // Near the wrap of the stamps, or not.
        let now = Time::from_ns(u64::from(bytes.arbitrary::<u32>()?) << 7);
        Ok(Self {
            tx: PathTx::new(PathId(3), Constants::new(driving, Default::default()), now),
            rx: PathRx::new(PathId(3)),
            now,
            acked: Vec::new(),
            bytes: Vec::new(),
            record_of: Vec::new(),
            returned: Vec::new(),
            flights: VecDeque::new(),
            blocks: VecDeque::new(),
            epochs: 0,
            lied_to: false,
        })
    }

    fn step(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        match bytes.int_in_range(0..=15)? {
            0..=2 => self.send_new(bytes.int_in_range(1..=64)?),
            3 => self.send_again(),
            4 => {
                let kinds = [
                    (Bare::Marker, BaseFlags::MARKER),
                    (Bare::Probe, BaseFlags::PROBE),
                    (Bare::Announce, BaseFlags::ANNOUNCE),
                    (Bare::Unreliable, BaseFlags::NONE),
                ];
                let (kind, flags) = *bytes.choose(&kinds)?;
                let sent = self.tx.send_bare(self.now, kind);
                self.fly(sent, None, flags);
            }
            5 => {
                // From a moment to beyond the idle limit of an epoch.
                let exponent = bytes.int_in_range(0..=37)?;
                self.now = self.now + (1 << exponent);
            }
            6 | 7 => self.time_out(),
            8 => self.tx.move_to(self.now),
            9 => self.replace(bytes)?,
            10 | 11 => self.deliver(bytes)?,
            12 => {
                if let Some(block) = self.rx.block(self.now) {
                    let epoch = self.true_epoch(&block);
                    self.keep_block(block, epoch);
                    self.take(&block, epoch);
                }
            }
            13 => {
                // A block that was overtaken, or came twice.
                if !self.blocks.is_empty() {
                    let at = bytes.choose_index(self.blocks.len())?;
                    let (block, epoch) = self.blocks[at];
                    self.take(&block, epoch);
                }
            }
            14 => {
                let block = self.forged(bytes)?;
                self.lied_to = true;
                self.take(&block, self.epochs);
            }
            _ => match bytes.int_in_range(0..=3)? {
                0 => self.tx.set_waiting(self.now, bytes.arbitrary()?),
                1 => self.tx.rest_until_proved(self.now),
                2 => {
                    let sent = self.tx.send_aside(self.now);
                    self.fly(sent, None, BaseFlags::PROBE);
                }
                _ => self.tx.set_paths(bytes.int_in_range(1..=64)?),
            },
        }
        Ok(())
    }

    // ---- Sending ----

    fn send_new(&mut self, count: u32) {
        for _ in 0..count.min(self.tx.room(self.now)) {
            let record = self.acked.len() as u32;
            let bytes = 64 + record % 4096;
            self.acked.push(false);
            self.bytes.push(bytes);
            self.record_of.push(record);
            let sent = self.tx.send_new(self.now, record, bytes);
            assert_eq!(
                sent.psn.0 as usize + 1,
                self.record_of.len(),
                "a PSN is skipped"
            );
            self.fly(sent, Some(sent.psn), BaseFlags::NONE);
        }
    }

    fn send_again(&mut self) {
        if let Some((psn, record)) = self.tx.next_lost() {
            self.assert_outstanding(psn, record);
            let sent = self.tx.send_again(self.now, psn);
            self.fly(sent, Some(psn), BaseFlags::RETRANSMISSION);
        }
    }

    fn replace(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        if self.record_of.is_empty() {
            return Ok(());
        }
        let at = bytes.choose_index(self.record_of.len())?;
        let (psn, before) = (Psn(at as u32), self.record_of[at]);
        if self.acked[before as usize] {
            // Nothing outstanding: must be ignored.
            self.tx.replace(psn, u32::MAX, 1);
            return Ok(());
        }
        let record = self.acked.len() as u32;
        self.acked.push(false);
        self.bytes.push(80);
        // What was replaced never comes back.
        self.acked[before as usize] = true;
        self.record_of[at] = record;
        self.tx.replace(psn, record, 80);
        Ok(())
    }

    fn fly(&mut self, sent: Sent, psn: Option<Psn>, flags: BaseFlags) {
        if self.flights.len() == KEPT_MAX {
            self.flights.pop_front();
        }
        self.flights.push_back(Flight {
            sent,
            at: self.now,
            psn,
            flags,
        });
    }

    fn time_out(&mut self) {
        match self.tx.handle_timeout(self.now, None) {
            PathAction::None | PathAction::Lost(_) | PathAction::Rto => {}
            PathAction::Probe => self.probe(),
            PathAction::MoveAndProbe => {
                self.tx.move_to(self.now);
                self.probe();
            }
        }
    }

    fn probe(&mut self) {
        let sent = self.tx.send_bare(self.now, Bare::Probe);
        self.fly(sent, None, BaseFlags::PROBE);
    }

    // ---- Receiving ----

    fn deliver(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        if self.flights.is_empty() {
            return Ok(());
        }
        let at = bytes.choose_index(self.flights.len())?;
        let (twice, ce) = (bytes.ratio(1, 8)?, bytes.ratio(1, 8)?);
        let flight = self.flights[at];
        if !twice {
            self.flights.remove(at);
        }
        self.receive(flight, ce);
        Ok(())
    }

    fn receive(&mut self, flight: Flight, ce: bool) {
        let Flight {
            sent,
            at,
            psn,
            flags,
        } = flight;
        // No network keeps a packet for so long (WIRE 5.12).
        if self.now.since_ns(at) >= IDLE_EPOCH_NS {
            return;
        }
        let expected = self.rx.verdict(psn);
        let arrival = self
            .rx
            .handle_packet(self.now, sent.epoch, psn, sent.stamp, ce, flags);
        assert_eq!(arrival.verdict, expected, "the verdict is not what it said");
    }

    fn keep_block(&mut self, block: PathBlock, true_epoch: u64) {
        if self.blocks.len() == KEPT_MAX {
            self.blocks.pop_front();
        }
        self.blocks.push_back((block, true_epoch));
    }

    /// The number of a block's epoch without its wrap, for a block that is new.
    fn true_epoch(&mut self, block: &PathBlock) -> u64 {
        self.count_epochs();
        // After a lie it may be of none that the path has begun.
        self.epochs
            .saturating_sub(u64::from(self.tx.epoch().since(block.epoch)))
    }

    /// To be called before the path begins its next but 255th.
    fn count_epochs(&mut self) {
        let known = Epoch(self.epochs as u8);
        self.epochs += u64::from(self.tx.epoch().since(known));
    }

    /// A block of the input's own making, near what could be true: far from it the first check refuses everything.
    fn forged(&mut self, bytes: &mut Unstructured<'_>) -> Result<PathBlock> {
        let honest = self.rx.block(self.now).unwrap_or_default();
        let near = |bytes: &mut Unstructured<'_>, value: u32| -> Result<u32> {
            Ok(match bytes.int_in_range(0..=3)? {
                0 => value,
                1 => value.wrapping_add(bytes.int_in_range(0..=SPAN_PACKETS + 1)?),
                2 => value.wrapping_sub(bytes.int_in_range(0..=SPAN_PACKETS + 1)?),
                _ => bytes.arbitrary()?,
            })
        };
        let mut vector = BitVector([0; VECTOR_WORDS]);
        for word in vector.0.iter_mut().take(bytes.int_in_range(0..=8)?) {
            *word = bytes.arbitrary()?;
        }
        // The parser refuses a block whose lowest missing PSN is not missing.
        if vector.get(0) {
            vector.shift_down(1);
        }
        if vector.get(0) {
            vector = BitVector::EMPTY;
        }
        let stamp = self
            .flights
            .back()
            .map_or(honest.echoed_stamp.0, |flight| flight.sent.stamp.0);
        Ok(PathBlock {
            path: PathId(3),
            epoch: Epoch(near(bytes, u32::from(self.tx.epoch().0))? as u8),
            flags: PathFlags::from_bits(bytes.arbitrary()?),
            cumulative: Psn(near(bytes, self.tx.next_psn().0)?),
            vector,
            echoed_stamp: Stamp(near(bytes, stamp)?),
            ack_delay: AckDelay(bytes.arbitrary()?),
            ce_count: near(bytes, u32::from(honest.ce_count))? as u16,
            duplicates: near(bytes, u32::from(honest.duplicates))? as u16,
            received: near(bytes, u32::from(honest.received))? as u16,
        })
    }

    fn take(&mut self, block: &PathBlock, true_epoch: u64) {
        let before = self.tx.outstanding();
        let outcome = self.tx.handle_block(self.now, block, &mut self.returned);
        assert_eq!(
            outcome.acked_packets as usize,
            self.returned.len(),
            "the count of acknowledged packets is not theirs"
        );
        assert_eq!(self.tx.outstanding() + outcome.acked_packets, before);
        assert!(
            !outcome.invalid || self.returned.is_empty(),
            "an invalid block was used"
        );
        let tells = self.epochs - true_epoch <= EPOCHS_TOLD_APART;
        assert!(
            !outcome.invalid || self.lied_to || !tells,
            "an honest block is refused: {block:?}"
        );
        let mut acked_bytes = 0;
        for record in self.returned.drain(..) {
            let acked = self
                .acked
                .get_mut(record as usize)
                .unwrap_or_else(|| panic!("record {record} was never sent"));
            assert!(
                !std::mem::replace(acked, true),
                "record {record} came back twice"
            );
            acked_bytes += u64::from(self.bytes[record as usize]);
        }
        assert_eq!(acked_bytes, outcome.acked_bytes);
    }

    // ---- What must always hold ----

    fn assert_outstanding(&self, psn: Psn, record: u32) {
        let known = self.record_of.get(psn.0 as usize).copied();
        assert_eq!(known, Some(record), "{psn} has another record");
        assert!(
            !self.acked[record as usize],
            "{psn} is lost after it was acknowledged"
        );
    }

    fn check(&self) {
        let open = || {
            self.record_of
                .iter()
                .filter(|record| !self.acked[**record as usize])
        };
        let outstanding = open().count() as u32;
        let bytes: u64 = open()
            .map(|record| u64::from(self.bytes[*record as usize]))
            .sum();
        assert_eq!(self.tx.outstanding(), outstanding);
        assert_eq!(self.tx.is_idle(), outstanding == 0);
        let in_flight = self.tx.packets_in_flight();
        assert!(
            in_flight <= outstanding,
            "{in_flight} of {outstanding} in flight"
        );
        assert!(self.tx.bytes_in_flight() <= bytes);
        assert_eq!(self.tx.bytes_in_flight() == 0, in_flight == 0);
        assert_eq!(self.tx.next_lost().is_some(), in_flight < outstanding);
        if let Some((psn, record)) = self.tx.next_lost() {
            self.assert_outstanding(psn, record);
        }
        assert!(self.tx.room(self.now) + outstanding <= SPAN_PACKETS);
        assert!(
            outstanding == 0 || self.tx.poll_timeout().is_some(),
            "{outstanding} outstanding and no timer"
        );
    }

    // ---- The honest end ----

    /// The network works from now on. If the path was never lied to, everything comes back; if it was, the receiver's
    /// state is not what the path believes, and all that must hold is that it ends.
    fn finish(&mut self) {
        let rounds = if self.lied_to {
            LIED_ROUNDS_MAX
        } else {
            ROUNDS_MAX
        };
        for _ in 0..rounds {
            while self.tx.next_lost().is_some() {
                self.send_again();
            }
            let flights: Vec<Flight> = self.flights.drain(..).collect();
            let any = !flights.is_empty();
            self.now = self.now + HONEST_RTT_NS / 2;
            for flight in flights {
                self.receive(flight, false);
            }
            self.now = self.now + HONEST_RTT_NS / 2;
            if let Some(block) = self.rx.block(self.now).filter(|_| any) {
                let epoch = self.true_epoch(&block);
                self.take(&block, epoch);
            }
            self.count_epochs();
            self.check();
            if self.tx.is_idle() {
                break;
            }
            if let Some(due) = self.tx.poll_timeout() {
                self.now = self.now.max(due);
                self.time_out();
            }
        }
        if self.lied_to {
            return;
        }
        assert!(
            self.tx.is_idle(),
            "{} packets are stuck after {ROUNDS_MAX} honest rounds",
            self.tx.outstanding()
        );
        assert!(self.acked.iter().all(|acked| *acked));
    }
}
