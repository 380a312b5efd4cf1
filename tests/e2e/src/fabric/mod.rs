//! A virtual fabric: two hosts in network namespaces, joined by one link or by several planes.
//!
//! `cargo xtask fabric` uses it by hand, the demo and the e2e cases through [`Fabric`]. All of it needs
//! root. What is made is recorded (`state`) before it is made, and only what is recorded is removed.
//! Read first: `topology` for what a fabric looks like, `impair` for loss, `counters` for what is counted.

pub mod counters;
pub mod impair;
pub mod namespace;
pub mod state;
mod topology;

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

pub use counters::{Counters, PlaneCounters, Traffic};
pub use impair::{LossCounts, LossRates, parts_per_million};
pub use state::State;
pub use topology::{MAX_PLANES, NIC};

use crate::tool;
use state::Owner;

/// Prefix of the namespaces of a fabric made by hand.
pub const DEFAULT_NAME: &str = "mr";

/// MTU of a fabric unless told otherwise: jumbo frames, as in clusters.
pub const DEFAULT_MTU_BYTES: u32 = 9000;

/// Links come up at once and without address detection; what takes longer than this is broken.
const USABLE_WITHIN: Duration = Duration::from_secs(5);

/// One of the two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// The first host, by habit the server's.
    A,
    /// The second host, by habit the client's.
    B,
}

impl Host {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// Its IPv4 address, in every topology.
    pub fn ipv4(self) -> Ipv4Addr {
        match self {
            Self::A => Ipv4Addr::new(10, 77, 0, 1),
            Self::B => Ipv4Addr::new(10, 77, 0, 2),
        }
    }

    /// Its IPv6 address, in every topology (if the kernel has IPv6).
    pub fn ipv6(self) -> Ipv6Addr {
        match self {
            Self::A => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1),
            Self::B => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2),
        }
    }

    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::A => "a",
            Self::B => "b",
        })
    }
}

impl std::str::FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "a" => Ok(Self::A),
            "b" => Ok(Self::B),
            _ => Err(format!("`{text}` is no host: a or b")),
        }
    }
}

/// How the hosts are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// One link.
    Direct,
    /// A leaf at each host, and this many links between the leaves.
    Planes(u8),
}

impl fmt::Display for Topology {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => formatter.write_str("direct link"),
            Self::Planes(planes) => write!(formatter, "{planes} planes"),
        }
    }
}

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
    pub fn up(name: &str, topology: Topology, mtu_bytes: u32) -> Result<Self> {
        Self::make(name, topology, mtu_bytes, None)
    }

    /// Makes a fabric with a name of its own that is removed on drop; removes first what processes that
    /// died left behind.
    ///
    /// # Errors
    /// As [`Fabric::up`].
    pub fn temporary(topology: Topology, mtu_bytes: u32) -> Result<Self> {
        /// Tells apart the fabrics of one process.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        remove_abandoned();
        let name = format!(
            "mr{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        Self::make(&name, topology, mtu_bytes, Some(Owner::current()))
    }

    /// The fabric `name` that is up.
    ///
    /// # Errors
    /// There is none.
    pub fn open(name: &str) -> Result<Self> {
        match State::load(name)? {
            Some(state) => Ok(Self {
                state,
                temporary: false,
            }),
            None => bail!(
                "no fabric named `{name}` is up: `cargo xtask fabric up --direct` makes one, \
                 `cargo xtask fabric status` lists them"
            ),
        }
    }

    fn make(name: &str, topology: Topology, mtu_bytes: u32, owner: Option<Owner>) -> Result<Self> {
        topology::check(name, topology, mtu_bytes)?;
        if !tool::is_root() {
            bail!("a fabric needs root (network namespaces): run this as root");
        }
        tool::require("ip")?;
        tool::require("tc")?;
        let state = State {
            name: name.to_owned(),
            topology,
            mtu_bytes,
            ipv6: Path::new("/proc/sys/net/ipv6").exists(),
            namespaces: topology::namespaces(name, topology),
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

    /// The network namespace of a host.
    pub fn namespace(&self, host: Host) -> String {
        topology::host_namespace(&self.state.name, host)
    }

    /// A command that runs `program` on a host.
    ///
    /// # Errors
    /// `ip` is missing.
    pub fn command(&self, host: Host, program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
        let mut command = Command::new(tool::require("ip")?);
        command
            .args(["netns", "exec", &self.namespace(host)])
            .arg(program);
        Ok(command)
    }

    /// Runs `work` on a thread inside a host, for sockets of our own.
    ///
    /// # Errors
    /// The namespace is gone.
    pub fn inside<T: Send>(&self, host: Host, work: impl FnOnce() -> T + Send) -> Result<T> {
        namespace::inside(&self.namespace(host), work)
    }

    /// Lets `rates` of the packets that arrive at `hosts` vanish, each by itself; rates of 0 keep the
    /// path in that per-packet mode without loss, which is what lossy runs are to be compared with.
    ///
    /// # Errors
    /// A tool is missing, or the kernel refused the program.
    pub fn set_loss(&self, hosts: &[Host], rates: LossRates) -> Result<()> {
        hosts
            .iter()
            .try_for_each(|&host| impair::set(&self.state, &self.namespace(host), rates))
    }

    /// Ends loss and the per-packet mode.
    ///
    /// # Errors
    /// `ip` failed.
    pub fn clear_loss(&self, hosts: &[Host]) -> Result<()> {
        hosts
            .iter()
            .try_for_each(|&host| impair::clear(&self.namespace(host)))
    }

    /// What the loss program at a host let pass and dropped; none where it is not attached.
    ///
    /// # Errors
    /// A tool is missing or failed.
    pub fn loss_counts(&self, host: Host) -> Result<Option<LossCounts>> {
        impair::counts(&self.namespace(host))
    }

    /// The loss rates in force at a host; none where the program is not attached.
    ///
    /// # Errors
    /// A tool is missing or failed.
    pub fn loss_rates(&self, host: Host) -> Result<Option<LossRates>> {
        impair::rates(&self.namespace(host))
    }

    /// Packets and bytes of every plane since the fabric came up.
    ///
    /// # Errors
    /// `tc` failed.
    pub fn counters(&self) -> Result<Counters> {
        counters::read(&topology::plane_ports(
            &self.state.name,
            self.state.topology,
        ))
    }

    /// Sends a datagram each way until one arrives: a link that came up this instant has no neighbour
    /// entry, maybe no carrier yet.
    fn wait_until_usable(&self) -> Result<()> {
        let families: &[bool] = if self.state.ipv6 {
            &[false, true]
        } else {
            &[false]
        };
        for &ipv6 in families {
            for host in Host::BOTH {
                self.wait_for_datagram(host, ipv6)?;
            }
        }
        Ok(())
    }

    fn wait_for_datagram(&self, from: Host, ipv6: bool) -> Result<()> {
        let address = |host: Host| match ipv6 {
            true => std::net::IpAddr::V6(host.ipv6()),
            false => std::net::IpAddr::V4(host.ipv4()),
        };
        let bind = |host: Host| -> Result<UdpSocket> {
            let socket = self.inside(host, || UdpSocket::bind((address(host), 0)))?;
            socket.with_context(|| format!("the address of host {host} is not usable"))
        };
        let (near, far) = (bind(from)?, bind(from.other())?);
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
            "no packet from host {from} arrived within {} s",
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
    match State::load(name)? {
        Some(state) => remove(&state).map(|()| true),
        None => Ok(false),
    }
}
