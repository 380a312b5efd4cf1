//! The scripts, by chapters of WIRE.md.

mod acks;
mod losses;
mod requester;
mod setup;
mod vectors;

use crate::script::Script;

/// All of them, in the order in which they run.
pub fn all() -> Vec<Script> {
    [
        setup::SCRIPTS,
        acks::SCRIPTS,
        vectors::SCRIPTS,
        losses::SCRIPTS,
    ]
    .concat()
}
