//! The rules of nftables, as `nft -j list ruleset` tells them (libnftables-json(5)).

use super::rules::{Chain, Condition, Rule, Rules, Verdict, Way};
use serde_json::Value;
use std::collections::HashMap;
use std::ops::RangeInclusive;

/// Protocols above IP that are not UDP.
const OTHER_PROTOCOLS: [&str; 7] = ["tcp", "sctp", "dccp", "udplite", "icmp", "icmpv6", "igmp"];

/// Adds the chains of `listing` to `rules`; `None` if it is no such document.
pub(super) fn read(listing: &str, rules: &mut Rules) -> Option<()> {
    // Warnings may stand in front of it.
    let mut documents = listing.lines().filter(|line| line.starts_with('{'));
    let document: Value = documents.find_map(|line| serde_json::from_str(line).ok())?;
    let objects = document.get("nftables")?.as_array()?;
    let mut sets = HashMap::new();
    for set in objects.iter().filter_map(|object| object.get("set")) {
        sets.insert((table_of(set), word(set, "name")), &set["elem"]);
    }
    for chain in objects.iter().filter_map(|object| object.get("chain")) {
        add_chain(chain, rules);
    }
    for rule in objects.iter().filter_map(|object| object.get("rule")) {
        let chain = chain_name(rule, word(rule, "chain"));
        if let Some(place) = rules.chains.get_mut(&chain) {
            place.rules.extend(read_rule(rule, &chain, &sets));
        }
    }
    Some(())
}

type Sets<'a> = HashMap<(String, &'a str), &'a Value>;

fn word<'a>(object: &'a Value, key: &str) -> &'a str {
    object[key].as_str().unwrap_or_default()
}

fn table_of(object: &Value) -> String {
    format!("{} {}", word(object, "family"), word(object, "table"))
}

fn chain_name(object: &Value, chain: &str) -> String {
    format!("nftables chain {} {chain}", table_of(object))
}

fn add_chain(chain: &Value, rules: &mut Rules) {
    let conditions = match word(chain, "family") {
        "inet" => Vec::new(),
        "ip" => vec![Condition::Ipv6(false)],
        "ip6" => vec![Condition::Ipv6(true)],
        "netdev" => vec![match chain["dev"].is_null() {
            // Older versions do not tell.
            true => Condition::Unknown,
            false => Condition::Interface(Way::In, strings(&chain["dev"]), true),
        }],
        _ => return,
    };
    let hook = match word(chain, "hook") {
        "ingress" | "prerouting" | "input" => Some(Way::In),
        "output" | "postrouting" | "egress" => Some(Way::Out),
        _ => None,
    };
    let chain_of_rules = Chain {
        hook,
        conditions,
        drops: word(chain, "policy") == "drop",
        rules: Vec::new(),
    };
    let name = chain_name(chain, word(chain, "name"));
    rules.chains.insert(name, chain_of_rules);
}

/// One rule, or several where it has a map of verdicts.
fn read_rule(rule: &Value, chain: &str, sets: &Sets<'_>) -> Vec<Rule> {
    let table = table_of(rule);
    let handle = rule["handle"].as_u64().unwrap_or_default();
    let make = |conditions: Vec<Condition>, verdict| Rule {
        conditions,
        verdict,
        name: format!("rule {handle} of {chain}"),
        cure: format!(
            "nft delete rule {table} {} handle {handle} (as root)",
            word(rule, "chain")
        ),
    };
    let verdict_of = |statement: &Value| {
        let target = |key: &str| chain_name(rule, word(&statement[key], "target"));
        let (key, _) = statement.as_object()?.iter().next()?;
        Some(match key.as_str() {
            "drop" | "reject" => Verdict::Drop,
            "accept" => Verdict::Accept,
            "return" => Verdict::Return,
            "jump" => Verdict::Jump(target("jump")),
            "goto" => Verdict::Goto(target("goto")),
            _ => return None,
        })
    };
    let mut conditions = Vec::new();
    let mut made = Vec::new();
    for statement in rule["expr"].as_array().into_iter().flatten() {
        if let Some(verdict) = verdict_of(statement) {
            made.push(make(std::mem::take(&mut conditions), verdict));
            break;
        }
        let Some((key, value)) = statement.as_object().and_then(|one| one.iter().next()) else {
            continue;
        };
        match key.as_str() {
            "match" => conditions.push(read_match(value, &table, sets)),
            "vmap" => {
                let map = &value["data"];
                let named = map.as_str().and_then(|name| name.strip_prefix('@'));
                let pairs = match named {
                    Some(name) => sets.get(&(table.clone(), name)).copied(),
                    None => map.get("set"),
                };
                for pair in pairs.and_then(Value::as_array).into_iter().flatten() {
                    let condition = condition(&value["key"], &pair[0], true, &table, sets);
                    let with_it = [&conditions[..], &[condition]].concat();
                    made.extend(verdict_of(&pair[1]).map(|verdict| make(with_it, verdict)));
                }
            }
            // They do something, and decide nothing.
            "counter" | "log" | "mangle" | "notrack" | "last" => {}
            // `limit`, `xt` (a rule of iptables) and others.
            _ => conditions.push(Condition::Unknown),
        }
    }
    made
}

