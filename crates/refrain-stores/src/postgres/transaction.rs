//! Transactional mode: claim, effect and outcome in the caller's transaction, in one commit.

use std::{sync::Arc, time::Duration};

use refrain::{
    Claim, Error, ErrorKind, Fence, Guarantee, Intent, Outcome, RecordId, Result, Verdict,
    engine::host_name,
    record::{Change, Claimant, Command, Grant, Reply},
};
use tokio_postgres::{
    error::SqlState,
    types::{ToSql, Type},
};

use super::{
    Postgres,
    columns::{Claims, Completions, Rows},
    connect::PostgresContext,
    decide::next_fence,
    errors::StatementError,
    pace::Now,
    rows::{self, Id, RecordRow},
    within::{CallersTransaction, Cells, Said, Within},
};

/// Maximum number of tries if the record is deleted and inserted concurrently.
const TRIES_MAX: u32 = 8;

impl Postgres {
    /// Claims a key in the caller's transaction on the same database.
    ///
    /// A granted claim takes effect when the transaction commits, together with its other writes. A rollback also
    /// undoes the claim. Until then, other claims of the key wait for the transaction, up to the intent's `wait`;
    /// then they replay its outcome, or get the verdict *in flight*.
    /// If the answer to the commit is lost, run everything again: it replays if the commit succeeded, and runs if not.
    ///
    /// The guarantee in the terms is ignored: claim and effect commit together.
    /// Commit only after [`Claimed::complete_in`]: a claim committed without an outcome becomes indeterminate, and is
    /// not run again.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     store: &refrain_stores::postgres::Postgres, client: &mut tokio_postgres::Client, intent: &refrain::Intent,
    /// # ) -> Result<refrain::Outcome, Box<dyn std::error::Error>> {
    /// use refrain::{Outcome, Verdict};
    ///
    /// let mut transaction = client.transaction().await?;
    /// let outcome = match store.claim_in(&mut transaction, intent).await? {
    ///     Verdict::Granted(claimed) => {
    ///         transaction.execute("UPDATE accounts SET balance = balance - 20 WHERE id = 7", &[]).await?;
    ///         claimed.complete_in(&transaction, Outcome::new(200, "paid")).await?
    ///     }
    ///     Verdict::Replay(outcome) => outcome,
    ///     other => return Err(format!("not now: {other:?}").into()),
    /// };
    /// transaction.commit().await?;
    /// # Ok(outcome)
    /// # }
    /// ```
    ///
    /// # Errors
    /// If a statement fails. A savepoint restores the transaction, unless the connection broke.
    ///
    /// # Cancellation
    /// If dropped, the transaction must be rolled back.
    pub async fn claim_in(
        &self,
        mut transaction: impl CallersTransaction,
        intent: &Intent,
    ) -> Result<Verdict<Claimed>> {
        let claim = self.claim_of(intent);
        let transaction = &mut transaction;
        self.do_in(transaction, "SAVEPOINT refrain_claim").await?;
        let verdict = self.claim_within(transaction, &claim, intent.terms.wait);
        match verdict.await {
            Ok(verdict) => {
                self.do_in(transaction, "RELEASE SAVEPOINT refrain_claim")
                    .await?;
                check_readable(&verdict, claim.id)?;
                Ok(verdict.map(|grant| self.claimed(claim.id, grant, intent)))
            }
            Err(error) => {
                self.do_in(transaction, "ROLLBACK TO SAVEPOINT refrain_claim")
                    .await?;
                self.do_in(transaction, "RELEASE SAVEPOINT refrain_claim")
                    .await?;
                match error {
                    // Another transaction holds the record, so its lease cannot be read.
                    ClaimRefusal::Busy => Ok(Verdict::InFlight {
                        lease_left: Duration::ZERO,
                    }),
                    ClaimRefusal::Error(error) => Err(error),
                }
            }
        }
    }

    async fn do_in(&self, transaction: &mut impl Within, what: &str) -> Result<()> {
        let done = transaction.execute(what, &[]).await;
        done.map(drop).map_err(|said| self.convert_error(said))
    }

    fn claim_of(&self, intent: &Intent) -> Claim {
        let terms = &intent.terms;
        Claim {
            id: RecordId::derive(&self.secret, &intent.scope, &intent.key),
            fingerprint: intent.fingerprint,
            credential: intent.credential,
            claimant: Claimant::random(),
            // Applies only to a claim committed without an outcome, which may have taken effect.
            guarantee: Guarantee::AtMostOnce,
            attempts_max: terms.attempts_max,
            overtakes: None,
            lease: terms.lease,
            settle_after: terms.settle_after,
            origin: intent.origin(&self.secret, host_name()),
        }
    }

    fn claimed(&self, id: RecordId, grant: Grant, intent: &Intent) -> Claimed {
        Claimed {
            id,
            grant,
            retention: intent.terms.retention,
            remember: intent.terms.remember,
            now: self.time.now(),
            place: self.place.clone(),
        }
    }

