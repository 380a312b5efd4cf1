//! Firewalls: whether a rule drops or refuses what comes to the endpoints' ports, or goes to them, on any plane.
//!
//! [`nft`] and [`iptables`] read what the tools list, [`rules`] walks it. Only root may list rules; the finding says so, and
//! for others the tests of `network` that send a datagram are what there is.

mod iptables;
mod nft;
mod rules;
#[cfg(test)]
mod tests;

use super::{Finding, output_of};
use metaroce::device::Device;
use rules::{Packets, Rules, Stop, Way};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Listing the rules of a firewall.
const LISTED_WITHIN: Duration = Duration::from_secs(3);
/// Folders of such tools that a `PATH` may lack.
const FOLDERS: [&str; 2] = ["/usr/sbin", "/sbin"];

pub(super) fn check(devices: &[Device], ports: (u16, u16)) -> Vec<Finding> {
    check_firewall(&Firewall::of_host(), devices, ports)
}

/// What can be seen of a firewall.
#[derive(Debug, Default)]
pub(super) struct Firewall {
    rules: Rules,
    /// The tools that listed theirs …
    listed: Vec<&'static str>,
    /// … and those that did not, with the reason.
    unseen: Vec<String>,
    /// Managers of rules that are switched on.
    managers: Vec<&'static str>,
}

impl Firewall {
    fn of_host() -> Firewall {
        let mut firewall = Firewall::default();
        firewall.take("nft", list("nft", &["-j", "list", "ruleset"]));
        firewall.take("iptables", list("iptables", &["-S"]));
        firewall.take("ip6tables", list("ip6tables", &["-S"]));
        if fs::read_to_string("/etc/ufw/ufw.conf")
            .is_ok_and(|text| text.lines().any(|line| line.trim() == "ENABLED=yes"))
        {
            firewall.managers.push("ufw");
        }
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut comms =
            processes.filter_map(|process| fs::read_to_string(process.path().join("comm")).ok());
        if comms.any(|comm| comm.trim() == "firewalld") {
            firewall.managers.push("firewalld");
        }
        firewall
    }

    /// Takes what a tool listed, or why it did not.
    fn take(&mut self, tool: &'static str, listing: Result<String, String>) {
        let read = listing.and_then(|text| match tool {
            "nft" => nft::read(&text, &mut self.rules)
                .ok_or_else(|| "it lists no JSON, which this version may not be able to".into()),
            _ => {
                iptables::read(&text, tool == "ip6tables", &mut self.rules);
                Ok(())
            }
        });
        match read {
            Ok(()) => self.listed.push(tool),
            Err(why) => self.unseen.push(format!("{tool}: {why}")),
        }
    }

    /// The command that lets our ports pass.
    fn cure(&self, (first, last): (u16, u16)) -> String {
        match self.managers.first() {
            Some(&"ufw") => format!("ufw allow {first}:{last}/udp (as root)"),
            Some(&"firewalld") => {
                format!(
                    "firewall-cmd --permanent --add-port={first}-{last}/udp && firewall-cmd --reload (as root)"
                )
            }
            _ => format!(
                "nft add rule inet filter input udp dport {first}-{last} accept, or iptables -I INPUT -p udp --dport \
                 {first}:{last} -j ACCEPT (as root)"
            ),
        }
    }
}

/// What a tool lists.
fn list(tool: &str, arguments: &[&str]) -> Result<String, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain(FOLDERS.iter().map(Into::into));
    let found = places.find(|folder| Path::new(folder).join(tool).is_file());
    let program = found.ok_or("not installed")?.join(tool);
    let text = output_of(Command::new(program).args(arguments), LISTED_WITHIN)
        .ok_or("it does not start or hangs")?;
    // Without rights they say so and list nothing.
    let refused = ["not permitted", "Permission denied", "must be root"];
    match refused.iter().any(|words| text.contains(words)) {
        true => Err("rules are listed for root only".into()),
        false => Ok(text),
    }
}

