//! Answers the calls of processes that this one has replaced.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use refrain::store::{AnyStore, embedded::wire::Call};
use tokio::{
    sync::{Mutex, Semaphore},
    time::sleep,
};

use super::channel::{Channel, read_frame, write_frame};

/// Calls of one process that are answered at the same time.
const CALLS_MAX: usize = 4_096;
const LOOK: Duration = Duration::from_millis(20);

/// The processes whose calls this one answers. Clones share their number.
#[derive(Debug, Clone, Default)]
pub struct ServedStores(Arc<AtomicUsize>);

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl ServedStores {
    /// Answers the calls of one process in a task, until its connection ends.
    pub fn serve(&self, channel: Channel, store: AnyStore) {
        self.0.fetch_add(1, Relaxed);
        let counted = Counted(self.0.clone());
        tokio::spawn(async move {
            answer_calls(channel, store).await;
            drop(counted);
        });
    }

    /// Waits until every such process has ended.
    pub async fn ended(&self) {
        while self.0.load(Relaxed) > 0 {
            sleep(LOOK).await;
        }
    }
}

async fn answer_calls(channel: Channel, store: AnyStore) {
    let (mut reader, writer) = channel.split();
    let writer = Arc::new(Mutex::new(writer));
    let room = Arc::new(Semaphore::new(CALLS_MAX));
    while let Ok(frame) = read_frame(&mut reader).await {
        let call = frame.split_first_chunk::<8>();
        let call =
            call.and_then(|(number, call)| Some((*number, Call::decode(&frame.slice_ref(call))?)));
        let Some((number, call)) = call else {
            tracing::error!("an earlier process of this proxy sent a malformed call");
            return;
        };
        let Ok(permit) = room.clone().acquire_owned().await else {
            return;
        };
        let (writer, store) = (writer.clone(), store.clone());
        tokio::spawn(async move {
            let reply = call.answer(&store).await;
            let frame = [&number[..], &reply].concat();
            // If the process has ended, its claims lapse.
            let _ = write_frame(&mut *writer.lock().await, &frame).await;
            drop(permit);
        });
    }
}
