//! One HTML page that shows what the transport does in the simulator: plots, and under each the figures and the commands that
//! give them again. Everything on it comes from the seed, so that two pages of the same source are equal.
//!
//! `runs.rs` runs scenarios and knows their commands, `sections.rs` decides what is run and drawn, `plots.rs` draws, and
//! `page.rs` writes the page. Begin with [`write()`]; `cargo xtask report` calls it.

mod page;
mod plots;
mod runs;
mod sections;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// How much is run.
#[derive(Clone, PartialEq, Debug)]
pub struct Extent {
    seed: u64,
    /// Parts of the packets that are lost.
    losses: &'static [f64],
    rtts_us: &'static [u64],
    senders: &'static [usize],
    planes: &'static [u8],
    plane_nodes: usize,
    collective_nodes: usize,
    collective_bytes: &'static [u32],
}

impl Extent {
    /// All that is worth a look: some minutes.
    #[must_use]
    pub const fn full(seed: u64) -> Self {
        Self {
            seed,
            losses: &[0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1],
            rtts_us: &[5, 10, 20],
            senders: &[8, 32],
            planes: &[1, 2, 4, 8],
            plane_nodes: 64,
            collective_nodes: 64,
            collective_bytes: &[1 << 20, 16 << 20],
        }
    }

    /// The same page from small runs: some seconds.
    #[must_use]
    pub const fn quick(seed: u64) -> Self {
        Self {
            seed,
            losses: &[0.001, 0.01],
            rtts_us: &[10],
            senders: &[8],
            planes: &[1, 2],
            plane_nodes: 8,
            collective_nodes: 16,
            collective_bytes: &[1 << 20],
        }
    }
}

/// Runs everything and writes the page; `tell` hears what is at work.
pub fn write(out: &Path, extent: &Extent, tell: &mut dyn FnMut(&str)) -> Result<()> {
    let sections = sections::all(extent, tell)?;
    let page = page::page(&sections, extent);
    if let Some(folder) = out.parent() {
        fs::create_dir_all(folder)
            .with_context(|| format!("the folder {} cannot be made", folder.display()))?;
    }
    fs::write(out, page).with_context(|| format!("{} cannot be written", out.display()))
}