pub(super) fn check_firewall(
    firewall: &Firewall,
    devices: &[Device],
    ports: (u16, u16),
) -> Vec<Finding> {
    let check = "firewall";
    let (stops, complete) = stops(&firewall.rules, devices, ports);
    let last = ports.0.saturating_add(ports.1.saturating_sub(1));
    let range = (ports.0, last);
    if !stops.is_empty() {
        let tell = |(stop, places): (&Stop, &Places)| tell(firewall, stop, places, range);
        return stops.iter().map(tell).collect();
    }
    let unseen = match firewall.unseen.is_empty() {
        true => String::new(),
        false => format!("; not looked at: {}", firewall.unseen.join("; ")),
    };
    if !complete {
        let text =
            "the firewall has too many rules to tell whether one drops the endpoints' packets";
        return vec![Finding::warning(check, text, "nft list ruleset (as root)")];
    }
    vec![match (&firewall.listed[..], &firewall.managers[..]) {
        ([], []) => Finding::good(check, format!("no firewall is known to be on{unseen}")),
        ([], managers) => Finding::warning(
            check,
            format!(
                "a firewall ({}) is on; whether it passes UDP ports {} to {last} could not be seen{unseen}",
                managers.join(", "),
                ports.0
            ),
            firewall.cure(range),
        ),
        (listed, _) => Finding::good(
            check,
            format!(
                "no rule of the firewall was found that drops the endpoints' packets ({}{unseen})",
                listed.join(", ")
            ),
        ),
    }]
}

/// Ways and interfaces.
type Places = BTreeSet<(Way, String)>;

/// What stops packets of each plane of each device, and whether everything was looked at.
fn stops(rules: &Rules, devices: &[Device], ports: (u16, u16)) -> (BTreeMap<Stop, Places>, bool) {
    let mut found: BTreeMap<Stop, Places> = BTreeMap::new();
    let mut complete = true;
    let addresses = devices.iter().flat_map(|device| {
        let numbered = device.addresses.iter().enumerate();
        numbered.map(|(index, ip)| (device.interface_of(index).0, matches!(ip, IpAddr::V6(_))))
    });
    let different: BTreeSet<(&str, bool)> = addresses.collect();
    for (interface, ipv6) in different {
        for way in [Way::In, Way::Out] {
            let packets = Packets {
                way,
                interface,
                ipv6,
                ports,
            };
            let (stops, all) = rules.stops(packets);
            complete &= all;
            for stop in stops {
                let places = found.entry(stop).or_default();
                places.insert((way, interface.to_owned()));
            }
        }
    }
    (found, complete)
}

fn tell(firewall: &Firewall, stop: &Stop, places: &Places, (first, last): (u16, u16)) -> Finding {
    let check = "firewall";
    let names = |wanted: Way| {
        let there = places.iter().filter(|(way, _)| *way == wanted);
        let names: Vec<&str> = there.map(|(_, name)| name.as_str()).collect();
        names.join(", ")
    };
    let by = match (names(Way::In), names(Way::Out)) {
        (into, out) if out.is_empty() => format!("comes in by {into}"),
        (into, out) if into.is_empty() => format!("goes out by {out}"),
        (into, out) => format!("comes in by {into}, or goes out by {out}"),
    };
    if !stop.about_udp {
        return Finding::warning(
            check,
            format!(
                "the firewall drops what no rule allows of what {by} ({}), and no rule names UDP ports {first} to {last}",
                stop.name
            ),
            firewall.cure((first, last)),
        );
    }
    let (from, to, count) = stop.ports;
    let ports = match count {
        1 => format!("port {from}"),
        _ => format!("{count} ports from {from} to {to}"),
    };
    let cure = match firewall.managers.is_empty() && !stop.cure.is_empty() {
        true => stop.cure.clone(),
        false => firewall.cure((first, last)),
    };
    let which = &stop.name;
    match stop.certain {
        true => Finding::bad(
            check,
            format!("the firewall drops UDP to {ports} that {by}: {which}"),
            cure,
        ),
        false => Finding::warning(
            check,
            format!(
                "the firewall may drop UDP to {ports} that {by}, on conditions that were not looked into: {which}"
            ),
            cure,
        ),
    }
}
