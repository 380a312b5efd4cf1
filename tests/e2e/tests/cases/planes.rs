//! Planes that die, silently or with their cable, and come back, while unmodified programs transfer: it must cost time
//! only. Each case also proves that what it did to the fabric was felt by the transfer. (NCCL's are in `nccl.rs`.)

mod bandwidth;
mod bytes;

pub use bandwidth::end as end_transfer;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use metaroce_e2e::fabric::Place;
use metaroce_e2e::{Fabric, Host, Proc};

use super::Case;

/// The traffic of so long tells which plane is used most.
const LOOK: Duration = Duration::from_millis(400);

/// Until a transfer is under way, on a busy machine.
pub const FLOWS_WITHIN: Duration = Duration::from_secs(20);

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let mut cases = bytes::cases();
    cases.extend(bandwidth::cases());
    cases
}

/// How a plane dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// Its cables are cut: the leaves see it and spread over the other planes.
    Cut,
    /// Everything on it vanishes, and nobody is told.
    BlackHole,
}

impl Death {
    /// Whatever takes long about it.
    pub fn prepare(self, fabric: &Fabric) -> Result<()> {
        if self == Self::BlackHole {
            fabric.blackhole(Place::ALL)?;
            fabric.set_blackholes(&[])?;
        }
        Ok(())
    }

    fn begin(self, fabric: &Fabric, plane: u8) -> Result<()> {
        match self {
            Self::Cut => fabric.plane_down(plane),
            Self::BlackHole => fabric.blackhole(Place::plane(plane)),
        }
    }

    fn end(self, fabric: &Fabric, plane: u8) -> Result<()> {
        match self {
            Self::Cut => fabric.plane_up(plane),
            Self::BlackHole => fabric.end_blackhole(Place::plane(plane)),
        }
    }

    /// Looks which plane carries most of what `program` and its peer transfer, of those that are `eligible`, and has that
    /// one dead while the program runs on for `lasts`.
    pub fn strike(
        self,
        fabric: &Fabric,
        program: &mut Proc,
        lasts: Duration,
        eligible: impl Fn(u8) -> bool,
    ) -> Result<Strike> {
        let before = look(fabric, program, LOOK)?;
        let planes = (1..).zip(&before);
        let (plane, &used) = planes
            .filter(|(plane, _)| eligible(*plane))
            .max_by_key(|(_, bytes)| **bytes)
            .context("the fabric has no such plane")?;
        let begins = Instant::now();
        self.begin(fabric, plane)?;
        let meanwhile = look(fabric, program, lasts)?;
        let ends = Instant::now();
        self.end(fabric, plane)?;
        Ok(Strike {
            plane,
            used,
            begins,
            ends,
            meanwhile,
        })
    }
}

/// Bytes that come in on each plane while `program` runs on for `time`.
fn look(fabric: &Fabric, program: &mut Proc, time: Duration) -> Result<Vec<u64>> {
    let before = fabric.arrived_bytes()?;
    program.run_on(time)?;
    let after = fabric.arrived_bytes()?;
    Ok(after
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect())
}

/// A plane's death.
#[derive(Debug)]
pub struct Strike {
    /// Which.
    pub plane: u8,
    /// Bytes that it carried in a moment before.
    pub used: u64,
    /// Just before it.
    pub begins: Instant,
    /// Just before its end.
    pub ends: Instant,
    /// Bytes that came in on each plane while that one was dead. (A black hole swallows them after this.)
    pub meanwhile: Vec<u64>,
}

impl Strike {
    /// Bytes that came in on the dead plane.
    pub fn on_the_dead(&self) -> u64 {
        self.meanwhile[usize::from(self.plane) - 1]
    }

    /// Fails if the plane had not been used, or was not dead, or nothing went over the others meanwhile.
    pub fn check(&self, fabric: &Fabric, death: Death) -> Result<()> {
        let others = self.meanwhile.iter().sum::<u64>() - self.on_the_dead();
        ensure!(self.used > 0, "the plane was not used before: {self:?}");
        ensure!(others > 0, "nothing went over the other planes: {self:?}");
        match death {
            Death::Cut => ensure!(
                self.on_the_dead() == 0,
                "the plane carried something while its cables were cut: {self:?}"
            ),
            Death::BlackHole => ensure!(swallowed(fabric)? > 0, "nothing was swallowed: {self:?}"),
        }
        Ok(())
    }
}

/// Packets that black holes have swallowed.
pub fn swallowed(fabric: &Fabric) -> Result<u64> {
    let counters = fabric.counters()?;
    let hosts = Host::BOTH.map(|host| counters.total_to(host).swallowed);
    Ok(hosts.iter().sum())
}
