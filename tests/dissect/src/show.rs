//! Packets as text: one line, all fields one a line, or a JSON object.

use std::fmt::Write as _;
use std::net::Ipv6Addr;

use metaroce_proto::wire::Stamp;
use metaroce_proto::wire::fields::{Field, Kind, Value, What};
use serde_json::{Map, json};

use crate::datagram::ECN_CE;
use crate::packet::{Seen, Verdict};

/// The time of the first frame of the file is 0 in texts.
pub fn line(seen: &Seen<'_>, first_ns: u64) -> String {
    let number = if seen.parts > 1 {
        format!("{}.{}", seen.frame, seen.part)
    } else {
        seen.frame.to_string()
    };
    let since_ns = seen.time_ns.saturating_sub(first_ns);
    let mut line = format!(
        "{number:>8} {:>13.6}  {} > {}  ",
        since_ns as f64 / 1e9,
        seen.source,
        seen.destination
    );
    let _ = match &seen.verdict {
        Verdict::Good(packet) => write!(line, "{packet}"),
        Verdict::Cut => write!(
            line,
            "cut: {} of {} bytes were captured",
            seen.captured,
            seen.bytes.len()
        ),
        Verdict::Bad(error) => write!(line, "no packet: {error}, {} bytes", seen.bytes.len()),
    };
    if seen.ecn == ECN_CE {
        line.push_str(" CE");
    }
    if seen.good().is_some() && seen.is_cut() {
        let _ = write!(
            line,
            " ({} of {} bytes were captured)",
            seen.captured,
            seen.bytes.len()
        );
    }
    line
}

/// All fields, under the names that Wireshark's filters have for them.
pub fn details(seen: &Seen<'_>) -> String {
    let mut text = String::new();
    for found in &seen.found {
        let indent = 4 + 2 * found.depth;
        let _ = match found.what {
            What::Begin => writeln!(text, "{:indent$}{}", "", found.layout.title),
            What::Field(field, value) => {
                if matches!(field.kind, Kind::Reserved) && value == Value::Number(0) {
                    continue;
                }
                let name = found.layout.full_name(field.name);
                let width = 46_usize.saturating_sub(indent);
                writeln!(text, "{:indent$}{name:<width$} {}", "", show(field, value))
            }
            What::Raw(raw, bytes) => {
                let name = found.layout.full_name(raw.name);
                let width = 46_usize.saturating_sub(indent);
                writeln!(text, "{:indent$}{name:<width$} {} B", "", bytes.len())
            }
            What::Problem(problem) => writeln!(
                text,
                "{:indent$}!! byte {}, {}: {problem}",
                "", found.at, found.layout.title
            ),
        };
    }
    text
}

/// The value of a field, with what its kind adds to the number.
fn show(field: &Field, value: Value) -> String {
    let number = match value {
        Value::Gid(gid) => return Ipv6Addr::from(gid).to_string(),
        Value::Number(number) => number,
    };
    let all_ones = u64::MAX >> (64 - field.bits.min(64));
    let digits = 2 + field.bits.div_ceil(4);
    match field.kind {
        Kind::Number("") => number.to_string(),
        Kind::Number(unit) => format!("{number} {unit}"),
        Kind::Hex | Kind::Qpn | Kind::Checksum | Kind::Reserved | Kind::Gid => {
            format!("{number:#0digits$x}")
        }
        Kind::Flags(flags) => {
            let set: Vec<&str> = flags
                .iter()
                .filter(|(mask, _)| number & u64::from(*mask) != 0)
                .map(|(_, name)| *name)
                .collect();
            format!("{number:#0digits$x} {}", set.join("+"))
                .trim_end()
                .to_owned()
        }
        Kind::Choice(values) | Kind::Open(values) => {
            let name = values.iter().find(|(defined, _)| *defined == number);
            format!("{number} ({})", name.map_or("?", |(_, name)| name))
        }
        Kind::Stamp => format!("{number} ({:.6} s)", (number * Stamp::UNIT_NS) as f64 / 1e9),
        Kind::AckDelay if number == all_ones => "no sample".to_owned(),
        Kind::AckDelay => format!("{number} ({} ns)", number * Stamp::UNIT_NS),
        Kind::Grant if number == all_ones => "no limit".to_owned(),
        Kind::Grant => format!("{number} KiB/s"),
    }
}

/// A JSON object. Field names are those of Wireshark's filters; a field that occurs more than once has an array,
/// in the order of the wire. Bytes without fields (payload, padding) are told by their number.
pub fn object(seen: &Seen<'_>) -> serde_json::Value {
    let mut fields: Map<String, serde_json::Value> = Map::new();
    let mut problems = Vec::new();
    for found in &seen.found {
        let (name, value) = match found.what {
            What::Field(field, Value::Number(number)) => (field.name, json!(number)),
            What::Field(field, Value::Gid(gid)) => {
                (field.name, json!(Ipv6Addr::from(gid).to_string()))
            }
            What::Raw(raw, bytes) => (raw.name, json!(bytes.len())),
            What::Problem(problem) => {
                problems.push(json!({
                    "byte": found.at,
                    "in": found.layout.title,
                    "what": problem.to_string(),
                }));
                continue;
            }
            What::Begin => continue,
        };
        match fields.entry(found.layout.full_name(name)) {
            serde_json::map::Entry::Vacant(entry) => {
                entry.insert(value);
            }
            serde_json::map::Entry::Occupied(mut entry) => match entry.get_mut() {
                serde_json::Value::Array(values) => values.push(value),
                single => *single = json!([single.take(), value]),
            },
        }
    }
    let mut object = json!({
        "frame": seen.frame,
        "part": seen.part,
        "parts": seen.parts,
        "time_ns": seen.time_ns,
        "source": seen.source.to_string(),
        "destination": seen.destination.to_string(),
        "ecn": seen.ecn,
        "bytes": seen.bytes.len(),
        "captured": seen.captured,
        "kinds": seen.kinds(),
        "fields": fields,
    });
    match &seen.verdict {
        Verdict::Good(_) => {}
        Verdict::Cut => object["error"] = json!("cut"),
        Verdict::Bad(error) => object["error"] = json!(error.name()),
    }
    if !problems.is_empty() && !matches!(seen.verdict, Verdict::Cut) {
        object["problems"] = json!(problems);
    }
    object
}
