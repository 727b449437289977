//! `http1`: the proxy's own HTTP/1 against [hyper](crate::on_hyper), with the same layer and the same stores.
//!
//! The set-up is that of the benchmark `http`.

use anyhow::Result;

use crate::{
    Setup,
    harness::{self, Round, System},
    http::{self, CONNECTIONS, Front},
    load::Keys,
    report::{Need, Report},
};

/// The own HTTP/1 is worth its code if a request costs at most this share of the same request on hyper.
const COST_MAX: f64 = 0.8;
const MANY: u64 = 256;

const CASES: [(&str, Front, Front, u64, Keys); 8] = [
    (
        "file, first, 32",
        Front::File,
        Front::HyperFile,
        CONNECTIONS,
        Keys::New,
    ),
    (
        "file, replay, 32",
        Front::File,
        Front::HyperFile,
        CONNECTIONS,
        Keys::Stored,
    ),
    (
        "file, first, 256",
        Front::File,
        Front::HyperFile,
        MANY,
        Keys::New,
    ),
    (
        "file, replay, 256",
        Front::File,
        Front::HyperFile,
        MANY,
        Keys::Stored,
    ),
    (
        "memory, first, 32",
        Front::Memory,
        Front::HyperMemory,
        CONNECTIONS,
        Keys::New,
    ),
    (
        "memory, replay, 32",
        Front::Memory,
        Front::HyperMemory,
        CONNECTIONS,
        Keys::Stored,
    ),
    (
        "memory, first, 256",
        Front::Memory,
        Front::HyperMemory,
        MANY,
        Keys::New,
    ),
    (
        "memory, replay, 256",
        Front::Memory,
        Front::HyperMemory,
        MANY,
        Keys::Stored,
    ),
];

/// Measures each case with both implementations, in turns.
pub(crate) fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    http::tie_clients()?;
    let mut systems: Vec<System<'_>> = CASES
        .iter()
        .flat_map(|&(name, own, hyper, connections, keys)| {
            [own, hyper].map(|front| {
                let run = move || http::round(setup, front, connections, keys);
                (name, Box::new(run) as Box<dyn FnMut() -> Result<Round>>)
            })
        })
        .collect();
    let rounds = harness::in_turns(setup, &mut systems)?;
    for ((name, ..), pair) in CASES.iter().zip(rounds.chunks(2)) {
        let [own, hyper] = pair else {
            anyhow::bail!("a system is missing");
        };
        crate::store::describe(report, &format!("own, {name}"), own);
        crate::store::describe(report, &format!("hyper, {name}"), hyper);
        let what = format!("processor time, own / hyper, {name}");
        let ratios = harness::cost_ratios(own, hyper);
        match name.starts_with("file") {
            true => report.target(what, &ratios, Need::AtMost(COST_MAX)),
            false => report.figure(what, "×", &ratios),
        }
    }
    Ok(())
}
