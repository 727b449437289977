//! Messages being published: groups run concurrently, the messages of one group one after another.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::{Id, JoinSet},
    time::{Instant, timeout},
};

use crate::{
    Error, ErrorKind,
    consume::{Entry, Publisher},
};

/// Event from a lane.
#[derive(Debug)]
pub(super) enum LaneEvent {
    /// The broker confirmed this message; the lane continues.
    Confirmed(i64),
    /// The lane has published all its messages.
    Done,
    /// The lane stopped before it tried these messages.
    Stopped(Vec<i64>),
    /// One message failed; those after it were not tried.
    Failed {
        entry: Box<Entry>,
        error: Error,
        behind: Vec<i64>,
        /// Start of the lane.
        since: Instant,
    },
}

/// All lanes of one run. Dropping them aborts their tasks.
#[derive(Debug)]
pub(super) struct RelayLanes {
    publisher: Arc<dyn Publisher>,
    timeout: Duration,
    tasks: JoinSet<LaneEvent>,
    /// Lane of each task.
    lanes: HashMap<Id, Arc<LaneHold>>,
    /// Held messages with their lane, at most `in_flight_max`.
    held: HashMap<i64, Arc<LaneHold>>,
    tell: UnboundedSender<i64>,
    told: UnboundedReceiver<i64>,
    is_stopped: Arc<AtomicBool>,
}

/// Lease of the messages of one lane.
#[derive(Debug)]
struct LaneHold {
    lapses: Mutex<Instant>,
    is_lost: AtomicBool,
}

impl LaneHold {
    fn is_valid(&self) -> bool {
        let lapses = *self.lapses.lock().unwrap_or_else(PoisonError::into_inner);
        !self.is_lost.load(Relaxed) && Instant::now() < lapses
    }

    fn renew(&self, lapses: Instant) {
        *self.lapses.lock().unwrap_or_else(PoisonError::into_inner) = lapses;
    }
}

impl RelayLanes {
    pub(super) fn new(publisher: Arc<dyn Publisher>, timeout: Duration) -> Self {
        let (tell, told) = unbounded_channel();
        Self {
            publisher,
            timeout,
            tasks: JoinSet::new(),
            lanes: HashMap::new(),
            held: HashMap::new(),
            tell,
            told,
            is_stopped: Arc::default(),
        }
    }

    /// Whether all lanes have ended and all their events were received.
    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.told.is_empty()
    }

    /// Number of messages in progress.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    pub(super) fn ids(&self) -> Vec<i64> {
        self.held.keys().copied().collect()
    }

    /// Starts lanes for these messages, whose lease lapses at `lapses`.
    pub(super) fn begin(&mut self, entries: Vec<Entry>, lapses: Instant) {
        for entries in grouped(entries) {
            let hold = Arc::new(LaneHold {
                lapses: Mutex::new(lapses),
                is_lost: AtomicBool::new(false),
            });
            for entry in &entries {
                self.held.insert(entry.id, hold.clone());
            }
            let lane = PublishLane {
                publisher: self.publisher.clone(),
                timeout: self.timeout,
                tell: self.tell.clone(),
                hold: hold.clone(),
                is_stopped: self.is_stopped.clone(),
            };
            let task = self.tasks.spawn(lane.run(entries));
            self.lanes.insert(task.id(), hold);
        }
    }

    /// Renews the lease of the messages in `kept`; another relay holds the others.
    pub(super) fn renewed(&self, kept: &[i64], lapses: Instant) {
        let kept: std::collections::HashSet<_> = kept.iter().collect();
        for hold in self.held.values() {
            hold.renew(lapses);
        }
        for (id, hold) in &self.held {
            if !kept.contains(id) {
                hold.is_lost.store(true, Relaxed);
            }
        }
    }

    /// Prevents the lanes from starting another message.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Relaxed);
    }

    /// Waits for the next event of a lane, forever if there is none. Safe to drop.
    pub(super) async fn next(&mut self) -> LaneEvent {
        tokio::select! {
            biased;
            Some(id) = self.told.recv() => {
                self.held.remove(&id);
                LaneEvent::Confirmed(id)
            }
            Some(ended) = self.tasks.join_next_with_id() => match ended {
                Ok((id, end)) => {
                    // Its remaining messages are confirmed; the events are already in the channel.
                    let is_done = matches!(end, LaneEvent::Done);
                    let lane = self.lanes.remove(&id).filter(|_| !is_done);
                    self.remove_lane(lane.as_ref());
                    end
                }
                // The publisher panicked. The lane's messages become free after their lease lapses.
                Err(error) => {
                    let lane = self.lanes.remove(&error.id());
                    self.remove_lane(lane.as_ref());
                    LaneEvent::Done
                }
            },
            else => std::future::pending().await,
        }
    }

    /// Returns one more confirmed message, if there is one already.
    pub(super) fn confirmed(&mut self) -> Option<i64> {
        let id = self.told.try_recv().ok()?;
        self.held.remove(&id);
        Some(id)
    }

    fn remove_lane(&mut self, lane: Option<&Arc<LaneHold>>) {
        if let Some(lane) = lane {
            self.held.retain(|_, other| !Arc::ptr_eq(other, lane));
        }
    }
}

/// One group, or one message without a group.
struct PublishLane {
    publisher: Arc<dyn Publisher>,
    timeout: Duration,
    tell: UnboundedSender<i64>,
    hold: Arc<LaneHold>,
    is_stopped: Arc<AtomicBool>,
}

impl PublishLane {
    async fn run(self, entries: Vec<Entry>) -> LaneEvent {
        let since = Instant::now();
        let mut entries = entries.into_iter();
        let ids = |entries: std::vec::IntoIter<Entry>| entries.map(|entry| entry.id).collect();
        while let Some(entry) = entries.next() {
            // After the lease lapsed, another relay may hold the messages and starts with the same one.
            if self.is_stopped.load(Relaxed) || !self.hold.is_valid() {
                let behind: Vec<_> = ids(entries);
                let left = std::iter::once(entry.id).chain(behind).collect();
                return LaneEvent::Stopped(left);
            }
            if let Err(error) = self.publish(&entry).await {
                return LaneEvent::Failed {
                    entry: Box::new(entry),
                    error,
                    behind: ids(entries),
                    since,
                };
            }
            // The receiver lives as long as the lanes.
            let _ = self.tell.send(entry.id);
        }
        LaneEvent::Done
    }

    async fn publish(&self, entry: &Entry) -> Result<(), Error> {
        let publishing = self.publisher.publish(&entry.destination, &entry.message);
        match timeout(self.timeout, publishing).await {
            Ok(published) => published,
            Err(_) => Err(timed_out(self.timeout)),
        }
    }
}

fn timed_out(waited: Duration) -> Error {
    let message = format!(
        "the broker did not confirm within {} s; check whether it is overloaded",
        waited.as_secs_f32()
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// Splits the messages into lanes: one for each group, and one for each message without a group.
fn grouped(entries: Vec<Entry>) -> Vec<Vec<Entry>> {
    let mut lanes: Vec<Vec<Entry>> = Vec::new();
    let mut groups = HashMap::new();
    for entry in entries {
        let Some(group) = &entry.message.group else {
            lanes.push(vec![entry]);
            continue;
        };
        let name = (entry.destination.clone(), group.clone());
        let place = *groups.entry(name).or_insert(lanes.len());
        match lanes.get_mut(place) {
            Some(lane) => lane.push(entry),
            None => lanes.push(vec![entry]),
        }
    }
    lanes
}