fn read_match(of: &Value, table: &str, sets: &Sets<'_>) -> Condition {
    let (left, right) = (&of["left"], &of["right"]);
    let number = right.as_u64().and_then(|port| u16::try_from(port).ok());
    match (word(of, "op"), number) {
        ("==" | "in", _) => condition(left, right, true, table, sets),
        ("!=", _) => condition(left, right, false, table, sets),
        ("<", Some(port)) if is_port(left) => ports(0..=port.saturating_sub(1)),
        ("<=", Some(port)) if is_port(left) => ports(0..=port),
        (">", Some(port)) if is_port(left) => ports(port.saturating_add(1)..=u16::MAX),
        (">=", Some(port)) if is_port(left) => ports(port..=u16::MAX),
        _ => Condition::Unknown,
    }
}

fn ports(range: RangeInclusive<u16>) -> Condition {
    Condition::Ports(vec![range], true)
}

fn is_port(left: &Value) -> bool {
    let payload = &left["payload"];
    matches!(word(payload, "protocol"), "udp" | "th") && word(payload, "field") == "dport"
}

/// `left` is `right`, or one of its elements (or is not).
fn condition(left: &Value, right: &Value, wanted: bool, table: &str, sets: &Sets<'_>) -> Condition {
    let named = right.as_str().and_then(|name| name.strip_prefix('@'));
    let right = match named {
        None => right,
        Some(name) => match sets.get(&(table.to_owned(), name)) {
            Some(elements) => *elements,
            None => return Condition::Unknown,
        },
    };
    if is_port(left) {
        return port_ranges(right).map_or(Condition::Unknown, |ranges| {
            Condition::Ports(ranges, wanted)
        });
    }
    let (meta, payload) = (word(&left["meta"], "key"), &left["payload"]);
    match (meta, word(payload, "protocol"), word(payload, "field")) {
        ("l4proto", ..) | (_, "ip", "protocol") | (_, "ip6", "nexthdr") => {
            let udp = strings(right)
                .iter()
                .any(|name| name == "udp" || name == "17");
            Condition::Udp(udp == wanted)
        }
        ("nfproto", ..) => Condition::Ipv6((word_of(right) == "ipv6") == wanted),
        ("iif" | "iifname", ..) => Condition::Interface(Way::In, strings(right), wanted),
        ("oif" | "oifname", ..) => Condition::Interface(Way::Out, strings(right), wanted),
        (_, protocol, _) if OTHER_PROTOCOLS.contains(&protocol) => Condition::Udp(false),
        _ => Condition::Unknown,
    }
}

fn word_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A value, or those of a set.
fn elements(value: &Value) -> Vec<&Value> {
    let list = value.get("set").unwrap_or(value);
    match list {
        Value::Array(all) => all.iter().map(plain).collect(),
        one => vec![plain(one)],
    }
}

/// An element without its timeout or comment.
fn plain(element: &Value) -> &Value {
    let inner = element.get("elem").and_then(|inner| inner.get("val"));
    inner.unwrap_or(element)
}

fn strings(value: &Value) -> Vec<String> {
    let text = |one: &Value| match one {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    elements(value).into_iter().map(text).collect()
}

fn port_ranges(value: &Value) -> Option<Vec<RangeInclusive<u16>>> {
    let port = |value: &Value| u16::try_from(value.as_u64()?).ok();
    let range = |value: &Value| match value.get("range") {
        Some(bounds) => Some(port(&bounds[0])?..=port(&bounds[1])?),
        None => port(value).map(|port| port..=port),
    };
    elements(value).into_iter().map(range).collect()
}
