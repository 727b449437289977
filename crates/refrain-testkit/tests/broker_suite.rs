//! The broker that comes with the library, through the suite that every broker runs.

use std::{sync::Arc, time::Duration};

use refrain::{
    Result,
    consume::{Broker, Memory},
};
use refrain_testkit::broker_suite::{self, Fixture};

struct InProcess(Memory);

impl Fixture for InProcess {
    async fn connect(
        &self,
        queue: &str,
        consumer: &str,
        ack_wait: Duration,
    ) -> Result<Arc<dyn Broker>> {
        let memory = self.0.clone().with_ack_wait(ack_wait);
        Ok(Arc::new(memory.subscribe(queue, consumer)))
    }

    fn ack_wait(&self) -> Duration {
        Duration::from_millis(300)
    }

    fn fans_out(&self) -> bool {
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory() {
    broker_suite::run(InProcess(Memory::new())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_in_order() {
    broker_suite::run(InProcess(Memory::new().with_order())).await;
}
