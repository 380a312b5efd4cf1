//! The page: text, plots, tables and commands as HTML, everything in one file. Called by `lib.rs`.

use std::fmt::Write as _;

use crate::Extent;
use crate::runs::Run;

/// A part of the page.
pub(crate) struct Section {
    pub(crate) title: String,
    /// What is seen, and how it was made.
    pub(crate) text: String,
    /// SVGs, each with a line above it.
    pub(crate) plots: Vec<(String, String)>,
    pub(crate) table: Table,
    pub(crate) runs: Vec<Run>,
}

/// Figures.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

const STYLE: &str = "\
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 3rem; border-top: 1px solid #ddd; padding-top: 1rem; }
svg { max-width: 100%; height: auto; display: block; } h3 { font-size: 1rem; margin: 1.2rem 0 .2rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #eee; } th:first-child, td:first-child { text-align: left; }
pre { background: #f6f6f6; padding: .6rem .8rem; overflow-x: auto; font-size: .85rem; } summary { cursor: pointer; color: #555; }
nav a { margin-right: 1rem; }
";

/// The whole page.
pub(crate) fn page(sections: &[Section], extent: &Extent) -> String {
    let mut out = String::new();
    out += "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
    out += "<meta name=\"viewport\" content=\"width=device-width\">\n<title>metaroce in the simulator</title>\n";
    let _ = write!(out, "<style>\n{STYLE}</style>\n</head>\n<body>\n");
    out += "<h1>metaroce in the simulator</h1>\n";
    let _ = writeln!(
        out,
        "<p>The transport's own code, in virtual time. Links have 100 Gb/s, packets 4 KiB of payload (4226 bytes on the wire: \
         0.338 µs), ports of switches a queue of 1 MiB that marks packets (ECN) when more than 130 kB wait, and nothing pauses a \
         link. Round trips, for a packet of no length, are named with each plot. Hosts take no time and are never late; a \
         connection has 16 paths. RoCEv2 is a model of NICs in the same fabric: one path for each queue pair, go-back-N, DCQCN, \
         the same payload (4178 bytes on the wire), timeouts of 0.5 ms; “endless queues” never drop, as under PFC, and pause \
         nobody. Everything comes from the seed, {}: the commands under a plot give its figures again.</p>",
        extent.seed
    );
    out += "<nav>";
    for (at, section) in sections.iter().enumerate() {
        let _ = write!(out, "<a href=\"#s{at}\">{}</a>", escaped(&section.title));
    }
    out += "</nav>\n";
    for (at, section) in sections.iter().enumerate() {
        add_section(&mut out, at, section);
    }
    out += "</body>\n</html>\n";
    out
}

fn add_section(out: &mut String, at: usize, section: &Section) {
    let _ = write!(
        out,
        "<h2 id=\"s{at}\">{}</h2>\n<p>",
        escaped(&section.title)
    );
    let _ = writeln!(out, "{}</p>", escaped(&section.text));
    for (title, svg) in &section.plots {
        let _ = write!(out, "<h3>{}</h3>\n{svg}\n", escaped(title));
    }
    add_table(out, &section.table);
    let commands: Vec<&str> = section
        .runs
        .iter()
        .map(|run| run.command.as_str())
        .collect();
    let count = match commands.len() {
        1 => "1 run".to_owned(),
        count => format!("{count} runs"),
    };
    // A long list is there, and folded.
    let open = if commands.len() <= 4 { " open" } else { "" };
    let _ = writeln!(
        out,
        "<details{open}><summary>{count}</summary><pre>{}</pre></details>",
        escaped(&commands.join("\n"))
    );
}

fn add_table(out: &mut String, table: &Table) {
    if table.rows.is_empty() {
        return;
    }
    out.push_str("<table>\n<tr>");
    for cell in &table.head {
        let _ = write!(out, "<th>{}</th>", escaped(cell));
    }
    out.push_str("</tr>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for cell in row {
            let _ = write!(out, "<td>{}</td>", escaped(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table>\n");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
