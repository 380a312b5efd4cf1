//! Big-endian reads and writes at fixed places, and the checksum.
//!
//! All callers have checked the length before: an index out of range here is our own bug,
//! never a short packet. Used by the header files beside this one only.

/// Reads 16 bits at `at`.
#[inline]
pub(super) fn get_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Reads 24 bits at `at`.
#[inline]
pub(super) fn get_u24(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([0, bytes[at], bytes[at + 1], bytes[at + 2]])
}

/// Reads 32 bits at `at`.
#[inline]
pub(super) fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Reads 64 bits at `at`.
#[inline]
pub(super) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    (u64::from(get_u32(bytes, at)) << 32) | u64::from(get_u32(bytes, at + 4))
}

/// Reads 16 bytes at `at`.
#[inline]
pub(super) fn get_array16(bytes: &[u8], at: usize) -> [u8; 16] {
    let mut array = [0; 16];
    array.copy_from_slice(&bytes[at..at + 16]);
    array
}

/// Writes 16 bits at `at`.
#[inline]
pub(super) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Writes the low 24 bits of `value` at `at`.
#[inline]
pub(super) fn put_u24(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 3].copy_from_slice(&value.to_be_bytes()[1..]);
}

/// Writes 32 bits at `at`.
#[inline]
pub(super) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// Writes 64 bits at `at`.
#[inline]
pub(super) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

/// CRC32C of `bytes` with the four bytes at `field` counted as 0 (WIRE 2.4).
#[inline]
pub(super) fn checksum_without_field(bytes: &[u8], field: usize) -> u32 {
    let before = crc32c::crc32c(&bytes[..field]);
    let blank = crc32c::crc32c_append(before, &[0; 4]);
    crc32c::crc32c_append(blank, &bytes[field + 4..])
}
