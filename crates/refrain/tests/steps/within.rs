//! Steps in a consumer: a redelivered message resumes after its completed steps, and a message that was undone
//! becomes a dead letter. `examples/ride` shows steps in an HTTP service.

use std::{sync::Arc, time::Duration};

use refrain::{
    Engine, Outcome,
    consume::{Backoff, Consumer, Count, Memory, Message, Publisher},
    steps::{Opening, StepError},
};

use crate::{
    scripted::Scripted,
    world::{Down, Reply, Reply::*, terms, trip},
};

#[tokio::test(start_paused = true)]
async fn redelivered_message_resumes_after_completed_steps() {
    // The replies of the payment system, the final count of the message, and all calls.
    let cases: [(&[Reply], Count, &[&str]); 3] = [
        (
            &[Fails, LosesAnswer],
            Count::Completed,
            &["ride", "charge", "charge", "charge", "mail"],
        ),
        (
            &[Later(20)],
            Count::Completed,
            &["ride", "charge", "charge", "mail"],
        ),
        (
            &[Fails, Refuses],
            Count::DeadLettered,
            &["ride", "charge", "charge", "undo ride"],
        ),
    ];
    for (replies, end, calls) in cases {
        let broker = Memory::new();
        let queue = Arc::new(broker.subscribe("orders", "billing"));
        let _dead = broker.subscribe("dead", "undertaker");
        let engine = Engine::new(Scripted::on_runtime_clock());
        let down = Down::default();
        down.answers("charge", replies.iter().copied());
        let message = Message::new("7").with_id("order-7");
        broker.publish("orders", &message).await.unwrap();
        let second = Duration::from_secs(1);
        let consumer = Consumer::new(queue, engine.clone(), "billing")
            .with_backoff(Backoff::new(second, 8 * second))
            .with_dead_letter("dead");
        let tally = consumer.tally();
        let stop = async {
            while tally.get(end) == 0 {
                tokio::time::sleep(second).await;
            }
        };
        let handle = {
            let down = down.clone();
            move |job: refrain::consume::Job| {
                let (engine, down) = (engine.clone(), down.clone());
                async move {
                    let opening = Opening::new("billing", job.key.clone())
                        .with_terms(terms())
                        .with_tries(1, Backoff::new(second, 8 * second));
                    let ran = trip(&engine, &down, &opening).await;
                    let sum = ran.map_err(StepError::into_failure)?;
                    Ok(Outcome::new(0, sum.to_string()))
                }
            }
        };
        let running = consumer.run(handle, stop);
        let ended = tokio::time::timeout(600 * second, running).await;
        ended.expect("it never ends").unwrap();
        assert_eq!(down.calls(), calls, "{replies:?}");
        down.check_order();
    }
}
