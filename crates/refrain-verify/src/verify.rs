//! Black-box tests of how a service handles duplicates: one case for each known class of idempotency bug.
//!
//! Each [`Case`] sends real requests with new keys, counts effects, and gives a [`CaseVerdict`]. Services differ in their
//! responses; a case accepts every safe response, and the documentation lists them.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use refrain_verify::verify::{Counting, Operation, Plan, run};
//! let mut plan = Plan::new("http://127.0.0.1:3000".parse()?, 7);
//! plan.counting = Counting::Url { url: "http://127.0.0.1:3000/count".into(), pointer: None };
//! let mut operation = Operation::new("POST /v1/payments")?;
//! operation.body = br#"{"amount":20}"#.to_vec();
//! plan.operations.push(operation);
//! let report = run(&plan, |_, case| println!("{} {}", case.verdict, case.id)).await?;
//! assert!(!report.has_failed());
//! # Ok(())
//! # }
//! ```

use tokio::time::Instant;

mod between;
mod cases;
mod change;
mod create;
mod draw;
mod effects;
mod exchange;
mod file;
mod identity;
mod plan;
mod prelude;
mod report;
mod service;
mod stage;
mod wire;
pub mod worker;

pub use cases::{CASES, Case};
pub use create::create;
pub use exchange::Exchange;
pub use file::{BadFile, File, body, duration, sql};
pub use plan::{
    BadPlan, CONCURRENT_MAX, Counting, Operation, Plan, Process, Target, Trust, header,
};
pub use report::{
    CaseReport, CaseVerdict, OperationReport, Report, html, junit, sarif, sarif_log, worse,
};

use identity::Identity;
use plan::TlsSetup;
use service::Service;
use stage::{Stage, Stop, World};

/// Why nothing, or nothing more, can be tested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The plan does not match the service.
    #[error("{0}")]
    Plan(String),
    /// The service, or the source of the effect count, is unreachable.
    #[error("{0}")]
    Unreachable(String),
}

impl From<Stop> for Trouble {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Skip(why) | Stop::Broken(why) => Self::Unreachable(why),
            Stop::Found => Self::Unreachable("the service does not respond".into()),
        }
    }
}

/// Runs the plan's cases one after another; calls `progress` after each.
///
/// # Errors
/// [`Trouble`] when the service is unreachable, refuses the plain request, or its effects cannot be counted.
///
/// # Cancellation
/// Safe to drop: kills a service that it started, resumes a paused one, and closes all connections.
pub async fn run(
    plan: &Plan,
    mut progress: impl FnMut(&Operation, &CaseReport),
) -> Result<Report, Trouble> {
    let unknown = |id: &&String| !CASES.iter().any(|case| case.id == **id);
    if let Some(id) = plan.only.iter().find(unknown) {
        let known: Vec<_> = CASES.iter().map(|case| case.id).collect();
        let message = format!("unknown case `{id}`; the cases are {}", known.join(", "));
        return Err(Trouble::Plan(message));
    }
    let since = Instant::now();
    let way = TlsSetup::new(plan).map_err(Trouble::Plan)?;
    let started = Service::new(&plan.process, Some(&plan.target.address)).await;
    let mut service = started.map_err(Trouble::Unreachable)?;
    let mut operations = Vec::new();
    for (number, operation) in plan.operations.iter().enumerate() {
        let ready = prelude::world(plan, &way, number, operation, &mut service).await;
        let (world, alike) = match ready {
            Err(Trouble::Plan(why)) if plan.leaves_out => {
                operations.push(OperationReport::left_out(operation.name(), why));
                continue;
            }
            ready => ready?,
        };
        let mut cases = Vec::new();
        for case in CASES.iter().filter(|case| is_asked_for(plan, case)) {
            let done = match case.id {
                cases::SAME_BODY => alike.clone(),
                _ => run_case(&world, &mut service, case).await?,
            };
            progress(operation, &done);
            cases.push(done);
        }
        operations.push(OperationReport {
            operation: operation.name(),
            counting: prelude::describe_counting(&world),
            is_weak: !world.counter.is_exact(),
            is_blind: is_blind(&world),
            cases,
            left_out: None,
        });
    }
    Ok(Report {
        version: 1,
        target: plan.target.to_string(),
        seed: plan.seed,
        took_ms: report::millis(since.elapsed()),
        operations,
    })
}

fn is_asked_for(plan: &Plan, case: &Case) -> bool {
    plan.only.is_empty() || plan.only.iter().any(|id| id == case.id)
}

/// Whether runs can neither be counted nor told apart by their responses.
fn is_blind(world: &World<'_>) -> bool {
    !world.counter.is_exact() && world.identity == Identity::None
}

async fn run_case(
    world: &World<'_>,
    service: &mut Service,
    case: &Case,
) -> Result<CaseReport, Trouble> {
    let since = Instant::now();
    let mut stage = Stage::new(world, service, case.id).await?;
    let ended = match is_blind(world) && case.needs_count {
        true => Err(Stop::Skip(
            "the responses of two executions are alike, so executions cannot be counted; set --effects-url"
                .into(),
        )),
        false => cases::run(case.id, &mut stage).await,
    };
    match ended {
        Ok(()) | Err(Stop::Found) => {}
        Err(Stop::Skip(why)) if stage.verdict == CaseVerdict::Pass => {
            stage.verdict = CaseVerdict::Skipped;
            stage.findings = vec![why];
        }
        Err(Stop::Skip(why)) => stage.say(why),
        Err(Stop::Broken(why)) => return Err(Trouble::Unreachable(why)),
    }
    let (verdict, findings) = (stage.verdict, std::mem::take(&mut stage.findings));
    let took = since.elapsed();
    Ok(CaseReport::new(
        case,
        verdict,
        findings,
        took,
        stage.into_exchanges(),
    ))
}
