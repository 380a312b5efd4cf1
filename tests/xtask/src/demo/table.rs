//! The demo's one table.

use super::contenders::Measured;
use super::{Mode, Row};

/// The table of all rows, with a note on how to read it.
pub fn render(rows: &[Row]) -> String {
    let planes = rows
        .iter()
        .filter_map(measured)
        .map(|run| run.packets_per_plane.len())
        .max()
        .unwrap_or(0);
    let mut text = format!("{:<19}{:<25}{:>7}{:>8}", "program", "path", "Gb/s", "kept");
    for plane in 1..=planes {
        text.push_str(&format!("{:>10}", format!("plane {plane}")));
    }
    text.push_str(&format!("{:>15}\n", "retransmitted"));
    for row in rows {
        text.push_str(&line(row, rows, planes));
        text.push('\n');
    }
    text.push_str(
        "kept: of the same program's rate without loss with single packets. planes: data packets on each.\n",
    );
    text
}

fn measured(row: &Row) -> Option<&Measured> {
    row.result.as_ref().ok()
}

fn line(row: &Row, rows: &[Row], planes: usize) -> String {
    let mut text = format!("{:<19}{:<25}", row.contender.title(), row.mode.title());
    let Some(run) = measured(row) else {
        text.push_str(" failed");
        return text;
    };
    text.push_str(&format!(
        "{:>7.2}{:>8}",
        run.gigabits_per_second,
        kept(row, rows)
    ));
    for plane in 0..planes {
        text.push_str(&format!(
            "{:>10}",
            or_dash(run.packets_per_plane.get(plane).copied())
        ));
    }
    text.push_str(&format!("{:>15}", or_dash(run.retransmissions)));
    text
}

/// The share of the rate without loss in the same mode, where packets travel alone.
fn kept(row: &Row, rows: &[Row]) -> String {
    let reference = rows.iter().find(|other| {
        other.contender == row.contender && other.mode == Mode::PerPacket { loss_ppm: 0 }
    });
    match (row.mode, measured(row), reference.and_then(measured)) {
        (Mode::PerPacket { .. }, Some(run), Some(reference))
            if reference.gigabits_per_second > 0.0 =>
        {
            format!(
                "{:.1} %",
                100.0 * run.gigabits_per_second / reference.gigabits_per_second
            )
        }
        _ => "-".to_owned(),
    }
}

fn or_dash(number: Option<u64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::contenders::Contender;
    use super::*;

    fn row(mode: Mode, rate: f64) -> Row {
        let run = Measured {
            gigabits_per_second: rate,
            packets_per_plane: vec![5, 6],
            retransmissions: None,
        };
        Row {
            contender: Contender::RdmaWrite,
            mode,
            result: Ok(run),
        }
    }

    #[test]
    fn kept_is_judged_against_the_same_mode() {
        let rows = [
            row(Mode::Trains, 20.0),
            row(Mode::PerPacket { loss_ppm: 0 }, 10.0),
            row(Mode::PerPacket { loss_ppm: 10_000 }, 9.0),
        ];
        let table = render(&rows);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[1].contains("20.00       -"), "{table}");
        assert!(
            lines[3].contains("90.0 %") && lines[3].contains("1 % loss"),
            "{table}"
        );
        assert!(
            lines[0].contains("plane 2") && lines[3].ends_with('-'),
            "{table}"
        );
    }

    #[test]
    fn a_failed_run_has_a_row() {
        let failed = Row {
            result: Err(anyhow::anyhow!("x")),
            ..row(Mode::Trains, 0.0)
        };
        assert!(render(&[failed]).contains("failed"));
    }
}
