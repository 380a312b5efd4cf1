//! A server and a client: start the one, wait until it listens, run the other, and see how both ended.
//!
//! The shape of almost every RDMA test program. The time limits are those of the two [`Program`]s.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::process::{Outcome, Proc};
use crate::program::Program;

/// A server that does not listen by then is broken; loading a provider takes milliseconds.
const LISTENS_WITHIN: Duration = Duration::from_secs(15);

/// What the server gets to end by itself after its client failed.
const GRACE_AFTER_FAILURE: Duration = Duration::from_secs(3);

/// A server and its client.
#[derive(Debug)]
pub struct Pair {
    server: Program,
    client: Program,
    port: u16,
}

/// How both ended.
#[derive(Debug)]
pub struct PairOutcome {
    /// The server's end.
    pub server: Outcome,
    /// The client's end.
    pub client: Outcome,
}

impl Pair {
    /// A `server` that listens on TCP `port`, and its `client`.
    pub fn new(server: Program, client: Program, port: u16) -> Self {
        Self {
            server,
            client,
            port,
        }
    }

    /// Runs both to their end.
    ///
    /// # Errors
    /// One could not be started, the server never listened, or the user interrupted. What the programs
    /// themselves did is in the outcome.
    pub fn run(self) -> Result<PairOutcome> {
        self.run_disturbed(|_, _| Ok(()))
    }

    /// As [`Pair::run`]; calls `disturb` with server and client when both have been started.
    ///
    /// # Errors
    /// As [`Pair::run`], and what `disturb` answers.
    pub fn run_disturbed(
        self,
        disturb: impl FnOnce(&mut Proc, &mut Proc) -> Result<()>,
    ) -> Result<PairOutcome> {
        let mut server = self.server.spawn()?;
        server.wait_listening(self.port, LISTENS_WITHIN)?;
        let mut client = self.client.spawn()?;
        disturb(&mut server, &mut client)?;
        let client = client.wait()?;
        let server = if client.succeeded() {
            server.wait()?
        } else {
            server.wait_at_most(GRACE_AFTER_FAILURE)?
        };
        Ok(PairOutcome { server, client })
    }
}

impl PairOutcome {
    /// The outcome if both ended by themselves with status 0.
    ///
    /// # Errors
    /// One did not: the message tells of both.
    pub fn success(self) -> Result<Self> {
        if self.server.succeeded() && self.client.succeeded() {
            return Ok(self);
        }
        bail!(
            "client: {}\nserver: {}",
            self.client.describe(),
            self.server.describe()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ends_early_is_told_with_its_output() {
        let server = Program::new("sh").args(["-c", "echo no device >&2; exit 1"]);
        let message = Pair::new(server, Program::new("true"), 1)
            .run()
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("ended before") && message.contains("no device"),
            "{message}"
        );
    }
}
