//! A virtual fabric: hosts in network namespaces, joined by one link, by several planes or by switches.
//!
//! `cargo xtask fabric` uses it by hand, the demo and the e2e cases through [`Fabric`]. All of it needs
//! root. What is made is recorded (`state`) before it is made, and only what is recorded is removed.
//! Read first: `topology` for what a fabric looks like, `direction` for how a part of it is named, `impair` for
//! loss, `arrival` for black holes, `link` for cut cables, `counters` for what is counted.

mod arrival;
mod bpf;
pub mod counters;
mod direction;
mod faults;
mod host;
pub mod impair;
mod late;
mod link;
pub mod namespace;
mod plan;
mod rate;
mod shape;
pub mod state;
mod status;
mod topology;

use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub use counters::{Counters, PlaneCounters, Traffic};
pub use direction::{Direction, Place};
pub use host::{Host, MAX_HOSTS};
pub use impair::{LEAST_MTU_BYTES, LossCounts, LossRates, largest_packet, parts_per_million};
pub use late::DEFAULT_LATE_BY;
pub use rate::Rate;
pub use shape::{MAX_PLANES, Shape, Topology};
pub use state::State;
pub use status::{Impairment, Way};
pub use topology::NIC;

use crate::tool;
use state::Owner;

/// Prefix of the namespaces of a fabric made by hand.
pub const DEFAULT_NAME: &str = "mr";

/// MTU of a fabric unless told otherwise: jumbo frames, as in clusters.
pub const DEFAULT_MTU_BYTES: u32 = 9000;

/// Links come up at once and without address detection; what takes longer than this is broken.
const USABLE_WITHIN: Duration = Duration::from_secs(5);

/// A fabric that is up. A temporary one goes when this value is dropped.
#[derive(Debug)]
pub struct Fabric {
    state: State,
    temporary: bool,
}

impl Fabric {
    /// Makes a fabric that stays until [`Fabric::down`], in this process or a later one.
    ///
    /// # Errors
    /// This is not root, a tool is missing, the name is taken, or a step failed (then nothing is left).
    pub fn up(name: &str, shape: impl Into<Shape>, mtu_bytes: u32) -> Result<Self> {
        Self::make(name, shape.into(), mtu_bytes, None)
    }

