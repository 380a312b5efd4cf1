//! Rules of a firewall, whoever listed them, and which of them stop packets to the endpoints' ports.
//!
//! A rule is walked as the kernel walks it, for all ports at once. What a condition depends on may not be known here (the
//! sender's address, connection tracking, a rate): then the rule is one that may apply, and is told as that.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Chains called out of chains, one in the other: the kernel's limit.
const MAX_DEPTH: usize = 16;
/// Rules looked at for one packet: chains can be called from many places, over and over.
const MAX_STEPS: usize = 100_000;

/// All chains, by their names.
#[derive(Debug, Default)]
pub(super) struct Rules {
    pub(super) chains: BTreeMap<String, Chain>,
}

/// A chain.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// Which packets come to it by themselves; `None`: only those that another chain sends.
    pub(super) hook: Option<Way>,
    /// Which of these.
    pub(super) conditions: Vec<Condition>,
    /// What is left at its end is dropped.
    pub(super) drops: bool,
    pub(super) rules: Vec<Rule>,
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// To this host.
    In,
    /// From this host.
    Out,
}

/// A rule that can decide about a packet; others are left out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// All must hold.
    pub(super) conditions: Vec<Condition>,
    pub(super) verdict: Verdict,
    /// How people find it.
    pub(super) name: String,
    /// The command that removes it.
    pub(super) cure: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// UDP, or not.
    Udp(bool),
    /// UDP to one of these ports (or, if false, to none of them).
    Ports(Vec<RangeInclusive<u16>>, bool),
    /// By one of these interfaces (or by none of them), whose names may end in `*`.
    Interface(Way, Vec<String>, bool),
    /// IPv6, or IPv4.
    Ipv6(bool),
    /// Something that is not known here.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Dropped, or refused with an ICMP error.
    Drop,
    Accept,
    Return,
    /// Goes through another chain, and comes back here.
    Jump(String),
    /// Goes through another chain instead.
    Goto(String),
}

/// UDP packets that are looked for: to all ports of a range, by one interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packets<'a> {
    pub(super) way: Way,
    pub(super) interface: &'a str,
    pub(super) ipv6: bool,
    /// First port, and how many.
    pub(super) ports: (u16, u16),
}

/// What stops some of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stop {
    /// The rule, or the end of a chain.
    pub(super) name: String,
    pub(super) cure: String,
    /// First and last of the ports, and how many.
    pub(super) ports: (u16, u16, usize),
    /// It is about UDP, and not about all that comes so far.
    pub(super) about_udp: bool,
    /// It stops all packets to these ports; else some, on conditions that are not known.
    pub(super) certain: bool,
}

impl Rules {
    /// What stops `packets`; and whether everything was looked at.
    pub(super) fn stops(&self, packets: Packets<'_>) -> (Vec<Stop>, bool) {
        let mut walk = Walk {
            rules: self,
            packets,
            steps: 0,
            let_pass: vec![false; usize::from(packets.ports.1)],
            stops: Vec::new(),
        };
        for (name, chain) in &self.chains {
            if chain.hook != Some(packets.way) {
                continue;
            }
            let Some(here) = packets.meet(&chain.conditions) else {
                continue;
            };
            walk.let_pass.fill(false);
            let mut open = here.ports.clone();
            walk.chain(name, &mut open, here.certain, false, 0);
            if chain.drops {
                let cure = String::new();
                walk.stop(&format!("the policy of {name}"), &cure, &open, &here);
            }
        }
        (walk.stops, walk.steps < MAX_STEPS)
    }
}

/// Which of the packets conditions hold for.
struct Met {
    /// By the place of the port in the range.
    ports: Vec<bool>,
    about_udp: bool,
    certain: bool,
}

