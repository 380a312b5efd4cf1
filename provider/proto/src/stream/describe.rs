//! From a segment to a packet's payload: bytes of our own, or runs of registered memory; and the way back, from bytes
//! to the memory of a scatter list. The host reads and writes; here are only addresses.

use crate::host::{AccessDenied, Host};
use crate::train::Train;
use crate::types::{PdId, Sge};
use crate::wire::{DataHeader, Opcode};

/// Where the payload of a packet comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source<'a> {
    /// Nothing to carry.
    Empty,
    /// Inline data of the work request.
    Bytes(&'a [u8]),
    /// Operands of an atomic.
    Operands([u8; Opcode::ATOMIC_OPERAND_BYTES as usize]),
    /// Result of an atomic.
    Result([u8; Opcode::ATOMIC_RESULT_BYTES as usize]),
    /// A part of a gather list.
    Gather {
        sges: &'a [Sge],
        offset: u32,
        length: u16,
    },
    /// A run of one region.
    Region { key: u32, addr: u64, length: u16 },
}

/// A packet's header and where its payload comes from.
#[derive(Clone, Copy, Debug)]
pub struct Described<'a> {
    /// The DATA header; what belongs to the connection (payload checksum flag) is the caller's.
    pub header: DataHeader,
    pub(super) source: Source<'a>,
}

impl Described<'_> {
    /// Appends the payload to the packet under construction; the header goes before it.
    pub fn push_payload(&self, train: &mut Train) {
        match self.source {
            Source::Empty => {}
            Source::Bytes(bytes) => train.push_bytes(bytes),
            Source::Operands(bytes) => train.push_bytes(&bytes),
            Source::Result(bytes) => train.push_bytes(&bytes),
            Source::Gather {
                sges,
                offset,
                length,
            } => {
                for run in runs(sges, offset, u32::from(length)) {
                    train.push_memory(run.lkey, run.addr, run.length);
                }
            }
            Source::Region { key, addr, length } => train.push_memory(key, addr, u32::from(length)),
        }
    }

    /// Whether the payload is in memory that belongs to the program: then the host may fail to read it.
    pub fn reads_memory(&self) -> bool {
        matches!(self.source, Source::Gather { .. } | Source::Region { .. })
    }
}

/// The runs of a scatter/gather list that cover `[offset, offset + length)` of the bytes that it describes.
pub(super) fn runs(sges: &[Sge], offset: u32, length: u32) -> impl Iterator<Item = Sge> + '_ {
    let mut skip = u64::from(offset);
    let mut left = length;
    sges.iter().filter_map(move |sge| {
        let available = u64::from(sge.length);
        if skip >= available || left == 0 {
            skip = skip.saturating_sub(available);
            return None;
        }
        // `available - skip` fits, because `available` does.
        let taken = ((available - skip) as u32).min(left);
        let run = Sge {
            addr: sge.addr.wrapping_add(skip),
            length: taken,
            lkey: sge.lkey,
        };
        skip = 0;
        left -= taken;
        Some(run)
    })
}

/// Places `bytes` at `offset` of what a scatter list describes, in ascending order. Fails if a key does not allow it,
/// or if the list is too short.
pub(super) fn scatter(
    host: &mut dyn Host,
    pd: PdId,
    sges: &[Sge],
    offset: u32,
    bytes: &[u8],
) -> Result<(), AccessDenied> {
    let mut rest = bytes;
    for run in runs(sges, offset, bytes.len() as u32) {
        let (now, later) = rest.split_at(run.length as usize);
        host.place(pd, run.lkey, run.addr, now)?;
        rest = later;
    }
    if rest.is_empty() {
        Ok(())
    } else {
        Err(AccessDenied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn list() -> [Sge; 4] {
        [(100, 10, 1), (0, 0, 9), (300, 1, 2), (500, 20, 3)].map(|(addr, length, lkey)| Sge {
            addr,
            length,
            lkey,
        })
    }

    #[rstest]
    #[case(0, 10, &[(100, 10, 1)])]
    #[case(3, 7, &[(103, 7, 1)])]
    #[case(3, 8, &[(103, 7, 1), (300, 1, 2)])]
    #[case(10, 1, &[(300, 1, 2)])]
    #[case(9, 4, &[(109, 1, 1), (300, 1, 2), (500, 2, 3)])]
    #[case(30, 1, &[(519, 1, 3)])]
    #[case(31, 5, &[])]
    #[case(5, 0, &[])]
    fn runs_cover_exactly_the_range(
        #[case] offset: u32,
        #[case] length: u32,
        #[case] expected: &[(u64, u32, u32)],
    ) {
        let found: Vec<_> = runs(&list(), offset, length)
            .map(|run| (run.addr, run.length, run.lkey))
            .collect();
        assert_eq!(found, expected);
    }
}
