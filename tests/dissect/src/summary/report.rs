//! The summary as text and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Connection, Path, Serial, Summary};

impl Summary {
    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let seconds = self.duration_ns() as f64 / 1e9;
        let mut text = format!(
            "{} frames, {} of metaroce with {} packets in {seconds:.6} s\n",
            self.frames, self.ours, self.packets
        );
        for (cause, count) in &self.bad {
            let _ = writeln!(text, "{count} packets would be dropped: {cause}");
        }
        if self.cut > 0 {
            let _ = writeln!(
                text,
                "{} packets were cut off by the capture; trains that were are counted as one packet",
                self.cut
            );
        }
        if self.others > 0 {
            let _ = writeln!(text, "{} packets of further connections", self.others);
        }
        for connection in &self.connections {
            connection.text(&mut text);
        }
        text
    }

    /// For programs.
    #[must_use]
    pub fn object(&self) -> Value {
        json!({
            "frames": self.frames,
            "frames_of_metaroce": self.ours,
            "packets": self.packets,
            "duration_ns": self.duration_ns(),
            "bad": self.bad,
            "cut": self.cut,
            "others": self.others,
            "connections": self.connections.iter().map(Connection::object).collect::<Vec<_>>(),
        })
    }

    fn duration_ns(&self) -> u64 {
        self.last_ns
            .saturating_sub(self.first_ns.unwrap_or(self.last_ns))
    }
}

impl Connection {
    fn text(&self, text: &mut String) {
        let _ = write!(
            text,
            "\nconnection {:#010x}, {} > {}: {} packets",
            self.id,
            self.source.ip(),
            self.destination,
            self.packets
        );
        let _ = match self.peer {
            Some(peer) => writeln!(text, ", acknowledged in {peer:#010x}"),
            None => writeln!(text),
        };
        if !self.items.is_empty() {
            let items: Vec<String> = self
                .items
                .iter()
                .map(|(kind, count)| format!("{count} {kind}"))
                .collect();
            let _ = writeln!(text, "  control: {}", items.join(", "));
        }
        if let Some((first, last)) = self.acks.range() {
            let _ = writeln!(
                text,
                "  {} ACKs, numbers {first} to {last}, {} missing, {} late, {} twice",
                self.ack_packets,
                self.acks.missing(),
                self.acks.late,
                self.acks.again
            );
        }
        if self.paths.is_empty() {
            return;
        }
        let _ = writeln!(
            text,
            "  path  packets     MB  retrans  bare  moves     CE  missing   late  twice        PSNs  RTT us: least  median    most  samples"
        );
        for (number, path) in &self.paths {
            path.text(*number, text);
        }
    }

    fn object(&self) -> Value {
        json!({
            "id": self.id,
            "source": self.source.ip().to_string(),
            "destination": self.destination.to_string(),
            "peer": self.peer,
            "packets": self.packets,
            "items": self.items,
            "acks": self.ack_packets,
            "ack_numbers": self.acks.object(),
            "paths": self.paths.iter().map(|(number, path)| path.object(*number)).collect::<Vec<_>>(),
        })
    }
}

impl Path {
    fn text(&self, number: u8, text: &mut String) {
        let psns = match self.psns.range() {
            Some((first, last)) => format!("{first}..{last}"),
            None => "-".to_owned(),
        };
        let _ = write!(
            text,
            "  {number:>4} {:>8} {:>6.1} {:>8} {:>5} {:>6} {:>6} {:>8} {:>6} {:>6} {psns:>11}",
            self.packets,
            self.payload_bytes as f64 / 1e6,
            self.retransmitted,
            self.bare,
            self.moves,
            self.marked,
            self.psns.missing(),
            self.psns.late,
            self.psns.again
        );
        let _ = match self.round_trips() {
            Some(trips) => writeln!(
                text,
                "  {:>13.1} {:>7.1} {:>7.1} {:>8}",
                trips.least_ns as f64 / 1e3,
                trips.median_ns as f64 / 1e3,
                trips.most_ns as f64 / 1e3,
                trips.samples
            ),
            None => writeln!(text),
        };
    }

    fn object(&self, number: u8) -> Value {
        let trips = self.round_trips().map(|trips| {
            json!({
                "samples": trips.samples,
                "least_ns": trips.least_ns,
                "median_ns": trips.median_ns,
                "most_ns": trips.most_ns,
            })
        });
        json!({
            "path": number,
            "packets": self.packets,
            "payload_bytes": self.payload_bytes,
            "retransmitted": self.retransmitted,
            "bare": self.bare,
            "moves": self.moves,
            "ce_marked": self.marked,
            "acknowledged": self.acknowledged,
            "psns": self.psns.object(),
            "round_trips": trips,
        })
    }
}

impl Serial {
    fn object(&self) -> Value {
        json!({
            "first": self.range().map(|range| range.0),
            "last": self.range().map(|range| range.1),
            "missing": self.missing(),
            "late": self.late,
            "again": self.again,
            "jumps": self.jumps,
        })
    }
}
