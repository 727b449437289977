//! Messages under way to the broker: groups beside each other, one message of a group behind the other.

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

/// What a lane tells.
#[derive(Debug)]
pub(super) enum End {
    /// The broker has confirmed this one; the lane goes on.
    Confirmed(i64),
    /// The lane is through.
    Done,
    /// The lane was stopped before it tried these.
    Stopped(Vec<i64>),
    /// One failed; what is behind it was not tried.
    Failed {
        entry: Box<Entry>,
        error: Error,
        behind: Vec<i64>,
        /// When the lane began.
        since: Instant,
    },
}

/// All lanes of one run. Dropped, they end where they are.
#[derive(Debug)]
pub(super) struct Lanes {
    publisher: Arc<dyn Publisher>,
    timeout: Duration,
    tasks: JoinSet<End>,
    /// Which task is which lane.
    lanes: HashMap<Id, Arc<Hold>>,
    /// What is held, and by which lane. No more than may be in flight.
    held: HashMap<i64, Arc<Hold>>,
    tell: UnboundedSender<i64>,
    told: UnboundedReceiver<i64>,
    is_stopped: Arc<AtomicBool>,
}

/// For how long a lane has what it has.
#[derive(Debug)]
struct Hold {
    lapses: Mutex<Instant>,
    is_lost: AtomicBool,
}

impl Hold {
    fn stands(&self) -> bool {
        let lapses = *self.lapses.lock().unwrap_or_else(PoisonError::into_inner);
        !self.is_lost.load(Relaxed) && Instant::now() < lapses
    }

    fn renew(&self, lapses: Instant) {
        *self.lapses.lock().unwrap_or_else(PoisonError::into_inner) = lapses;
    }
}

impl Lanes {
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

    /// Whether everything has come to its end, and was told.
    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.told.is_empty()
    }

    /// How many messages are under way.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    pub(super) fn ids(&self) -> Vec<i64> {
        self.held.keys().copied().collect()
    }

    /// Sends these on their way; they are ours until then.
    pub(super) fn begin(&mut self, entries: Vec<Entry>, lapses: Instant) {
        for entries in grouped(entries) {
            let hold = Arc::new(Hold {
                lapses: Mutex::new(lapses),
                is_lost: AtomicBool::new(false),
            });
            for entry in &entries {
                self.held.insert(entry.id, hold.clone());
            }
            let lane = Lane {
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

    /// These are ours until then; the others are somebody else's.
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

    /// No lane begins another message.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Relaxed);
    }

    /// Waits for what a lane tells, for ever where there is none. May be dropped.
    pub(super) async fn next(&mut self) -> End {
        tokio::select! {
            biased;
            Some(id) = self.told.recv() => {
                self.held.remove(&id);
                End::Confirmed(id)
            }
            Some(ended) = self.tasks.join_next_with_id() => match ended {
                Ok((id, end)) => {
                    // What it still has was confirmed, and is told in a moment.
                    let is_done = matches!(end, End::Done);
                    let lane = self.lanes.remove(&id).filter(|_| !is_done);
                    self.let_go(lane.as_ref());
                    end
                }
                // The publisher panicked. What the lane had is free when its lease has lapsed.
                Err(error) => {
                    let lane = self.lanes.remove(&error.id());
                    self.let_go(lane.as_ref());
                    End::Done
                }
            },
            else => std::future::pending().await,
        }
    }

    /// One more that was confirmed, if there is one already.
    pub(super) fn confirmed(&mut self) -> Option<i64> {
        let id = self.told.try_recv().ok()?;
        self.held.remove(&id);
        Some(id)
    }

    fn let_go(&mut self, lane: Option<&Arc<Hold>>) {
        if let Some(lane) = lane {
            self.held.retain(|_, other| !Arc::ptr_eq(other, lane));
        }
    }
}

/// One group, or one message without.
struct Lane {
    publisher: Arc<dyn Publisher>,
    timeout: Duration,
    tell: UnboundedSender<i64>,
    hold: Arc<Hold>,
    is_stopped: Arc<AtomicBool>,
}

impl Lane {
    async fn run(self, entries: Vec<Entry>) -> End {
        let since = Instant::now();
        let mut entries = entries.into_iter();
        let ids = |entries: std::vec::IntoIter<Entry>| entries.map(|entry| entry.id).collect();
        while let Some(entry) = entries.next() {
            // What lapsed is somebody else's, who begins with the same message.
            if self.is_stopped.load(Relaxed) || !self.hold.stands() {
                let behind: Vec<_> = ids(entries);
                let left = std::iter::once(entry.id).chain(behind).collect();
                return End::Stopped(left);
            }
            if let Err(error) = self.publish(&entry).await {
                return End::Failed {
                    entry: Box::new(entry),
                    error,
                    behind: ids(entries),
                    since,
                };
            }
            // There is a receiver for as long as there are lanes.
            let _ = self.tell.send(entry.id);
        }
        End::Done
    }

    async fn publish(&self, entry: &Entry) -> Result<(), Error> {
        let publishing = self.publisher.publish(&entry.destination, &entry.message);
        match timeout(self.timeout, publishing).await {
            Ok(published) => published,
            Err(_) => Err(silent(self.timeout)),
        }
    }
}

fn silent(waited: Duration) -> Error {
    let message = format!(
        "the broker did not confirm within {}s; see whether it is overloaded",
        waited.as_secs_f32()
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// Which of the entries belong together: each group is a lane, and so is each message without one.
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
