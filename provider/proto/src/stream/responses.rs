//! Answers to our READs and atomics, placed into local memory as they arrive, in any order. A byte goes only to the
//! memory of a work request that is not complete; everything else is dropped.

use std::collections::VecDeque;

use super::Failure;
use super::describe::scatter;
use super::send::{Answer, Requester};
use crate::event::Event;
use crate::host::Host;
use crate::types::{Payload, Status};
use crate::wire::{DataHeader, FillStatus, Opcode};

impl Requester {
    /// Takes a READ_RESP, ATOMIC_RESP or FILL that is keyed by our QPN and token. True: it was of use; false: it was
    /// dropped, because its message is complete, failed or unknown, or because the answer was begun afresh.
    pub fn handle_response(
        &mut self,
        header: &DataHeader,
        payload: &[u8],
        host: &mut dyn Host,
        events: &mut VecDeque<Event>,
    ) -> Result<bool, Failure> {
        let Some(index) = self.index(header.msn).filter(|_| !self.dead) else {
            return Ok(false);
        };
        let entry = &mut self.entries[index];
        if !entry.begun || entry.failed.is_some() {
            return Ok(false);
        }
        let Answer::Pending { attempt, received } = &mut entry.answer else {
            return Ok(false);
        };
        if header.attempt.is_before(*attempt) {
            return Ok(false);
        }
        if attempt.is_before(header.attempt) {
            (*attempt, *received) = (header.attempt, 0);
        }
        let is_read = entry.opcode() == Opcode::ReadReq;
        let outcome = match (header.opcode, is_read) {
            (Opcode::Fill, _) => match header.fill_status() {
                FillStatus::Nothing => return Ok(false),
                FillStatus::RemoteAccess => Err(Status::RemoteAccess),
                FillStatus::RemoteOperational => Err(Status::RemoteOperation),
            },
            (Opcode::ReadResp, true) => self.place_read(index, header, payload, host),
            (Opcode::AtomicResp, false) => self.place_atomic(index, payload, host),
            _ => Err(Status::BadResponse),
        };
        match outcome {
            Ok(true) => self.answer_complete(index),
            Ok(false) => {}
            Err(status) => {
                self.entries[index].failed = Some(status);
                self.stop_before(header.msn);
            }
        }
        self.complete_ready(events)?;
        Ok(true)
    }

    /// Places a part of a READ's answer; true when all is there.
    fn place_read(
        &mut self,
        index: usize,
        header: &DataHeader,
        payload: &[u8],
        host: &mut dyn Host,
    ) -> Result<bool, Status> {
        let pd = self.config.pd;
        let entry = &mut self.entries[index];
        let length = entry.request.length;
        let Answer::Pending { received, .. } = &mut entry.answer else {
            return Err(Status::General);
        };
        let bytes = payload.len() as u32;
        let fits = header.message_bytes == length
            && u64::from(header.offset) + u64::from(bytes) <= u64::from(length)
            && bytes <= length - *received
            && (bytes > 0 || length == 0);
        if !fits {
            return Err(Status::BadResponse);
        }
        *received += bytes;
        let complete = *received == length;
        if let Payload::Gather(sges) = &entry.request.payload {
            scatter(host, pd, sges, header.offset, payload).map_err(|_| Status::LocalProtection)?;
        }
        Ok(complete)
    }

    /// Places what an atomic found, in the host's byte order.
    fn place_atomic(
        &mut self,
        index: usize,
        payload: &[u8],
        host: &mut dyn Host,
    ) -> Result<bool, Status> {
        let value = <[u8; 8]>::try_from(payload).map_err(|_| Status::BadResponse)?;
        let found = u64::from_be_bytes(value).to_ne_bytes();
        if let Payload::Gather(sges) = &self.entries[index].request.payload {
            scatter(host, self.config.pd, sges, 0, &found).map_err(|_| Status::LocalProtection)?;
        }
        Ok(true)
    }
}
