//! Fetching: takes due messages, with and without a group.

use std::{sync::Arc, time::Duration};

use refrain::{Backoff, Error, ErrorKind, Result, consume::Delivery};
use tokio::time::{Instant, sleep, timeout};

use super::{
    QueueState, QueueTicket,
    connection::{Ask, QueueConnection, Take},
    row::Taken,
};

/// Bounds of the interval between checks for due messages, which is `ack_wait` / 8. New messages arrive by `NOTIFY`.
const LOOK_EVERY: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(20)..=Duration::from_millis(250);
/// Backoff while the server is unavailable.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
/// Appended to a group's name, gives the smallest name greater than it.
const NEXT: char = '\u{1}';

/// State of the reader between fetches.
#[derive(Debug)]
pub(super) struct Reader {
    link: QueueConnection,
    /// The group to start from, so that all groups get their turn.
    from: String,
    /// Whether the next take starts with grouped messages; alternates, so that neither kind starves the other.
    are_groups_first: bool,
}

impl Reader {
    pub(super) fn new(link: QueueConnection) -> Self {
        Self {
            link,
            from: String::new(),
            are_groups_first: false,
        }
    }

    pub(super) async fn hang_up(&self) {
        self.link.hang_up().await;
    }

    async fn take(&mut self, desk: &Arc<QueueState>, at_most: usize) -> Result<Vec<Delivery>> {
        self.are_groups_first = !self.are_groups_first;
        let mut taken = Vec::new();
        for is_grouped in [self.are_groups_first, !self.are_groups_first] {
            let left = at_most - taken.len();
            if left == 0 {
                break;
            }
            let more = match is_grouped {
                true => self.take_grouped(desk, left).await,
                false => self.take_from(desk, left, None).await,
            };
            match more {
                Ok(more) => taken.extend(more),
                // The rows taken so far are held by us and must be delivered.
                Err(_) if !taken.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    async fn take_grouped(
        &mut self,
        desk: &Arc<QueueState>,
        at_most: usize,
    ) -> Result<Vec<Delivery>> {
        let from = std::mem::take(&mut self.from);
        let mut taken = self.take_from(desk, at_most, Some(&from)).await?;
        if taken.is_empty() && !from.is_empty() {
            taken = self.take_from(desk, at_most, Some("")).await?;
        }
        if taken.len() == at_most {
            let groups = taken.iter().filter_map(|it| it.message.group.as_deref());
            let last = groups.max().unwrap_or_default();
            self.from = format!("{last}{NEXT}");
        }
        Ok(taken)
    }

    async fn take_from(
        &self,
        desk: &Arc<QueueState>,
        at_most: usize,
        from: Option<&str>,
    ) -> Result<Vec<Delivery>> {
        let holder: i64 = rand::random();
        let rows = self.link.request(Ask::Take(Take {
            queue: &desk.queue,
            at_most: i64::try_from(at_most).unwrap_or(i64::MAX),
            holder,
            ack_wait: desk.ack_wait.as_secs_f64(),
            from,
        }));
        let rows = rows.await?;
        let taken = rows.iter().map(|row| Taken::read(&desk.queue, row));
        let taken: Result<Vec<_>, _> = taken.collect();
        let mut taken = taken.map_err(|error| {
            let message = "cannot decode a row of refrain_queue; compare the table with `refrain migrate --queue --print`";
            Error::new(ErrorKind::Invalid, message).with_source(error)
        })?;
        taken.sort_by_key(|taken| taken.id);
        Ok(taken
            .into_iter()
            .map(|it| delivery(desk, holder, it))
            .collect())
    }
}

fn delivery(desk: &Arc<QueueState>, holder: i64, taken: Taken) -> Delivery {
    let ticket = QueueTicket {
        desk: desk.clone(),
        id: taken.id,
        holder,
        is_grouped: taken.message.group.is_some(),
    };
    Delivery {
        message: taken.message,
        attempt: taken.attempt,
        ticket: Box::new(ticket),
    }
}

/// Fetches the next deliveries; waits for the first one, and retries while the server is unavailable.
pub(super) async fn fetch(
    desk: Arc<QueueState>,
    at_most: usize,
    wait: Duration,
) -> Result<Vec<Delivery>> {
    let deadline = Instant::now() + wait;
    let every = (desk.ack_wait / 8).clamp(*LOOK_EVERY.start(), *LOOK_EVERY.end());
    let mut reader = desk.reader.lock().await;
    let mut delays = BACKOFF.delays();
    loop {
        match reader.take(&desk, at_most.max(1)).await {
            Ok(taken) if !taken.is_empty() || Instant::now() >= deadline => return Ok(taken),
            Ok(_) => {
                delays.reset();
                let until = (Instant::now() + every).min(deadline);
                let rung = desk.pool.bell.notified();
                let _ = timeout(until - Instant::now(), rung).await;
            }
            Err(error) if Instant::now() + delays.peek() >= deadline => return Err(error),
            Err(error) => {
                tracing::debug!(%error, queue = desk.queue, "cannot fetch messages; retrying");
                sleep(delays.after_failure()).await;
            }
        }
    }
}
