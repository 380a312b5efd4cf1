//! The C structures and constants that libibverbs, its programs and a provider share.
//!
//! What this answers for: layout, and nothing else. Names are those of C, so that they can be looked up in
//! `<infiniband/verbs.h>` and in rdma-core's `driver.h`. Every size and offset is asserted at compile time against the
//! layout of rdma-core 44 as its debug information records it; the tests compare them with every release that is served
//! (`tests/abi/releases.txt`), and the public ones once more with the installed header (`tests/abi/layout.c`). A structure that grew in later releases says so at its definition.
//!
//! Read first: [`objects`] (what a verbs program holds), then [`provider`] (what only a provider sees).
//! Called by: `plugin/`, which turns these into the safe types of `verbs/` and back.

#![expect(
    dead_code,
    reason = "C structures and enumerations are declared whole, whether or not each name is used"
)]

mod attributes;
mod constants;
mod objects;
mod provider;
mod work;

pub(crate) use attributes::*;
pub(crate) use constants::*;
pub(crate) use objects::*;
pub(crate) use provider::*;
pub(crate) use work::*;

#[cfg(test)]
pub(crate) mod releases;
#[cfg(test)]
mod tests;

/// One line of a layout table: structure, field (`""` for the structure itself), offset (or size) in bytes.
#[cfg(test)]
pub(crate) type LayoutLine = (&'static str, &'static str, usize);

/// Asserts size and offsets of `#[repr(C)]` structures at compile time, and records them as `LAYOUT` for the comparison
/// with the installed C header.
macro_rules! layout {
    ($($name:ident : $size:literal { $($field:ident : $offset:literal),* $(,)? })*) => {
        const _: () = { $(
            assert!(size_of::<$name>() == $size, concat!("size of ", stringify!($name)));
            $( assert!(
                std::mem::offset_of!($name, $field) == $offset,
                concat!("offset of ", stringify!($name), ".", stringify!($field))
            ); )*
        )* };
        /// Size and offsets of the structures of this file, for the comparison with C.
        #[cfg(test)]
        pub(in crate::abi) const LAYOUT: &[$crate::abi::LayoutLine] = &[ $(
            (stringify!($name), "", $size),
            $( (stringify!($name), stringify!($field), $offset), )*
        )* ];
    };
}
use layout;
