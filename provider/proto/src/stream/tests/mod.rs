//! Requesters against responders in one process: a host of plain vectors, a pipe that shuffles, loses and retransmits,
//! rules one by one (`rules_*.rs`) and random work whose every byte is checked (`random.rs`).

mod bench;
mod host;
mod random;
mod rules_answers;
mod rules_receives;
mod rules_requester;
mod rules_responder;
mod world;

pub(crate) use host::FakeHost;