impl Packets<'_> {
    /// `None`: for none.
    fn meet(&self, conditions: &[Condition]) -> Option<Met> {
        let (first, count) = self.ports;
        let mut met = Met {
            ports: vec![true; usize::from(count)],
            about_udp: false,
            certain: true,
        };
        for condition in conditions {
            match condition {
                Condition::Udp(true) => met.about_udp = true,
                Condition::Udp(false) => return None,
                Condition::Ports(ranges, wanted) => {
                    met.about_udp = true;
                    for (port, is) in (first..=u16::MAX).zip(&mut met.ports) {
                        *is &= ranges.iter().any(|range| range.contains(&port)) == *wanted;
                    }
                }
                Condition::Interface(way, names, wanted) => {
                    let is_it = |name: &String| match name.strip_suffix('*') {
                        Some(start) => self.interface.starts_with(start),
                        None => self.interface == name,
                    };
                    if *way == self.way && names.iter().any(is_it) != *wanted {
                        return None;
                    }
                    met.certain &= *way == self.way;
                }
                Condition::Ipv6(ipv6) if *ipv6 != self.ipv6 => return None,
                Condition::Ipv6(_) => {}
                Condition::Unknown => met.certain = false,
            }
        }
        met.ports.contains(&true).then_some(met)
    }
}

struct Walk<'a> {
    rules: &'a Rules,
    packets: Packets<'a>,
    steps: usize,
    /// Ports that a rule about UDP accepts on conditions: whoever wrote it has thought of them.
    let_pass: Vec<bool>,
    stops: Vec<Stop>,
}

impl Walk<'_> {
    /// Takes out of `open` what the chain decides. `certain` and `about_udp`: of the rules that led here.
    fn chain(
        &mut self,
        name: &str,
        open: &mut [bool],
        certain: bool,
        about_udp: bool,
        depth: usize,
    ) {
        let Some(chain) = self.rules.chains.get(name).filter(|_| depth < MAX_DEPTH) else {
            return;
        };
        let mut here = open.to_vec();
        for rule in &chain.rules {
            self.steps += 1;
            if self.steps >= MAX_STEPS {
                return;
            }
            let Some(mut met) = self.packets.meet(&rule.conditions) else {
                continue;
            };
            let certain_here = met.certain;
            met.certain &= certain;
            met.about_udp |= about_udp;
            keep(&mut met.ports, &here, true);
            if !met.ports.contains(&true) {
                continue;
            }
            match &rule.verdict {
                Verdict::Drop => {
                    self.stop(&rule.name, &rule.cure, &met.ports.clone(), &met);
                    decide(&met, [&mut *open, &mut here]);
                }
                Verdict::Accept => {
                    if !met.certain && met.about_udp {
                        for (passes, is) in self.let_pass.iter_mut().zip(&met.ports) {
                            *passes |= is;
                        }
                    }
                    decide(&met, [&mut *open, &mut here]);
                }
                Verdict::Return if certain_here => keep(&mut here, &met.ports, false),
                Verdict::Return => {}
                Verdict::Jump(to) | Verdict::Goto(to) => {
                    let mut left = met.ports.clone();
                    self.chain(to, &mut left, met.certain, met.about_udp, depth + 1);
                    let mut decided = met.ports.clone();
                    keep(&mut decided, &left, false);
                    keep(open, &decided, false);
                    keep(&mut here, &decided, false);
                    if certain_here && matches!(rule.verdict, Verdict::Goto(_)) {
                        keep(&mut here, &met.ports, false);
                    }
                }
            }
        }
    }

    /// What is not about UDP and may not apply, such as one bad sender, is nobody's trouble.
    fn stop(&mut self, name: &str, cure: &str, ports: &[bool], met: &Met) {
        let mut ports = ports.to_vec();
        keep(&mut ports, &self.let_pass, false);
        let numbered = (self.packets.ports.0..=u16::MAX).zip(ports);
        let stopped: Vec<u16> = numbered
            .filter_map(|(port, is)| is.then_some(port))
            .collect();
        let (Some(first), Some(last)) = (stopped.first(), stopped.last()) else {
            return;
        };
        if met.certain || met.about_udp {
            self.stops.push(Stop {
                name: name.to_owned(),
                cure: cure.to_owned(),
                ports: (*first, *last, stopped.len()),
                about_udp: met.about_udp,
                certain: met.certain,
            });
        }
    }
}

/// A certain verdict leaves nothing to what comes after.
fn decide(met: &Met, sets: [&mut [bool]; 2]) {
    if met.certain {
        for set in sets {
            keep(set, &met.ports, false);
        }
    }
}

/// Leaves in `set` what is in `other`, or what is not.
fn keep(set: &mut [bool], other: &[bool], wanted: bool) {
    for (is, other) in set.iter_mut().zip(other) {
        *is &= *other == wanted;
    }
}
