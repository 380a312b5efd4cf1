//! The cases, as data, and what a case is given to work with.
//!
//! A new case: write `fn cases() -> Vec<Case>` in a file of its own and name the file in [`all`]. A case
//! makes its own fabric, so it can neither see nor disturb another one.

mod abi;
mod container;
mod contract;
mod devices;
mod dissect;
mod doctor;
mod fabric;
mod gids;
mod hostile;
mod links;
mod multipath;
mod multiplane;
mod nccl;
mod neighbours;
mod perftest;
mod pingpong;
mod planes;
mod plugin;
mod pmtu;
mod scale;
mod telemetry;
mod trouble;
mod visibility;

use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use metaroce_e2e::needs::Need;
use metaroce_e2e::{
    Artefacts, Fabric, Host, Pair, PairOutcome, Program, Topology, fabric::DEFAULT_MTU_BYTES,
};

/// What programs on a metaroce device across two hosts need.
pub const ON_DEVICE: &[Need] = &[Need::Root, Need::Product];

/// All cases.
pub fn all() -> Vec<Case> {
    [
        fabric::cases(),
        devices::cases(),
        plugin::cases(),
        abi::cases(),
        pingpong::cases(),
        perftest::cases(),
        multipath::cases(),
        contract::cases(),
        visibility::cases(),
        nccl::cases(),
        hostile::cases(),
        dissect::cases(),
        scale::cases(),
        telemetry::cases(),
        doctor::cases(),
        trouble::cases(),
        planes::cases(),
        pmtu::cases(),
        multiplane::cases(),
        neighbours::cases(),
        links::cases(),
        container::cases(),
        gids::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Whether the long forms are wanted, which take up to an hour together: `METAROCE_E2E_SCALE=full`.
pub fn in_full() -> bool {
    std::env::var("METAROCE_E2E_SCALE").is_ok_and(|form| form == "full")
}

/// What a case does.
type Body = Box<dyn Fn(&Bench) -> Result<()> + Send>;

/// One test.
pub struct Case {
    /// `file::what`.
    pub name: String,
    /// Without these it is skipped.
    pub needs: Vec<Need>,
    /// Its programs are killed when it has run that long.
    pub limit: Duration,
    /// Left out of quick runs.
    pub slow: bool,
    /// The test itself.
    pub run: Body,
}

impl Case {
    /// A case with the ordinary limit of one minute.
    pub fn new(
        name: impl Into<String>,
        needs: &[Need],
        run: impl Fn(&Bench) -> Result<()> + Send + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            needs: needs.to_vec(),
            limit: Duration::from_secs(60),
            slow: false,
            run: Box::new(run),
        }
    }

    /// Adds a need.
    #[must_use]
    pub fn needing(mut self, need: Need) -> Self {
        self.needs.push(need);
        self
    }

    /// Leaves it out of quick runs, and gives it `limit`.
    #[must_use]
    pub fn slow(mut self, limit: Duration) -> Self {
        (self.slow, self.limit) = (true, limit);
        self
    }
}

/// The work bench of one running case.
pub struct Bench {
    deadline: Instant,
}

impl Bench {
    /// A bench for a case that may take `limit`.
    pub fn new(limit: Duration) -> Self {
        Self {
            deadline: Instant::now() + limit,
        }
    }

    /// What is left of the case's time: the limit for a program started now.
    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Two hosts on one link with jumbo frames.
    pub fn direct(&self) -> Result<Fabric> {
        Fabric::temporary(Topology::Direct, DEFAULT_MTU_BYTES)
    }

    /// Two hosts with `planes` planes between them.
    pub fn planes(&self, planes: u8) -> Result<Fabric> {
        Fabric::temporary(Topology::Planes(planes), DEFAULT_MTU_BYTES)
    }

    /// The built product.
    pub fn artefacts(&self) -> Result<Artefacts> {
        Artefacts::find()
    }

    /// A program on a host, on a metaroce device, within the case's time.
    pub fn on_device(&self, fabric: &Fabric, host: Host, program: Program) -> Result<Program> {
        Ok(program
            .on(fabric, host)
            .under_metaroce(&self.artefacts()?)
            .limit(self.time_left()))
    }

    /// Runs a server on host a and its client on host b, both on a metaroce device; the server listens on
    /// TCP `port`.
    pub fn pair(
        &self,
        fabric: &Fabric,
        server: Program,
        client: Program,
        port: u16,
    ) -> Result<PairOutcome> {
        self.pair_to_run(fabric, server, client, port)?.run()
    }

    /// The same, not yet started.
    pub fn pair_to_run(
        &self,
        fabric: &Fabric,
        server: Program,
        client: Program,
        port: u16,
    ) -> Result<Pair> {
        let server = self.on_device(fabric, Host::A, server)?;
        let client = self.on_device(fabric, Host::B, client)?;
        Ok(Pair::new(server, client, port))
    }
}

/// A TCP port that no earlier case used: a server's old port may still be busy.
pub fn next_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(18_600);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
