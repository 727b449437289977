//! Black-box tests of how a message consumer handles duplicates: one case for each known class of idempotency bug.
//!
//! Messages go through a real broker to a consumer in any language; effects are counted at a URL or with SQL.
//!
//! ```no_run
//! # async fn example(publisher: std::sync::Arc<dyn refrain::consume::Publisher>)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! use refrain_verify::verify::{Counting, worker::{Lines, Plan, Template, run}};
//! let mut plan = Plan::new("redis://127.0.0.1", "orders", 7);
//! plan.counting = Counting::Url { url: "http://127.0.0.1:3000/count?id={id}".into(), pointer: None };
//! let mut order = Template::new("order", br#"{"order":"{id}"}"#.to_vec());
//! order.message_id = Some("{id}".into());
//! plan.messages.push(order);
//! let lines = Lines { publisher, dead: None };
//! let report = run(&plan, &lines, |_, case| println!("{} {}", case.verdict, case.id)).await?;
//! assert!(!report.has_failed());
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use refrain::consume::{Broker, Publisher};
use tokio::time::Instant;

use super::{
    CaseReport, CaseVerdict, OperationReport, Report, Trouble, effects::Counter, plan::TlsSetup,
    report, service::Service, stage::Stop,
};

mod cases;
mod file;
mod plan;
mod scene;

pub use cases::CASES;
pub use file::File;
pub use plan::{CONSUMERS_MAX, Plan, Template};

use scene::{MessageTiming, Scene, World};

/// Connections to the broker.
#[derive(Debug, Clone)]
pub struct Lines {
    /// Publishes the messages.
    pub publisher: Arc<dyn Publisher>,
    /// Reads the dead letters.
    pub dead: Option<Arc<dyn Broker>>,
}

/// Runs the plan's cases one after another; calls `progress` after each.
///
/// # Errors
/// [`Trouble`] when the broker or the count is unreachable, or the plain message has no effect.
///
/// # Cancellation
/// Safe to drop: kills a consumer that it started.
pub async fn run(
    plan: &Plan,
    lines: &Lines,
    mut progress: impl FnMut(&Template, &CaseReport),
) -> Result<Report, Trouble> {
    plan.check().map_err(Trouble::Plan)?;
    let way = TlsSetup::to_count(&plan.counting, &plan.trust).map_err(Trouble::Plan)?;
    let counter = Counter::without_headers(plan.keyed(), &way);
    let world = World {
        plan,
        lines,
        counter,
    };
    let since = Instant::now();
    let started = Service::new(&plan.process, None).await;
    let mut service = started.map_err(Trouble::Unreachable)?;
    let mut operations = Vec::new();
    for (number, template) in plan.messages.iter().enumerate() {
        let mut first = Scene::new(&world, (number, template), &mut service, "prelude").await?;
        let pace = cases::pace(&mut first).await?;
        let mut done = Vec::new();
        for case in CASES.iter().filter(|case| plan.is_asked_for(case.id)) {
            let scene = Scene::new(&world, (number, template), &mut service, case.id).await?;
            let case = run_case(case, scene, pace).await?;
            progress(template, &case);
            done.push(case);
        }
        operations.push(OperationReport {
            operation: template.name.clone(),
            counting: plan.describe_counting(),
            is_weak: false,
            is_blind: false,
            cases: done,
            left_out: None,
        });
    }
    Ok(Report {
        version: 1,
        target: format!("{} at {}", plan.queue, plan.broker),
        seed: plan.seed,
        took_ms: report::millis(since.elapsed()),
        operations,
    })
}

async fn run_case(
    case: &super::Case,
    mut scene: Scene<'_>,
    pace: MessageTiming,
) -> Result<CaseReport, Trouble> {
    let since = Instant::now();
    scene.pace = pace;
    match cases::run(case.id, &mut scene).await {
        Ok(()) | Err(Stop::Found) => {}
        Err(Stop::Skip(why)) if scene.verdict == CaseVerdict::Pass => {
            scene.verdict = CaseVerdict::Skipped;
            scene.findings = vec![why];
        }
        Err(Stop::Skip(why)) => scene.say(why),
        Err(Stop::Broken(why)) => return Err(Trouble::Unreachable(why)),
    }
    let (verdict, findings) = (scene.verdict, std::mem::take(&mut scene.findings));
    let exchanges = scene.into_exchanges();
    let took = since.elapsed();
    Ok(CaseReport::new(case, verdict, findings, took, exchanges))
}
