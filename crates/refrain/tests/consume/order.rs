//! Messages of one group are handled in order, groups in parallel, and no more messages are pulled than can be
//! handled; a message that waits in a busy consumer could be handled by another one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use refrain::{
    Outcome,
    consume::{Broker, Count, Failure, Job, Memory, Message},
};
use tokio::time::sleep;

use crate::stage::{NAME, Stage, TOPIC, said, until};

async fn publish(stage: &Stage, group: &str, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let text = format!("{group}{number}");
        let message = Message::new(text.clone()).with_id(text).with_group(group);
        stage.publish(message).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_message_is_tried_again_in_its_place_and_other_groups_go_on() {
    let stage = Stage::on(Memory::new().with_order());
    publish(&stage, "a", 0..3).await;
    publish(&stage, "b", 0..3).await;
    let log = Arc::new(std::sync::Mutex::new(Vec::new()));
    let handler = {
        let log = log.clone();
        move |job: Job| {
            let text = said(&job.message);
            let is_bad = text == "a0" && job.attempt < 3;
            log.lock().unwrap().push(text);
            std::future::ready(match is_bad {
                true => Err(Failure::retry("not yet")),
                false => Ok(Outcome::new(0, "")),
            })
        }
    };
    let consumer = stage.consumer();
    let tally = consumer.tally();
    let shutdown = until(|| stage.backlog() == 0);
    consumer.run(handler, shutdown).await.unwrap();
    let log = log.lock().unwrap();
    let of = |group: &str| {
        let texts = log.iter().filter(|it| it.starts_with(group));
        texts.cloned().collect::<Vec<_>>()
    };
    assert_eq!(of("a"), ["a0", "a0", "a0", "a1", "a2"]);
    assert_eq!(of("b"), ["b0", "b1", "b2"]);
    let at = |text: &str| log.iter().position(|it| it == text).unwrap();
    assert!(at("b2") < at("a1"), "{log:?}");
    assert_eq!(tally.get(Count::Retried), 2);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_dies_makes_room_for_its_next() {
    let stage = Stage::on(Memory::new().with_order());
    publish(&stage, "a", 0..2).await;
    stage.handler.script(&[crate::stage::Act::Reject]);
    let tally = stage.run_out(stage.consumer()).await;
    assert_eq!(tally.get(Count::DeadLettered), 1);
    assert_eq!(stage.handler.done(), ["a1"]);
}

/// Maximum number of handlers that ran at the same time.
async fn most_at_once(stage: &Stage, in_flight_max: usize) -> usize {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = {
        let (now, most) = (now.clone(), most.clone());
        move |_: Job| {
            let (now, most) = (now.clone(), most.clone());
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(Duration::from_secs(1)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(Outcome::new(0, ""))
            }
        }
    };
    let consumer = stage.consumer().with_in_flight_max(in_flight_max);
    let shutdown = until(|| stage.backlog() == 0);
    consumer.run(handler, shutdown).await.unwrap();
    most.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn no_more_run_at_once_than_may() {
    for (memory, groups) in [(Memory::new(), 1), (Memory::new().with_order(), 20)] {
        let stage = Stage::on(memory);
        for group in 0..groups {
            publish(&stage, &format!("g{group}-"), 0..40 / groups).await;
        }
        assert_eq!(most_at_once(&stage, 4).await, 4);
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_is_pulled_than_there_is_room_for() {
    let stage = Stage::new();
    for number in 0..10 {
        stage.publish_text(&format!("m{number}")).await;
    }
    stage.handler.script(&[crate::stage::Act::Hang; 4]);
    let consumer = stage.consumer().with_in_flight_max(4);
    let others = async {
        until(|| stage.handler.calls() == 4).await;
        sleep(Duration::from_secs(5)).await;
        // Another consumer gets the other six messages.
        let queue = stage.broker.subscribe(TOPIC, NAME);
        let pulled = queue.pull(100, Duration::from_secs(1)).await.unwrap();
        assert_eq!(pulled.len(), 6);
    };
    let _ = tokio::join!(
        consumer.run(stage.handler.handle(), sleep(Duration::from_secs(20))),
        others
    );
}

#[tokio::test(start_paused = true)]
async fn many_groups_come_and_go() {
    let stage = Stage::on(Memory::new().with_order());
    for group in 0..3_000 {
        publish(&stage, &format!("g{group}-"), 0..1).await;
    }
    let tally = stage.run_out(stage.consumer()).await;
    assert_eq!(tally.get(Count::Completed), 3_000);
}
