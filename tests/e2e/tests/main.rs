//! The end-to-end suite: every case of `cases/` as a test of one binary, run one after the other.
//!
//! `cargo test -p metaroce-e2e --test main [FILTER]` runs it; `cargo xtask test` does so after building the
//! product. A case whose needs are not met is ignored with the reason. `METAROCE_E2E_QUICK=1` leaves out
//! the slow cases.

mod cases;

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use metaroce_e2e::interrupt;

use cases::{Bench, Case};

/// Set to 1 to leave out the slow cases.
const QUICK_VARIABLE: &str = "METAROCE_E2E_QUICK";

/// What a case gets beyond its limit to stop its programs and remove its fabric.
const CLEAN_UP_WITHIN: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    interrupt::install();
    let mut arguments = Arguments::from_args();
    // One after the other: the machine has few cores, and a case that starves fails for nothing.
    arguments.test_threads.get_or_insert(1);
    let quick = std::env::var(QUICK_VARIABLE).is_ok_and(|value| value == "1");
    let trials = cases::all()
        .into_iter()
        .map(|case| trial(case, quick))
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(case: Case, quick: bool) -> Trial {
    Trial::ignorable_test(case.name.clone(), move || {
        run(&case, quick).map_err(Failed::from)
    })
}

fn run(case: &Case, quick: bool) -> Result<Completion, String> {
    interrupt::check().map_err(|error| error.to_string())?;
    if quick && case.slow {
        return Ok(Completion::ignored_with("slow: not in a quick run"));
    }
    if let Some(reason) = case.needs.iter().find_map(|need| need.unmet()) {
        return Ok(Completion::ignored_with(reason));
    }
    let _watchdog = Watchdog::new(&case.name, case.limit + CLEAN_UP_WITHIN);
    match (case.run)(&Bench::new(case.limit)) {
        Ok(()) => Ok(Completion::Completed),
        Err(error) => Err(format!("{error:#}")),
    }
}

/// Ends the whole run if a case hangs in spite of the limits of its programs; the kernel then kills its
/// programs, and the next run removes its fabric.
struct Watchdog {
    _alive: mpsc::Sender<()>,
}

impl Watchdog {
    fn new(name: &str, limit: Duration) -> Self {
        let (alive, dropped) = mpsc::channel::<()>();
        let name = name.to_owned();
        std::thread::spawn(move || {
            if dropped.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!(
                    "case {name} hangs after {} s: the run is given up",
                    limit.as_secs()
                );
                std::process::exit(3);
            }
        });
        Self { _alive: alive }
    }
}
