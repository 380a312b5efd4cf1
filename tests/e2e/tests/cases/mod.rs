//! The cases, as data, and what a case is given to work with.
//!
//! A new case: write `fn cases() -> Vec<Case>` in a file of its own and name the file in [`all`]. A case
//! makes its own fabric, so it can neither see nor disturb another one.

mod abi;
mod container;
mod contract;
mod devices;
mod dissect;
mod fabric;
mod hostile;
mod links;
mod multipath;
mod nccl;
mod perftest;
mod pingpong;
mod planes;
mod plugin;
mod scale;
mod telemetry;
mod trouble;

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
        nccl::cases(),
        hostile::cases(),
        dissect::cases(),
        scale::cases(),
        telemetry::cases(),
        trouble::cases(),
        links::cases(),
        container::cases(),
