//! The rules of iptables, as `iptables -S` and `ip6tables -S` print them.

use super::rules::{Chain, Condition, Rule, Rules, Verdict, Way};
use std::ops::RangeInclusive;

/// Adds the chains of the table `filter` to `rules`.
pub(super) fn read(listing: &str, ipv6: bool, rules: &mut Rules) {
    let program = if ipv6 { "ip6tables" } else { "iptables" };
    let name_of = |chain: &str| format!("{program} chain {chain}");
    let lines: Vec<Vec<String>> = listing.lines().map(words).collect();
    for line in &lines {
        let (kind, name) = match &line[..] {
            [kind, name, ..] => (kind.as_str(), name),
            _ => continue,
        };
        let hook = match name.as_str() {
            "INPUT" => Some(Way::In),
            "OUTPUT" => Some(Way::Out),
            _ => None,
        };
        if matches!(kind, "-P" | "-N") {
            let chain = Chain {
                hook,
                conditions: vec![Condition::Ipv6(ipv6)],
                drops: line.get(2).is_some_and(|policy| policy == "DROP"),
                rules: Vec::new(),
            };
            rules.chains.insert(name_of(name), chain);
        }
    }
    for (line, text) in lines.iter().zip(listing.lines()) {
        let [kind, name, options @ ..] = &line[..] else {
            continue;
        };
        let is_chain = |target: &str| rules.chains.contains_key(&name_of(target));
        let Some((conditions, target, goes)) = read_options(options) else {
            continue;
        };
        let verdict = match target.as_str() {
            _ if goes => Verdict::Goto(name_of(&target)),
            "DROP" | "REJECT" => Verdict::Drop,
            "ACCEPT" => Verdict::Accept,
            "RETURN" => Verdict::Return,
            other if is_chain(other) => Verdict::Jump(name_of(other)),
            // LOG, MARK and others decide nothing.
            _ => continue,
        };
        if let (Some(chain), "-A") = (rules.chains.get_mut(&name_of(name)), kind.as_str()) {
            chain.rules.push(Rule {
                conditions,
                verdict,
                name: format!("{program} {text}"),
                cure: format!("{program} {} (as root)", text.replacen("-A", "-D", 1)),
            });
        }
    }
}

/// The conditions, the target, and whether it is gone to for good; `None` without a target.
fn read_options(options: &[String]) -> Option<(Vec<Condition>, String, bool)> {
    let mut conditions = Vec::new();
    let mut wanted = true;
    let mut options = options.iter().map(String::as_str);
    while let Some(option) = options.next() {
        if option == "!" {
            wanted = false;
            continue;
        }
        let was_wanted = std::mem::replace(&mut wanted, true);
        if matches!(option, "-j" | "-g") {
            return Some((conditions, options.next()?.to_owned(), option == "-g"));
        }
        let interface =
            |way, name: &str| Condition::Interface(way, vec![name.replace('+', "*")], was_wanted);
        match option {
            "-p" => {
                let protocol = options.next()?;
                conditions.push(Condition::Udp((protocol == "udp") == was_wanted));
            }
            "-i" => conditions.push(interface(Way::In, options.next()?)),
            "-o" => conditions.push(interface(Way::Out, options.next()?)),
            "--dport" | "--dports" => conditions.push(match ports(options.next()?) {
                Some(ranges) => Condition::Ports(ranges, was_wanted),
                None => Condition::Unknown,
            }),
            "-m" => match options.next()? {
                // What they ask for follows.
                "udp" | "multiport" | "comment" => {}
                _ => conditions.push(Condition::Unknown),
            },
            "--comment" => drop(options.next()),
            _ => conditions.push(Condition::Unknown),
        }
    }
    None
}

/// `53,24791:25814`
fn ports(list: &str) -> Option<Vec<RangeInclusive<u16>>> {
    let range = |part: &str| {
        let (low, high) = part.split_once(':').unwrap_or((part, part));
        Some(low.parse().ok()?..=high.parse().ok()?)
    };
    list.split(',').map(range).collect()
}

/// The words of a line; those with spaces are between quotation marks.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in line.split('"').enumerate() {
        match index % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}
