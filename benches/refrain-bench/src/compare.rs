//! `compare`: the proxy of this build against that of another build, such as one before a change.
//!
//! The set-up is that of the benchmark `http`.

use anyhow::{Result, ensure};

use crate::{
    Setup,
    harness::{self, Round, System},
    http::{self, CONNECTIONS, Front},
    load::Keys,
    report::{Need, Report},
};

/// A change may make a request this much more expensive, which is about the noise of quiet machines.
const COST_MAX: f64 = 1.05;
/// The same for what operators see of a request: its traces and its reports, with `--traceability`.
const TRACEABILITY_COST_MAX: f64 = 1.03;
const TRACEABILITY_RATE_MIN: f64 = 0.97;
const MANY: u64 = 256;

const FILE: (Front, Front) = (Front::File, Front::OtherFile);
const MEMORY: (Front, Front) = (Front::Memory, Front::OtherMemory);

const CASES: [(&str, (Front, Front), u64, Keys); 9] = [
    ("file, first, 32", FILE, CONNECTIONS, Keys::New),
    ("file, replay, 32", FILE, CONNECTIONS, Keys::Stored),
    ("file, first, 256", FILE, MANY, Keys::New),
    ("file, replay, 256", FILE, MANY, Keys::Stored),
    ("memory, first, 32", MEMORY, CONNECTIONS, Keys::New),
    ("memory, replay, 32", MEMORY, CONNECTIONS, Keys::Stored),
    ("memory, first, 256", MEMORY, MANY, Keys::New),
    ("memory, replay, 256", MEMORY, MANY, Keys::Stored),
    ("unguarded, 32", MEMORY, CONNECTIONS, Keys::Other),
];

/// Measures each case with both builds, in turns.
pub(crate) fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let other = setup.options.other.as_deref();
    ensure!(
        other.is_some_and(|other| other.is_file()),
        "name another build of the command: --other PATH/refrain"
    );
    http::tie_clients()?;
    let mut systems: Vec<System<'_>> = CASES
        .iter()
        .flat_map(|&(name, (this, other), connections, keys)| {
            [this, other].map(|front| {
                let run = move || http::round(setup, front, connections, keys);
                (name, Box::new(run) as Box<dyn FnMut() -> Result<Round>>)
            })
        })
        .collect();
    let rounds = harness::in_turns(setup, &mut systems)?;
    for ((name, ..), pair) in CASES.iter().zip(rounds.chunks(2)) {
        let [this, other] = pair else {
            anyhow::bail!("a system is missing");
        };
        crate::store::describe(report, &format!("this, {name}"), this);
        crate::store::describe(report, &format!("other, {name}"), other);
        let requests = harness::ratios(this, other);
        let rate = format!("requests/s, this / other, {name}");
        let costs = harness::cost_ratios(this, other);
        let cost = format!("processor time, this / other, {name}");
        match setup.options.traceability {
            true => {
                report.target(rate, &requests, Need::AtLeast(TRACEABILITY_RATE_MIN));
                report.target(cost, &costs, Need::AtMost(TRACEABILITY_COST_MAX));
            }
            false => {
                report.figure(rate, "×", &requests);
                report.target(cost, &costs, Need::AtMost(COST_MAX));
            }
        }
    }
    Ok(())
}
