//! Decisions about locked records, and how they are written.

use std::collections::BTreeMap;

use refrain::{
    Error, Fence, RecordId, Result,
    record::{Change, Record, Reply, Settled, Verdict},
};
use tokio_postgres::{Client, Row, Statement};

use super::{
    columns::Rows,
    errors::StatementError,
    job::{Ask, Job},
    pace::Now,
    rows::{self, Id, RecordRow},
    sql::Sql,
};

/// Prepared statements that write.
#[derive(Debug)]
pub(super) struct Writing {
    insert: Statement,
    update: Statement,
    delete: Statement,
    notify: Statement,
}

impl Writing {
    pub(super) async fn prepare(client: &Client, sql: &Sql) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            insert: client.prepare(&sql.insert).await?,
            update: client.prepare(&sql.update).await?,
            delete: client.prepare(&sql.delete).await?,
            notify: client.prepare(&sql.notify).await?,
        })
    }
}

/// Result of a transaction.
pub(super) struct Decided {
    pub(super) answers: Vec<Result<Reply>>,
    /// Records that could not be inserted because another transaction inserted them first.
    pub(super) lost: Vec<RecordId>,
}

/// Locked records during a transaction, with the decisions so far.
pub(super) struct Decisions {
    now: Now,
    epoch: u32,
    counters: Vec<i64>,
    /// Random identifier of this handle.
    node: i64,
    records: BTreeMap<RecordId, RowState>,
    answers: Vec<Result<Reply>>,
    /// Settled records for which another process waits.
    told: Vec<String>,
}

/// Current state of a record within the transaction, and whether it existed before.
struct RowState {
    /// An error if the row is damaged: a damaged record is never overwritten.
    held: Result<Option<RecordRow>>,
    was_there: bool,
    is_changed: bool,
}

impl Decisions {
    pub(super) fn new(now: Now, epoch: u32, counters: Vec<i64>, node: i64) -> Self {
        Self {
            now,
            epoch,
            counters,
            node,
            records: BTreeMap::new(),
            answers: Vec::new(),
            told: Vec::new(),
        }
    }

    pub(super) fn add_row(&mut self, id: RecordId, held: Result<RecordRow>) {
        let slot = RowState {
            held: held.map(Some),
            was_there: true,
            is_changed: false,
        };
        self.records.insert(id, slot);
    }

    pub(super) fn decide(&mut self, job: &Job) {
        let answer = self.decided(job);
        self.answers.push(answer);
    }

    fn decided(&mut self, job: &Job) -> Result<Reply> {
        let candidate = self.fence();
        let slot = self.records.entry(job.id()).or_insert_with(|| RowState {
            held: Ok(None),
            was_there: false,
            is_changed: false,
        });
        let before = match &slot.held {
            Ok(held) => held.clone(),
            Err(error) => return Err(Error::new(error.kind(), error.to_string())),
        };
        let record = before.as_ref().map(|held| held.record.clone());
        let fence = next_fence(record.as_ref(), candidate);
        let stepped = self.now.step(record, job.command(fence));
        // A retry after a lost answer: the record is gone because the first attempt already freed it.
        if job.is_repeated && job.frees() && before.is_none() {
            return Ok(Reply::Settled(Settled::Applied));
        }
        let was_waited = before.as_ref().is_some_and(|held| held.waited);
        let is_waited = was_waited
            || before
                .as_ref()
                .is_some_and(|held| needs_notification(held, &stepped.reply, self.node));
        if stepped.change == Change::Nothing && is_waited == was_waited {
            return Ok(stepped.reply);
        }
        if was_waited && matches!(job.ask, Ask::Settle(..)) {
            self.told.push(job.id().to_string());
        }
        let is_granted = matches!(stepped.reply, Reply::Verdict(Verdict::Granted(_)));
        let holder = match is_granted {
            true => Some(self.node),
            false => before.and_then(|held| held.holder),
        };
        slot.is_changed = true;
        slot.held = Ok(stepped.record.map(|record| RecordRow {
            record,
            holder,
            waited: is_waited,
        }));
        Ok(stepped.reply)
    }

