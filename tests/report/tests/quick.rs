//! The whole page from small runs: everything is on it, nothing else, and twice the same.

use std::fs;
use std::path::Path;

use metaroce_report::{Extent, write};

fn page(name: &str) -> String {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(name)
        .join("index.html");
    let mut told = Vec::new();
    let mut tell = |section: &str| told.push(section.to_owned());
    write(&out, &Extent::quick(5), &mut tell).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(told.len() >= 6, "{told:?}");
    fs::read_to_string(out).expect("it was written")
}

#[test]
fn the_page_has_plots_figures_and_commands_and_depends_on_nothing_but_the_seed() {
    let page = page("first");
    let titles = [
        "Throughput against loss",
        "Incast of 8",
        "A plane dies",
        "Planes",
        "Ring all-reduce, 1 MiB",
        "All-to-all, 1 MiB",
    ];
    for title in titles {
        assert!(page.contains(&format!("\">{title}</h2>")), "{title}");
    }
    let count = |what: &str| page.matches(what).count();
    // An incast has two plots.
    let counts = (count("<svg"), count("</svg>"), count("<table>"));
    assert_eq!(counts, (7, 7, 6));
    assert!(count("<polyline") > 20 && count("<rect") > 30);
    let commands = [
        "cargo xtask sim loss --loss 0.01 --rtt-us 10 --burst 1 --transport rocev2 --seed 5<",
        "cargo xtask sim incast --senders 8 --rtt-us 10 --seed 5<",
        "cargo xtask sim collective --kind allreduce --bytes 1048576 --nodes 16 --world loss0.1 --transport rocev2 --pfc --seed 5\n",
    ];
    for command in commands {
        assert!(page.contains(command), "{command}");
    }
    // What never ends is told, and nothing else is missing.
    assert!(page.contains("never") && !page.contains("NaN"));
    // Nothing comes from elsewhere.
    let outside = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!outside.contains("http"), "the page asks for something");
    assert_eq!(page, self::page("second"));
}
