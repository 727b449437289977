//! `encryption`: what encrypted records cost the proxy on `file:`.
//!
//! The set-up is that of the benchmark `http`. Two systems are the same proxy: their ratio is the noise.

use anyhow::Result;

use crate::{
    Setup,
    harness::{self, Round, System},
    http::{self, CONNECTIONS, Front},
    load::Keys,
    report::{Need, Report},
};

const ENCRYPTED_RATE_MIN: f64 = 0.9;

const SYSTEMS: [(&str, Front, Keys); 6] = [
    ("first, plain", Front::File, Keys::New),
    ("first, plain again", Front::File, Keys::New),
    ("first, encrypted", Front::FileEncrypted, Keys::New),
    ("replay, plain", Front::File, Keys::Stored),
    ("replay, plain again", Front::File, Keys::Stored),
    ("replay, encrypted", Front::FileEncrypted, Keys::Stored),
];

/// Measures all systems in turns.
pub(crate) fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    http::tie_clients()?;
    let systems = SYSTEMS.iter().map(|&(name, front, keys)| {
        let run = move || http::round(setup, front, CONNECTIONS, keys);
        (name, Box::new(run) as Box<dyn FnMut() -> Result<Round>>)
    });
    let mut systems: Vec<System<'_>> = systems.collect();
    let rounds = harness::in_turns(setup, &mut systems)?;
    for ((name, ..), rounds) in SYSTEMS.iter().zip(&rounds) {
        crate::store::describe(report, name, rounds);
    }
    for (kind, rounds) in ["first", "replay"].into_iter().zip(rounds.chunks(3)) {
        let [plain, again, encrypted] = rounds else {
            anyhow::bail!("a system is missing");
        };
        let noise = harness::ratios(again, plain);
        report.figure(format!("{kind}, plain again / plain"), "×", &noise);
        let rates = harness::ratios(encrypted, plain);
        let need = Need::AtLeast(ENCRYPTED_RATE_MIN);
        report.target(format!("{kind}, encrypted / plain"), &rates, need);
        let costs = harness::cost_ratios(encrypted, plain);
        let what = format!("{kind}, processor time, encrypted / plain");
        report.figure(what, "×", &costs);
    }
    Ok(())
}
