//! `chaos`: `refrain chaos` without any faults against nginx as a plain proxy.
//!
//! As in `http`, the measured process has its own processor, and the CPU time is that of the measured process alone.

use anyhow::Result;

use crate::{
    Setup,
    harness::{self, System},
    http::{self, CONNECTIONS, Front},
    load::Keys,
    report::{Need, Report},
    store,
};

/// At most 1.2 times nginx's CPU time per request, and at least 1 / 1.2 of its throughput.
const COST_MAX: f64 = 1.2;

/// Measures both in turns.
pub(crate) fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    http::tie_clients()?;
    let round = |front| http::round(setup, front, CONNECTIONS, Keys::Other);
    let mut systems: [System<'_>; 2] = [
        ("nginx", Box::new(|| round(Front::Nginx))),
        ("chaos", Box::new(|| round(Front::Chaos))),
    ];
    let rounds = harness::in_turns(setup, &mut systems)?;
    let [nginx, chaos] = &rounds[..] else {
        anyhow::bail!("a system is missing");
    };
    for (name, rounds) in [("nginx", nginx), ("chaos", chaos)] {
        store::describe(report, name, rounds);
    }
    let costs = harness::cost_ratios(chaos, nginx);
    report.target(
        "processor time, chaos / nginx",
        &costs,
        Need::AtMost(COST_MAX),
    );
    let rates = harness::ratios(chaos, nginx);
    report.target("chaos / nginx", &rates, Need::AtLeast(1.0 / COST_MAX));
    Ok(())
}