    fn fence(&mut self) -> Fence {
        Fence {
            epoch: self.epoch,
            counter: self.counters.pop().unwrap_or_default().cast_unsigned(),
            nonce: rand::random(),
        }
    }

    /// Writes the changes and commits, pipelined.
    pub(super) async fn write(
        self,
        client: &Client,
        writing: &Writing,
    ) -> Result<Decided, StatementError> {
        let changes = self.changes();
        let (updated, inserted, deleted, told, committed) = tokio::join!(
            biased;
            changes.update(client, writing),
            changes.insert(client, writing),
            changes.delete(client, writing),
            notify(&self.told, client, writing),
            client.batch_execute("COMMIT"),
        );
        updated?;
        let inserted = inserted?;
        deleted?;
        told?;
        committed?;
        let mut lost = changes.new;
        for row in &inserted {
            let made = rows::id(row)?;
            lost.retain(|id| *id != made);
        }
        Ok(Decided {
            answers: self.answers,
            lost,
        })
    }

    fn changes(&self) -> Changed {
        let mut changed = Changed::default();
        for (id, slot) in self.records.iter().filter(|(_, slot)| slot.is_changed) {
            match (&slot.held, slot.was_there) {
                (Ok(Some(held)), true) => changed.updated.push(*id, held),
                (Ok(Some(held)), false) => {
                    changed.new.push(*id);
                    changed.inserted.push(*id, held);
                }
                (Ok(None), true) => changed.deleted.push(Id(id.0)),
                (Ok(None), false) | (Err(_), _) => {}
            }
        }
        changed
    }
}

/// Changed records, grouped by statement.
#[derive(Default)]
struct Changed {
    updated: Rows,
    inserted: Rows,
    deleted: Vec<Id>,
    /// Identities of the inserted rows.
    new: Vec<RecordId>,
}

impl Changed {
    async fn update(
        &self,
        client: &Client,
        writing: &Writing,
    ) -> Result<(), tokio_postgres::Error> {
        if !self.updated.is_empty() {
            let parameters = self.updated.parameters();
            client.execute(&writing.update, &parameters).await?;
        }
        Ok(())
    }

    async fn insert(
        &self,
        client: &Client,
        writing: &Writing,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        if self.inserted.is_empty() {
            return Ok(Vec::new());
        }
        let parameters = self.inserted.parameters();
        client.query(&writing.insert, &parameters).await
    }

    async fn delete(
        &self,
        client: &Client,
        writing: &Writing,
    ) -> Result<(), tokio_postgres::Error> {
        if !self.deleted.is_empty() {
            client.execute(&writing.delete, &[&self.deleted]).await?;
        }
        Ok(())
    }
}

async fn notify(
    told: &Vec<String>,
    client: &Client,
    writing: &Writing,
) -> Result<(), tokio_postgres::Error> {
    if !told.is_empty() {
        client.execute(&writing.notify, &[told]).await?;
    }
    Ok(())
}

pub(super) const NO_FENCE: Fence = Fence {
    epoch: 0,
    counter: 0,
    nonce: 0,
};

/// Returns the candidate, or one above the record's last fence if a restored or promoted server counts from below it.
pub(super) fn next_fence(record: Option<&Record>, candidate: Fence) -> Fence {
    match record.and_then(Record::fence) {
        Some(last) if last >= candidate => Fence {
            counter: last.counter.saturating_add(1),
            nonce: rand::random(),
            ..last
        },
        _ => candidate,
    }
}

/// Whether the record has to be marked because a caller waits on another handle than the holder's.
pub(super) fn needs_notification(held: &RecordRow, reply: &Reply, node: i64) -> bool {
    let waits = matches!(reply, Reply::Verdict(Verdict::InFlight { .. }));
    waits && !held.waited && held.holder != Some(node)
}
