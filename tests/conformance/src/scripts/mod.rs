//! The scripts, by chapters of WIRE.md.

mod acks;
mod liars;
mod lives;
mod losses;
mod moves;
mod rates;
mod requester;
mod requests;
mod responder;
mod responses;
mod safety;
mod setup;
mod sizes;
mod vectors;
mod visibility;

use crate::script::Script;

/// All of them, in the order in which they run.
pub fn all() -> Vec<Script> {
    [
        setup::SCRIPTS,
        acks::SCRIPTS,
        vectors::SCRIPTS,
        losses::SCRIPTS,
        sizes::SCRIPTS,
        moves::SCRIPTS,
        responder::SCRIPTS,
        responses::SCRIPTS,
        requests::SCRIPTS,
        visibility::SCRIPTS,
        rates::SCRIPTS,
        safety::SCRIPTS,
        liars::SCRIPTS,
        lives::SCRIPTS,
    ]
    .concat()
}