    async fn claim_within(
        &self,
        inner: &mut impl Within,
        claim: &Claim,
        wait: Duration,
    ) -> Result<Verdict, ClaimRefusal> {
        // A `lock_timeout` of 0 means no limit.
        let wait = wait.as_millis().clamp(1, i32::MAX as u128).to_string();
        inner
            .query(WAIT, &[(&wait, Type::TEXT)])
            .await
            .map_err(|said| self.refused(said))?;
        let mut verdict = None;
        for _ in 0..TRIES_MAX {
            verdict = match self.claim_new(inner, claim).await? {
                Some(grant) => Some(Verdict::Granted(grant)),
                None => self.claim_held(inner, claim).await?,
            };
            if verdict.is_some() {
                break;
            }
        }
        inner
            .query(WAIT_NO_MORE, &[])
            .await
            .map_err(|said| self.refused(said))?;
        verdict.ok_or(ClaimRefusal::Busy)
    }

    /// Inserts the record; waits for a transaction that inserts the same one.
    async fn claim_new(
        &self,
        inner: &mut impl Within,
        claim: &Claim,
    ) -> Result<Option<Grant>, ClaimRefusal> {
        let nonce: u32 = rand::random();
        let mut claims = Claims::default();
        claims.push(claim, nonce);
        let epoch = self.place.epoch();
        let (now, signed) = (self.time.now(), epoch.cast_signed());
        let head: [&(dyn ToSql + Sync); 3] = [&now, &signed, &self.node];
        let head = head.into_iter().zip([Type::INT8, Type::INT4, Type::INT8]);
        let parameters: Vec<_> = head
            .chain(claims.parameters().into_iter().zip(Claims::TYPES))
            .collect();
        let rows = inner.query(&self.place.sql.claim, &parameters).await;
        let rows = rows.map_err(|said| self.refused(said))?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let counter: i64 = row.cell(1).map_err(rows::unreadable)?;
        let fence = Fence {
            epoch,
            counter: counter.cast_unsigned(),
            nonce,
        };
        Ok(Some(Grant { fence, attempt: 1 }))
    }

    /// Locks the existing record and decides; `None` if it was deleted meanwhile.
    async fn claim_held(
        &self,
        inner: &mut impl Within,
        claim: &Claim,
    ) -> Result<Option<Verdict>, ClaimRefusal> {
        let sql = &self.place.sql;
        let (ids, now, one) = (vec![Id(claim.id.0)], self.time.now(), 1_i32);
        let held = inner.query(&sql.hold, &[(&ids, Type::UUID_ARRAY)]).await;
        let held = held.map_err(|said| self.refused(said))?;
        let Some(held) = held.first() else {
            return Ok(None);
        };
        let held = rows::read(held)?;
        let clock = [(&now as _, Type::INT8), (&one as _, Type::INT4)];
        let clock = inner.query(&sql.clock, &clock).await;
        let (now, counter) = self.clock(&clock.map_err(|said| self.refused(said))?)?;
        let candidate = Fence {
            epoch: self.place.epoch(),
            counter,
            nonce: rand::random(),
        };
        let fence = next_fence(Some(&held.record), candidate);
        let command = Command::Claim(claim.clone(), fence);
        let stepped = now.step(Some(held.record.clone()), command);
        if stepped.change != Change::Nothing
            && let Some(record) = stepped.record
        {
            let held = RecordRow {
                record,
                holder: Some(self.node),
                waited: held.waited,
            };
            self.write(inner, claim.id, &held).await?;
        }
        match stepped.reply {
            Reply::Verdict(verdict) => Ok(Some(verdict)),
            Reply::Settled(_) | Reply::Erased(_) | Reply::Aged => {
                Err(super::unexpected_reply().into())
            }
        }
    }

    fn clock(&self, rows: &[impl Cells]) -> Result<(Now, u64), ClaimRefusal> {
        let row = rows.first().ok_or_else(super::unexpected_reply)?;
        let now: i64 = row.cell(0).map_err(rows::unreadable)?;
        let counters: Vec<i64> = row.cell(1).map_err(rows::unreadable)?;
        let counter = counters.first().copied().unwrap_or_default();
        Ok((self.time.believe(now), counter.cast_unsigned()))
    }

    async fn write(
        &self,
        inner: &mut impl Within,
        id: RecordId,
        held: &RecordRow,
    ) -> Result<(), ClaimRefusal> {
        let mut rows = Rows::default();
        rows.push(id, held);
        let parameters: Vec<_> = rows.parameters().into_iter().zip(Rows::TYPES).collect();
        let written = inner.execute(&self.place.sql.update, &parameters).await;
        written.map_err(|said| self.refused(said))?;
        Ok(())
    }

