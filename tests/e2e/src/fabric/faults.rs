//! What goes wrong on purpose: loss, marks, reordering, speed limits, black holes, also for large packets only, small MTUs,
//! cut cables.
//!
//! All of it can be called while programs run on the hosts, by this process or another one (`cargo xtask fabric
//! impair`); the kernel's own settings are the only memory of what is in force.

use std::time::Duration;

use anyhow::Result;

use super::impair::{Change, LossCounts, LossRates};
use super::{
    Direction, Fabric, Host, Place, Rate, arrival, bpf, impair, late, link, rate, topology,
};

impl Fabric {
    /// Lets `rates` of the packets that arrive at `hosts` vanish, each by itself; rates of 0 keep the
    /// path in that per-packet mode without loss, which is what lossy runs are to be compared with.
    ///
    /// # Errors
    /// A tool is missing, or the kernel refused the program.
    pub fn set_loss(&self, hosts: &[Host], rates: LossRates) -> Result<()> {
        self.towards(hosts)
            .try_for_each(|place| self.set_loss_at(place, rates))
    }

    /// Ends loss, and the per-packet mode where nothing else needs it.
    ///
    /// # Errors
    /// A tool is missing or failed.
    pub fn clear_loss(&self, hosts: &[Host]) -> Result<()> {
        self.towards(hosts)
            .try_for_each(|place| self.clear_loss_at(place))
    }

    fn towards(&self, hosts: &[Host]) -> impl Iterator<Item = Place> {
        hosts
            .iter()
            .map(|&host| Place::direction(Direction::To(host)))
    }

    /// Like [`Fabric::set_loss`], for any part of the fabric.
    ///
    /// # Errors
    /// Also: there is no such plane or host.
    pub fn set_loss_at(&self, place: Place, rates: LossRates) -> Result<()> {
        self.filters(place)?
            .iter()
            .try_for_each(|port| impair::set(&self.state, port, Change::Loss(rates)))
    }

    /// Like [`Fabric::clear_loss`], for any part of the fabric.
    ///
    /// # Errors
    /// Also: there is no such plane or host.
    pub fn clear_loss_at(&self, place: Place) -> Result<()> {
        self.filters(place)?
            .iter()
            .try_for_each(|port| impair::end(&self.state, port, Change::Loss(LossRates::default())))
    }

    /// Marks `ppm` of a million packets at `place` as having met congestion (CE), of those whose sender knows
    /// ECN, each by itself; 0 ends it. Packets travel one by one meanwhile, as with loss.
    ///
    /// # Errors
    /// As [`Fabric::set_loss_at`].
    pub fn set_ce(&self, place: Place, ppm: u64) -> Result<()> {
        self.filters(place)?.iter().try_for_each(|port| match ppm {
            0 => impair::end(&self.state, port, Change::Ce(0)),
            _ => impair::set(&self.state, port, Change::Ce(ppm)),
        })
    }

    /// Makes `ppm` of a million packets at `place` come later by `late_by`, each by itself, so that packets
    /// behind them pass them; 0 ends it. Packets travel one by one meanwhile, as with loss. All ports of one
    /// host or leaf have the `late_by` that was set last.
    ///
    /// # Errors
    /// As [`Fabric::set_loss_at`]; or `late_by` is out of range.
    pub fn set_reorder(&self, place: Place, ppm: u64, late_by: Duration) -> Result<()> {
        self.filters(place)?.iter().try_for_each(|port| {
            if ppm == 0 {
                return impair::end(&self.state, port, Change::Late(0));
            }
            late::set(&self.state, port, late_by)?;
            impair::set(&self.state, port, Change::Late(ppm))
        })
    }

    /// Lets UDP and TCP packets of more than `bytes` with their IP header vanish at `place`, as at a switch with a smaller
    /// MTU; 0 ends it. Packets travel one by one meanwhile, as with loss.
    ///
    /// # Errors
    /// As [`Fabric::set_loss_at`].
    pub fn set_largest(&self, place: Place, bytes: u64) -> Result<()> {
        self.filters(place)?
            .iter()
            .try_for_each(|port| match bytes {
                0 => impair::end(&self.state, port, Change::Largest(0)),
                _ => impair::set(&self.state, port, Change::Largest(bytes)),
            })
    }

    /// The MTU of what `host` is connected to the planes with: its NICs, or its leaf's ports, and then the leaf tells who sends
    /// larger packets (ICMP).
    ///
    /// # Errors
    /// `ip` failed.
    pub fn set_mtu(&self, host: Host, bytes: u32) -> Result<()> {
        for plane in 1..=self.shape().planes() {
            let port = topology::near_end(&self.state.name, self.shape(), host, plane);
            let (bytes, device) = (bytes.to_string(), port.device.as_str());
            let arguments = ["-n", &port.namespace, "link", "set", device, "mtu", &bytes];
            crate::tool::run("ip", &arguments)?;
        }
        Ok(())
    }

    /// Limits the speed of the links at `place`. What waits in a queue when a limit is first put there, or
    /// taken away, is lost; changing a limit loses nothing.
    ///
    /// # Errors
    /// There is no such plane or host, or `tc` failed.
    pub fn set_rate(&self, place: Place, rate: Rate) -> Result<()> {
        place
            .queues(&self.state.name, self.shape())?
            .iter()
            .try_for_each(|port| rate::set(&self.state, port, rate))
    }

