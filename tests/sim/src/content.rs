//! What messages carry: slices of one fixed table of random bytes, so that every byte of every message can be predicted
//! and compared at the speed of memcmp, and a byte at a wrong place differs from the right one 255 times in 256.

use std::sync::OnceLock;

use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

/// Longest content.
pub const CONTENT_BYTES_MAX: u32 = 1 << 20;

/// Contents begin anywhere in the first half; the second half is for their tails.
const TABLE_BYTES: usize = 2 * CONTENT_BYTES_MAX as usize;

/// The bytes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Content {
    start: u32,
}

impl Content {
    /// Some content; different salts give different ones, nearly always.
    pub const fn new(salt: u64) -> Self {
        let mixed = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self {
            start: ((mixed >> 32) as u32) % CONTENT_BYTES_MAX,
        }
    }

    /// The content from its byte `offset` on.
    #[must_use]
    pub const fn skip(self, offset: u32) -> Self {
        Self {
            start: self.start + offset,
        }
    }

    /// `length` bytes from `offset` on.
    ///
    /// # Panics
    /// If they are not within [`CONTENT_BYTES_MAX`].
    pub fn bytes(self, offset: u32, length: u32) -> &'static [u8] {
        let start = (self.start + offset) as usize;
        &table()[start..start + length as usize]
    }
}

fn table() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut bytes = vec![0; TABLE_BYTES];
        SmallRng::seed_from_u64(0x6d65_7461).fill_bytes(&mut bytes);
        bytes
    })
}
