//! Two runs of one operation at the same time: on two nodes, or a retry while the first run is not finished. Each
//! effect must happen once.

use std::time::Duration;

use refrain::{Engine, Key, Terms, steps::Opened, store::Memory};

use crate::{
    scripted::{Fault, Op, Scripted},
    world::{Down, LEASE, Reply::*, opening, terms, trip, word},
};

#[tokio::test]
async fn of_many_runs_at_once_one_runs_each_step_and_all_get_the_result() {
    let (store, down) = (Memory::new(), Down::default());
    let terms = Terms {
        wait: Duration::from_secs(30),
        ..terms()
    };
    let engines = [Engine::new(store.clone()), Engine::new(store)];
    let mut runs = tokio::task::JoinSet::new();
    for number in 0..20 {
        let (engine, down) = (engines[number % 2].clone(), down.clone());
        let opening = opening().with_terms(terms);
        runs.spawn(async move { trip(&engine, &down, &opening).await });
    }
    while let Some(ran) = runs.join_next().await {
        assert_eq!(ran.unwrap().unwrap(), 123);
    }
    assert_eq!(down.calls(), ["ride", "charge", "mail"]);
}

#[tokio::test]
async fn of_many_runs_at_once_all_learn_that_it_was_undone() {
    let (store, down) = (Memory::new(), Down::default());
    down.answers("mail", [Refuses]);
    let terms = Terms {
        wait: Duration::from_secs(30),
        ..terms()
    };
    let mut runs = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (engine, down) = (Engine::new(store.clone()), down.clone());
        let opening = opening().with_terms(terms);
        runs.spawn(async move { word(&trip(&engine, &down, &opening).await) });
    }
    while let Some(ran) = runs.join_next().await {
        assert_eq!(ran.unwrap(), "undone");
    }
    let calls = ["ride", "charge", "mail", "undo charge", "undo ride"];
    assert_eq!(down.calls(), calls);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_another_run_times_out() {
    let store = Scripted::on_runtime_clock();
    let down = Down::default();
    down.answers("charge", [Hangs]);
    let first = Engine::new(store.clone());
    let running = tokio::spawn({
        let (first, down) = (first.clone(), down.clone());
        async move { trip(&first, &down, &opening()).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    for (engine, wait) in [(first, 0), (Engine::new(store), 5)] {
        let wait = Duration::from_secs(wait);
        let opening = opening().with_terms(Terms { wait, ..terms() });
        let began = tokio::time::Instant::now();
        let ran = trip(&engine, &down, &opening).await;
        assert_eq!(word(&ran), "in flight");
        assert!(began.elapsed() >= wait);
        let left = ran.unwrap_err().retry_after().unwrap();
        assert!(left > Duration::ZERO && left <= LEASE, "{left:?}");
    }
    assert_eq!(down.calls(), ["ride", "charge"]);
    running.abort();
}

/// A node that cannot renew its lease is overtaken during a step, and returns with its own result.
#[tokio::test(start_paused = true)]
async fn a_run_that_was_overtaken_takes_what_the_other_one_recorded() {
    let slow = Scripted::on_runtime_clock();
    let fast = Scripted::on(slow.records.clone());
    slow.set(Op::Renew, usize::MAX, Fault::Hangs);
    let run = async |store: Scripted, pause: Duration, number: u64| {
        let Opened::Open(mut steps) = opening().open::<u64>(&Engine::new(store)).await? else {
            panic!("it has ended");
        };
        let result: u64 = steps
            .step("ride", async |_key: Key| {
                tokio::time::sleep(pause).await;
                Ok(number)
            })
            .await?;
        steps.finish(result).await
    };
    let (late, soon) = tokio::join!(run(slow, LEASE + Duration::from_secs(10), 1), async {
        tokio::time::sleep(LEASE + Duration::from_secs(1)).await;
        run(fast, Duration::ZERO, 2).await
    });
    assert_eq!(soon.unwrap(), 2);
    assert_eq!(late.unwrap(), 2, "the fence did not hold");
}

/// One run pauses between two steps while another one is rejected and undoes. When the first resumes, it must not go
/// forward.
#[tokio::test(start_paused = true)]
async fn a_run_that_slept_does_not_go_forward_where_another_has_begun_to_undo() {
    for refused in ["charge", "mail"] {
        let store = Scripted::on_runtime_clock();
        let (engine, down) = (Engine::new(store.clone()), Down::default());
        let Opened::Open(mut sleeper) = opening().open::<u64>(&engine).await.unwrap() else {
            panic!("it has ended");
        };
        let undo = async |key: Key, _: u64| down.call("undo ride", &key).await.map(|_| ());
        let work = async |key: Key| down.call("ride", &key).await;
        let _ride = sleeper.step_or_undo("ride", work, undo).await.unwrap();

        down.answers(refused, [Refuses]);
        let other = trip(&Engine::new(store), &down, &opening()).await;
        assert_eq!(word(&other), "undone");
        let before = down.calls();

        let work = async |key: Key| down.call("charge", &key).await;
        let undo = async |key: Key, _: u64| down.call("undo charge", &key).await.map(|_| ());
        let mut ran = sleeper.step_or_undo("charge", work, undo).await;
        if refused == "mail" {
            assert_eq!(
                word(&ran),
                "finished",
                "this step was done, and is replayed"
            );
            let work = async |key: Key| down.call("mail", &key).await;
            ran = sleeper.step("mail", work).await;
        }
        assert_eq!(word(&ran), "undone", "{refused}");
        assert_eq!(down.calls(), before, "{refused}");
    }
}
