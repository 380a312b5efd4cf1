//! One pair of queue pairs with 64 KiB of memory at each end, for the rules: side `A` is driven as a requester whose
//! peer is played by the test, side `B` as a responder that is given packets made by hand.

use super::host::ALL;
use super::world::{PD, Setup, World, receive, request};
use crate::stream::*;
use crate::types::*;
use crate::wire::{Attempt, DataHeader, Msn, NakCode, Opcode, Rkey, Ssn, StreamBlock};

pub(super) const A: usize = 0;
pub(super) const B: usize = 1;

pub(super) struct Bench {
    pub(super) world: World,
    /// Key and address at side `A`.
    pub(super) local: (u32, u64),
    /// Key and address at side `B`.
    pub(super) remote: (u32, u64),
}

impl Bench {
    pub(super) fn new(setup: &Setup) -> Self {
        Self::with_memory(setup, ALL, 1 << 20)
    }

    pub(super) fn with_memory(setup: &Setup, access: Access, hold_bytes: u32) -> Self {
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

    pub(super) fn write(&self, cookie: u64, length: u32) -> SendRequest {
        let (rkey, remote_addr) = self.remote;
        request(
            cookie,
            Operation::Write { remote_addr, rkey },
            self.local.0,
            self.local.1,
            length,
        )
    }

    pub(super) fn read(&self, cookie: u64, length: u32) -> SendRequest {
        let (rkey, remote_addr) = self.remote;
        request(
            cookie,
            Operation::Read { remote_addr, rkey },
            self.local.0,
            self.local.1,
            length,
        )
    }

    pub(super) fn message(&self, cookie: u64, length: u32) -> SendRequest {
        request(cookie, Operation::Send, self.local.0, self.local.1, length)
    }

    /// Sends all that may leave, and drops it; returns (MSN, attempt, offset, length) of each segment.
    pub(super) fn leave(&mut self) -> Vec<(u32, u8, u32, u16)> {
        let mut left = Vec::new();
        while let Some(packet) = self.world.send(A, false) {
            let segment = packet.segment;
            left.push((
                segment.msn.0,
                segment.attempt.0,
                segment.offset,
                segment.length,
            ));
        }
        left
    }

    pub(super) fn leave_messages(&mut self) -> Vec<u32> {
        let mut messages: Vec<_> = self.leave().iter().map(|segment| segment.0).collect();
        messages.dedup();
        messages
    }

    pub(super) fn tell(&mut self, executed: u32, code: NakCode, attempt: u8) {
        let credit = self.world.sides[A].requester.credit;
        self.tell_credit(executed, code, attempt, credit);
    }

    pub(super) fn tell_credit(&mut self, executed: u32, code: NakCode, attempt: u8, credit: Ssn) {
        let block = StreamBlock {
            code,
            attempt: Attempt(attempt),
            msn_executed: Msn(executed),
            credit,
            rnr_timer: 1,
            ..StreamBlock::default()
        };
        self.world.deliver_block(A, &block);
    }

    pub(super) fn answer(
        &mut self,
        header: DataHeader,
        payload: &[u8],
    ) -> Option<Result<bool, Failure>> {
        let side = &mut self.world.sides[A];
        let result = side.requester.handle_response(
            &header,
            payload,
            &mut self.world.hosts[0],
            &mut side.events,
        );
        self.world.settle(A, result.err());
        Some(result)
    }

    pub(super) fn cookies(&self) -> Vec<u64> {
        self.world
            .send_statuses(A)
            .iter()
            .map(|done| done.0)
            .collect()
    }

    pub(super) fn pass_ns(&mut self, ns: u64) {
        self.world.now = self.world.now + ns;
    }

    pub(super) fn header(
        &self,
        opcode: Opcode,
        msn: u32,
        length: u32,
        offset: u32,
        bytes: u16,
    ) -> DataHeader {
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

    pub(super) fn give(&mut self, header: DataHeader, byte: u8) -> Option<Outcome> {
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

    pub(super) fn post(&mut self, cookie: u64, length: u32) {
        let queue = self.world.queue(false, B);
        let (key, addr) = self.remote;
        self.world
            .post(&[B], queue, receive(cookie, key, addr + 0x8000, length));
    }

    pub(super) fn told(&mut self) -> (u32, NakCode, u8) {
        let block = self.world.sides[B]
            .responder
            .block(&mut self.world.hosts[1]);
        (block.msn_executed.0, block.code, block.attempt.0)
    }

    pub(super) fn memory(&self, offset: u64, length: usize) -> &[u8] {
        self.world.hosts[1]
            .memory(self.remote.0, self.remote.1 + offset, length)
            .expect("registered")
    }
}

pub(super) fn read_response(msn: u32, length: u32, offset: u32, bytes: u16) -> DataHeader {
    DataHeader {
        opcode: Opcode::ReadResp,
        msn: Msn(msn),
        message_bytes: length,
        offset,
        payload_bytes: bytes,
        ..DataHeader::default()
    }
}