    fn refused(&self, said: Said) -> ClaimRefusal {
        match said.code {
            Some(SqlState::LOCK_NOT_AVAILABLE) => ClaimRefusal::Busy,
            _ => ClaimRefusal::Error(self.convert_error(said)),
        }
    }

    fn convert_error(&self, said: Said) -> Error {
        convert_error(said, &self.place)
    }
}

/// Why there is no verdict.
enum ClaimRefusal {
    /// Another transaction holds the record for longer than the wait limit.
    Busy,
    Error(Error),
}

impl From<Error> for ClaimRefusal {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Saves the caller's own `lock_timeout`; `WAIT_NO_MORE` restores it after the claim.
const WAIT: &str = "SELECT set_config('refrain.lock_timeout', current_setting('lock_timeout'), true), \
     set_config('lock_timeout', $1, true)";
const WAIT_NO_MORE: &str =
    "SELECT set_config('lock_timeout', current_setting('refrain.lock_timeout'), true)";

/// Rejects an encrypted outcome: claims in the caller's transaction have no keys.
fn check_readable(verdict: &Verdict, id: RecordId) -> Result<()> {
    match verdict {
        Verdict::Replay(outcome) if outcome.is_encrypted() => {
            let message = format!(
                "record {id} is encrypted, and a claim in your own transaction cannot decrypt it; \
                 use a schema of its own for these claims"
            );
            Err(Error::new(ErrorKind::Corrupt, message))
        }
        _ => Ok(()),
    }
}

fn convert_error(said: Said, place: &PostgresContext) -> Error {
    if said.code == Some(SqlState::UNDEFINED_TABLE) {
        let message = format!(
            "schema \"{}\" does not exist in the database of the transaction: {}; begin the transaction on the database of {}",
            place.address.schema, said.words, place.address
        );
        return Error::new(refrain::ErrorKind::Invalid, message);
    }
    StatementError::from(said).into_error()
}

/// Claim granted in the caller's transaction.
#[derive(Debug)]
#[must_use = "commit only after `complete_in`: a commit without an outcome makes the record indeterminate"]
pub struct Claimed {
    id: RecordId,
    grant: Grant,
    retention: Duration,
    remember: Duration,
    /// Replaces the database's clock in tests.
    now: Option<i64>,
    place: Arc<PostgresContext>,
}

impl Claimed {
    /// Identity of the record.
    #[must_use]
    pub fn id(&self) -> RecordId {
        self.id
    }

    /// Granted fence (fencing token) and attempt, to pass to systems outside this database.
    #[must_use]
    pub fn grant(&self) -> Grant {
        self.grant
    }

    /// Stores the outcome, which takes effect when the transaction commits; returns the outcome as stored.
    ///
    /// # Errors
    /// If the statement fails; the transaction has to be rolled back.
    ///
    /// # Cancellation
    /// If dropped, the transaction must be rolled back.
    pub async fn complete_in(
        self,
        mut transaction: impl CallersTransaction,
        outcome: Outcome,
    ) -> Result<Outcome> {
        let outcome = outcome.sealed(self.id);
        let mut completions = Completions::default();
        completions.push(
            self.id,
            self.grant.fence,
            &outcome,
            self.retention,
            self.remember,
        );
        let mut parameters: Vec<(&(dyn ToSql + Sync), Type)> = vec![(&self.now, Type::INT8)];
        parameters.extend(completions.parameters().into_iter().zip(Completions::TYPES));
        let done = transaction
            .query(&self.place.sql.complete, &parameters)
            .await;
        let done = done.map_err(|said| convert_error(said, &self.place))?;
        match done.len() {
            1 => Ok(outcome),
            _ => Err(self.not_claimed_here()),
        }
    }

    /// Releases the key: the operation provably had no effect. Needed only if the rest of the transaction is committed.
    ///
    /// # Errors
    /// As [`complete_in`](Self::complete_in).
    ///
    /// # Cancellation
    /// As [`complete_in`](Self::complete_in).
    pub async fn release_in(self, mut transaction: impl CallersTransaction) -> Result<()> {
        let (id, fence) = (Id(self.id.0), self.grant.fence);
        let (epoch, counter) = (fence.epoch.cast_signed(), fence.counter.cast_signed());
        let nonce = fence.nonce.cast_signed();
        let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
            (&id, Type::UUID),
            (&epoch, Type::INT4),
            (&counter, Type::INT8),
            (&nonce, Type::INT4),
        ];
        let done = transaction
            .execute(&self.place.sql.release, &parameters)
            .await;
        match done.map_err(|said| convert_error(said, &self.place))? {
            1 => Ok(()),
            _ => Err(self.not_claimed_here()),
        }
    }

    fn not_claimed_here(&self) -> Error {
        let message = format!(
            "record {} was not claimed in this transaction; settle a claim in the transaction that made it",
            self.id
        );
        Error::new(refrain::ErrorKind::Invalid, message)
    }
}
