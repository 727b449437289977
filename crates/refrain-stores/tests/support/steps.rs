//! Two nodes run the same operations in steps on one server, and both are cancelled repeatedly: each effect must
//! happen once.

use std::time::Duration;

use refrain::{
    Engine, Key, Store, Terms,
    engine::Count,
    steps::{Opening, StepError},
};

#[path = "../../../refrain/tests/steps/world.rs"]
mod world;
use world::{Down, Reply, trip, word};

const OPERATIONS: usize = 40;

fn opening(operation: usize) -> Opening {
    let key = Key::new(format!("order-{operation}")).unwrap();
    Opening::new("book-ride", key).with_terms(Terms {
        lease: Duration::from_secs(1),
        wait: Duration::from_secs(3),
        ..world::terms()
    })
}

/// Runs the operation until it has ended; the first rounds are cancelled early.
async fn run(engine: Engine, down: Down, operation: usize) -> &'static str {
    let opening = opening(operation);
    for round in 0..100 {
        let patience = match round < 4 {
            true => Duration::from_millis(rand::random_range(0..40)),
            false => Duration::from_secs(5),
        };
        let running = trip(&engine, &down, &opening);
        let Ok(ran) = tokio::time::timeout(patience, running).await else {
            continue;
        };
        match word(&ran) {
            end @ ("finished" | "undone") => return end,
            "in flight" | "failed" => tokio::time::sleep(Duration::from_millis(50)).await,
            // The other node held the record's lock for too long.
            _ if ran.as_ref().is_err_and(StepError::is_retryable) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            other => panic!("operation {operation}: {other}: {ran:?}"),
        }
    }
    panic!("operation {operation} does not end");
}

/// Every operation ends once, forward or compensated, no matter which node ran which step.
pub(crate) async fn check(stores: [impl Store; 2]) {
    let engines = stores.map(Engine::new);
    let mut runs = tokio::task::JoinSet::new();
    let downs: Vec<Down> = (0..OPERATIONS).map(|_| Down::default()).collect();
    for (operation, down) in downs.iter().enumerate() {
        if operation % 5 == 1 {
            // The run is cancelled within the step, after its effect.
            down.answers("ride", [Reply::Hangs]);
        }
        if operation % 3 == 0 {
            down.answers("mail", [Reply::LosesAnswer, Reply::Fails]);
        }
        if operation % 4 == 0 {
            // All answers are the same, so the order of the nodes does not matter.
            down.answers("charge", [Reply::Refuses; 100]);
        }
        for engine in engines.clone() {
            let down = down.clone();
            runs.spawn(async move { (operation, run(engine, down, operation).await) });
        }
    }
    while let Some(ran) = runs.join_next().await {
        let (operation, end) = ran.unwrap();
        let expected = if operation % 4 == 0 {
            "undone"
        } else {
            "finished"
        };
        assert_eq!(end, expected, "operation {operation}");
    }
    for (operation, down) in downs.iter().enumerate() {
        let expected: &[&str] = match operation % 4 {
            0 => &["ride", "undo ride"],
            _ => &["ride", "charge", "mail"],
        };
        assert_eq!(down.effects(), expected, "operation {operation}");
        down.check_keys();
    }
    let taken_over = |engine: &Engine| engine.tally().get(Count::PossibleDuplicate);
    let taken_over: u64 = engines.iter().map(taken_over).sum();
    assert!(taken_over > 0, "no run was cancelled within a step");
}