    /// Makes a fabric with a name of its own that is removed on drop; removes first what processes that
    /// died left behind.
    ///
    /// # Errors
    /// As [`Fabric::up`].
    pub fn temporary(shape: impl Into<Shape>, mtu_bytes: u32) -> Result<Self> {
        /// Tells apart the fabrics of one process.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        remove_abandoned();
        let name = format!(
            "mr{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        Self::make(&name, shape.into(), mtu_bytes, Some(Owner::current()))
    }

    /// The fabric `name` that is up.
    ///
    /// # Errors
    /// There is none.
    pub fn open(name: &str) -> Result<Self> {
        require_root()?;
        match State::load(name)? {
            Some(state) => Ok(Self {
                state,
                temporary: false,
            }),
            None => bail!(
                "no fabric named `{name}` is up: `cargo xtask fabric up --direct --name {name}` makes one, \
                 `cargo xtask fabric status` lists them"
            ),
        }
    }

    fn make(name: &str, shape: Shape, mtu_bytes: u32, owner: Option<Owner>) -> Result<Self> {
        topology::check_name(name)?;
        shape.check(mtu_bytes)?;
        require_root()?;
        tool::require("ip")?;
        tool::require("tc")?;
        let state = State {
            name: name.to_owned(),
            topology: shape.topology,
            hosts: shape.hosts,
            mtu_bytes,
            ipv6: Path::new("/proc/sys/net/ipv6").exists(),
            namespaces: topology::namespaces(name, shape),
            owner,
        };
        if State::load(name)?.is_none()
            && let Some(taken) = state
                .namespaces
                .iter()
                .find(|namespace| namespace::exists(namespace))
        {
            bail!(
                "a network namespace `{taken}` exists that no fabric recorded: choose another \
                     `--name`, or remove it with `ip netns del {taken}` if nobody needs it"
            );
        }
        let temporary = state.owner.is_some();
        state.create()?;
        let fabric = Self { state, temporary };
        let built = topology::build(&fabric.state).and_then(|()| fabric.wait_until_usable());
        match built {
            Ok(()) => Ok(fabric),
            Err(error) => {
                let _ = remove(&fabric.state);
                Err(error.context(format!("the fabric `{name}` could not be made")))
            }
        }
    }

    /// Removes the fabric and its record.
    ///
    /// # Errors
    /// A namespace could not be removed; the record stays for another try.
    pub fn down(mut self) -> Result<()> {
        self.temporary = false;
        remove(&self.state)
    }

    /// What was recorded of it.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What it looks like.
    pub fn shape(&self) -> Shape {
        self.state.shape()
    }

    /// Its hosts.
    pub fn hosts(&self) -> Vec<Host> {
        self.shape().hosts().collect()
    }

    /// The network namespace of a host.
    pub fn namespace(&self, host: Host) -> String {
        topology::host_namespace(&self.state.name, host)
    }

    /// A command that runs `program` on a host.
    ///
    /// # Errors
    /// `ip` is missing, or there is no such host.
    pub fn command(&self, host: Host, program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
        direction::check_host(self.shape(), host)?;
        let mut command = Command::new(tool::require("ip")?);
        command
            .args(["netns", "exec", &self.namespace(host)])
            .arg(program);
        Ok(command)
    }

    /// A command on a host, by way of a shell: it says what is wrong with a program that cannot be run, and ends with 127 or 126
    /// then, where `ip netns exec` ends with 1.
    ///
    /// # Errors
    /// There is no such host, or no `ip`.
    pub fn shell_command(&self, host: Host, command: &[String]) -> Result<Command> {
        let mut shell = self.command(host, "sh")?;
        shell.args(["-c", "exec \"$@\"", "sh"]).args(command);
        Ok(shell)
    }

    /// Runs `work` on a thread inside a host, for sockets of our own.
    ///
    /// # Errors
    /// The namespace is gone.
    pub fn inside<T: Send>(&self, host: Host, work: impl FnOnce() -> T + Send) -> Result<T> {
        namespace::inside(&self.namespace(host), work)
    }

    /// What is in force and what was counted on every plane, way by way.
    ///
    /// # Errors
    /// A tool is missing or failed.
    pub fn ways(&self) -> Result<Vec<Way>> {
        status::read(&self.state, &self.counters()?)
    }

    /// Packets and bytes of every plane since the fabric came up.
    ///
    /// # Errors
    /// `tc` failed.
    pub fn counters(&self) -> Result<Counters> {
        counters::read(&self.state)
    }

    /// Bytes that came in on each plane so far, for all hosts together and as their devices count them: what a black
    /// hole swallows is in it. Unlike [`Fabric::counters`] this starts no programs, so it can be looked at all the time.
    ///
    /// # Errors
    /// A namespace is gone.
    pub fn arrived_bytes(&self) -> Result<Vec<u64>> {
        counters::arrived_bytes(&self.state)
    }

    /// Sends a datagram from every host, around a ring and back, until one arrives: a link that came up this
    /// instant has no neighbour entry, maybe no carrier yet.
    fn wait_until_usable(&self) -> Result<()> {
        let families: &[bool] = if self.state.ipv6 {
            &[false, true]
        } else {
            &[false]
        };
        let hosts = self.hosts();
        for (index, &host) in hosts.iter().enumerate() {
            let next = hosts[(index + 1) % hosts.len()];
            for nic in 0..self.shape().nics() {
                for &ipv6 in families {
                    self.wait_for_datagram([host, next], nic, ipv6)?;
                    self.wait_for_datagram([next, host], nic, ipv6)?;
                }
            }
        }
        Ok(())
    }

    fn wait_for_datagram(&self, [from, to]: [Host; 2], nic: u8, ipv6: bool) -> Result<()> {
        let bind = |host: Host| -> Result<UdpSocket> {
            let address = match ipv6 {
                true => IpAddr::V6(host.ipv6_on(nic)),
                false => IpAddr::V4(host.ipv4_on(nic)),
            };
            let socket = self.inside(host, || UdpSocket::bind((address, 0)))?;
            socket.with_context(|| format!("the address {address} of host {host} is not usable"))
        };
        let (near, far) = (bind(from)?, bind(to)?);
        far.set_read_timeout(Some(Duration::from_millis(20)))?;
        let target = far.local_addr()?;
        let deadline = Instant::now() + USABLE_WITHIN;
        while Instant::now() < deadline {
            let _ = near.send_to(b"up?", target);
            if far.recv_from(&mut [0; 8]).is_ok() {
                return Ok(());
            }
        }
        bail!(
            "no packet from host {from} arrived at {target} within {} s",
            USABLE_WITHIN.as_secs()
        )
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if self.temporary
            && let Err(error) = remove(&self.state)
        {
            eprintln!("fabric `{}` is still there: {error:#}", self.state.name);
        }
    }
}

/// Removes the namespaces of a record, with all links in them, and then the record.
fn remove(state: &State) -> Result<()> {
    for name in state
        .namespaces
        .iter()
        .filter(|name| namespace::exists(name))
    {
        tool::run("ip", &["netns", "del", name])?;
    }
    state.remove();
    Ok(())
}

/// Removes temporary fabrics whose process is gone (killed, so that no destructor ran).
fn remove_abandoned() {
    let dead = |state: &State| state.owner.as_ref().is_some_and(|owner| !owner.is_alive());
    for state in State::all().iter().filter(|state| dead(state)) {
        if let Err(error) = remove(state) {
            eprintln!(
                "the abandoned fabric `{}` is still there: {error:#}",
                state.name
            );
        }
    }
}

/// Removes the fabric `name` if it is up; says whether it was.
///
/// # Errors
/// As [`Fabric::down`].
pub fn down_if_up(name: &str) -> Result<bool> {
    require_root()?;
    match State::load(name)? {
        Some(state) => remove(&state).map(|()| true),
        None => Ok(false),
    }
}

/// A user without rights sees a fabric's state, and every tool that it takes would fail in its own words.
///
/// # Errors
/// This is not root.
pub fn require_root() -> Result<()> {
    if !tool::is_root() {
        bail!("a fabric needs root (network namespaces): run this as root");
    }
    Ok(())
}