    /// Ends limits.
    ///
    /// # Errors
    /// As [`Fabric::set_rate`].
    pub fn clear_rate(&self, place: Place) -> Result<()> {
        place
            .queues(&self.state.name, self.shape())?
            .iter()
            .try_for_each(|port| rate::clear(&self.state, port))
    }

    /// Ends every impairment and black hole; counts go on, and links that are down stay down.
    ///
    /// # Errors
    /// A tool is missing or failed.
    pub fn clear_impairments(&self) -> Result<()> {
        for port in topology::cable_ends(&self.state.name, self.shape()) {
            impair::clear(&self.state, &port)?;
            arrival::clear(&self.state, &port)?;
            rate::clear(&self.state, &port)?;
        }
        Ok(())
    }

    fn filters(&self, place: Place) -> Result<Vec<topology::Port>> {
        place.filters(&self.state.name, self.shape())
    }

    /// The program that impairs single packets, at each plane's port to a host.
    fn programs(&self, host: Host) -> Result<Vec<bpf::Program>> {
        let mut programs = Vec::new();
        for port in self.filters(Place::direction(Direction::To(host)))? {
            programs.extend(impair::open(&port)?);
        }
        Ok(programs)
    }

    /// What the loss programs towards a host let pass and dropped since they were attached, all planes
    /// together; none where none is attached.
    ///
    /// # Errors
    /// A tool is missing or failed.
    pub fn loss_counts(&self, host: Host) -> Result<Option<LossCounts>> {
        let mut sum: Option<LossCounts> = None;
        for program in self.programs(host)? {
            let counts = impair::counts_of(&program)?.loss;
            sum = Some(sum.unwrap_or_default() + counts);
        }
        Ok(sum)
    }

    /// The share of packets towards a host that were marked CE, of those that could be: marked, could be.
    ///
    /// # Errors
    /// A tool is missing or failed.
    pub fn mark_counts(&self, host: Host) -> Result<(u64, u64)> {
        let mut sum = (0, 0);
        for program in self.programs(host)? {
            let counts = impair::counts_of(&program)?;
            sum = (sum.0 + counts.marked, sum.1 + counts.markable);
        }
        Ok(sum)
    }

    /// The highest loss rates in force towards a host; none where no program is attached.
    ///
    /// # Errors
    /// A tool is missing or failed.
    pub fn loss_rates(&self, host: Host) -> Result<Option<LossRates>> {
        let mut highest: Option<LossRates> = None;
        for program in self.programs(host)? {
            let rates = impair::rates_of(&program)?.loss;
            let known = highest.unwrap_or_default();
            highest = Some(LossRates {
                udp_ppm: known.udp_ppm.max(rates.udp_ppm),
                tcp_ppm: known.tcp_ppm.max(rates.tcp_ppm),
            });
        }
        Ok(highest)
    }

    /// Drops silently what travels at `place`, until [`Fabric::end_blackhole`]: links stay up and neighbours
    /// are found, but nothing else gets through. Turned on and off while programs run in some 50 ms; the first
    /// time takes a second more, for compiling.
    ///
    /// # Errors
    /// There is no such plane or host, a tool is missing, or the kernel refused the program.
    pub fn blackhole(&self, place: Place) -> Result<()> {
        self.set_blackhole(place, true)
    }

    /// Ends black holes at `place`.
    ///
    /// # Errors
    /// As [`Fabric::blackhole`].
    pub fn end_blackhole(&self, place: Place) -> Result<()> {
        self.set_blackhole(place, false)
    }

    /// Makes black holes at `places`, and ends all others.
    ///
    /// # Errors
    /// As [`Fabric::blackhole`].
    pub fn set_blackholes(&self, places: &[Place]) -> Result<()> {
        let mut wanted = Vec::new();
        for place in places {
            wanted.extend(self.filters(*place)?);
        }
        for port in topology::cable_ends(&self.state.name, self.shape()) {
            arrival::set_blackhole(&self.state, &port, wanted.contains(&port))?;
        }
        Ok(())
    }

    fn set_blackhole(&self, place: Place, on: bool) -> Result<()> {
        self.filters(place)?
            .iter()
            .try_for_each(|port| arrival::set_blackhole(&self.state, port, on))
    }

    /// Cuts the links of a plane (from 1); `link` says who sees what.
    ///
    /// # Errors
    /// There is no such plane, or `ip` failed.
    pub fn plane_down(&self, plane: u8) -> Result<()> {
        link::set(&self.state, plane, false)
    }

    /// Mends the links of a plane (from 1), and waits until they carry.
    ///
    /// # Errors
    /// As [`Fabric::plane_down`].
    pub fn plane_up(&self, plane: u8) -> Result<()> {
        link::set(&self.state, plane, true)
    }

    /// The planes whose links are up, from 1.
    ///
    /// # Errors
    /// `ip` failed.
    pub fn planes_up(&self) -> Result<Vec<u8>> {
        link::planes_up(&self.state)
    }
}
