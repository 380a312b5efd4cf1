//! Cuts the list of memory pieces of a train into the lists of its packets, for sending without UDP_SEGMENT.
//! Called by `send.rs` only. Pure arithmetic on addresses: nothing here looks at the memory.

use crate::send::IoVec;

/// What [`Splitter::next_packet`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// The next packet took so many pieces.
    Packet(usize),
    /// The next packet needs more pieces than there was room for; nothing was consumed.
    NoRoom,
    /// The train is used up.
    End,
}

/// A position in a train.
#[derive(Clone, Debug)]
pub(crate) struct Splitter<'a> {
    pieces: &'a [IoVec],
    /// Bytes of `pieces[0]` that earlier packets took.
    offset: usize,
    segment_len: usize,
}

impl<'a> Splitter<'a> {
    /// `segment_len` must not be 0.
    pub(crate) fn new(pieces: &'a [IoVec], segment_len: usize) -> Splitter<'a> {
        assert!(
            segment_len > 0,
            "a packet of no bytes would never end the train"
        );
        Splitter {
            pieces,
            offset: 0,
            segment_len,
        }
    }

    /// Writes the pieces of the next packet to the front of `out`.
    pub(crate) fn next_packet(&mut self, out: &mut [IoVec]) -> Split {
        let mut next = self.clone();
        let mut wanted = self.segment_len;
        let mut count = 0;
        while wanted > 0 {
            let Some(piece) = next.pieces.first() else {
                break;
            };
            let left = piece.len() - next.offset;
            let take = left.min(wanted);
            if take > 0 {
                let Some(slot) = out.get_mut(count) else {
                    return Split::NoRoom;
                };
                *slot = piece.part(next.offset, take);
                count += 1;
            }
            wanted -= take;
            next.offset += take;
            if next.offset == piece.len() {
                next.pieces = &next.pieces[1..];
                next.offset = 0;
            }
        }
        *self = next;
        if count == 0 {
            Split::End
        } else {
            Split::Packet(count)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(lens: &[usize], segment_len: usize, room: usize) -> Vec<Vec<(usize, usize)>> {
        let mut address = 1000;
        let mut pieces = Vec::new();
        for &len in lens {
            pieces.push(IoVec::from_address(address, len));
            address += len as u64;
        }
        let mut splitter = Splitter::new(&pieces, segment_len);
        let mut out = vec![IoVec::from_slice(&[]); room];
        let mut all = Vec::new();
        loop {
            match splitter.next_packet(&mut out) {
                Split::Packet(count) => {
                    all.push(
                        out[..count]
                            .iter()
                            .map(|piece| (piece.address() as usize, piece.len()))
                            .collect(),
                    );
                }
                Split::NoRoom => panic!("no room"),
                Split::End => return all,
            }
        }
    }

    #[test]
    fn cuts_across_pieces_and_skips_empty_ones() {
        assert_eq!(
            packets(&[4, 0, 10, 3], 8, 4),
            vec![
                vec![(1000, 4), (1004, 4)],
                vec![(1008, 6), (1014, 2)],
                vec![(1016, 1)]
            ]
        );
    }

    #[test]
    fn exact_multiple_has_no_empty_last_packet() {
        assert_eq!(packets(&[16], 8, 1), vec![vec![(1000, 8)], vec![(1008, 8)]]);
        assert!(packets(&[], 8, 1).is_empty());
    }

    #[test]
    fn no_room_consumes_nothing() {
        let pieces = [IoVec::from_address(1, 1), IoVec::from_address(2, 1)];
        let mut splitter = Splitter::new(&pieces, 2);
        let mut out = [IoVec::from_slice(&[]); 2];
        assert_eq!(splitter.next_packet(&mut out[..1]), Split::NoRoom);
        assert_eq!(splitter.next_packet(&mut out), Split::Packet(2));
        assert_eq!(splitter.next_packet(&mut out), Split::End);
    }
}
