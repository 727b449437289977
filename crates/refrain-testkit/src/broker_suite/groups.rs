//! Groups keep their order, also when one of their messages fails.

use std::time::Duration;

use refrain::consume::{Failure, Job, Message};

use super::{
    Fixture, Ran,
    stage::{Checked, Effects, Stage, WORKER, done, expect, text},
};

const GROUPS: usize = 4;
const EACH: usize = 12;

pub(super) async fn groups_stay_in_order<F: Fixture>(stage: &Stage<'_, F>) -> Checked<Ran> {
    let broker = stage.connect(WORKER).await?;
    if !broker.guarantees().is_ordered {
        return Ok(Ran::LeftOut);
    }
    for number in 0..EACH {
        for group in 0..GROUPS {
            let text = format!("{group}:{number:02}");
            let message = Message::new(text.clone())
                .with_id(text)
                .with_group(group.to_string());
            stage.publish(&*broker, &message).await?;
        }
    }
    let (tries, effects) = (Effects::default(), Effects::default());
    let handler = {
        let (tries, effects) = (tries.clone(), effects.clone());
        move |job: Job| {
            tries.add(&job);
            let says = text(&job.message);
            let is_bad = says.ends_with(":03") && tries.count(&says) < 3;
            std::future::ready(match is_bad {
                true => Err(Failure::retry("out of order")),
                false => {
                    effects.add(&job);
                    done()
                }
            })
        }
    };
    let consumer = stage.consumer(&broker, WORKER);
    let is_done = || effects.len() >= GROUPS * EACH;
    let time = stage.redelivery_time(broker.guarantees()) + Duration::from_secs(5);
    stage.run(vec![consumer], handler, time, is_done).await?;
    let all = effects.all();
    for group in 0..GROUPS {
        let prefix = format!("{group}:");
        let came: Vec<_> = all.iter().filter(|it| it.starts_with(&prefix)).collect();
        let mut wanted = came.clone();
        wanted.sort_unstable();
        expect("order of a group", &came, &wanted)?;
        expect("messages of a group", came.len(), EACH)?;
    }
    Ok(Ran::Held)
}
