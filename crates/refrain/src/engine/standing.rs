//! Whether an operation's receipts can be relied on, as the store remembers it: for every process, and after a restart.
//!
//! There are two facts, each an ordinary completed record under an identity that no request can have: a receipt was seen,
//! and a success had none. They need nothing of a store that it does not have anyway.
//! A process that dies between the claim of a fact and its end leaves a lease that lapses, and the next one takes over.

use std::{sync::Arc, time::Duration};

use super::{Engine, Inner, Intent};
use crate::{
    Error, ErrorKind, Fingerprint, Guarantee, Key, Outcome, Result, Scope,
    key::RecordId,
    receipts::{Standing, Witness},
    record::{Claim, Settled, Settlement, State, Verdict},
    store::{FACT, Store},
};

/// A fact outlives every record that it is about. Should it end, the next receipt brings it back.
const RETENTION: Duration = Duration::from_hours(24 * 3653);
/// Writing it takes two steps; a process that dies in between holds it up for so long.
const LEASE: Duration = Duration::from_secs(10);

/// What is remembered of an operation.
#[derive(Debug, Clone, Copy)]
enum Fact {
    /// A receipt was seen.
    Seen,
    /// A success had none, and none was seen since.
    Missing,
}

impl Engine {
    /// Reads from the store whether an operation's receipts were seen before, in this process or another.
    ///
    /// The first claim does that by itself; call this to know it before.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub async fn learn_standing(&self, witness: &Witness) -> Result<()> {
        self.inner.sync_standing(witness).await
    }
}

impl Inner {
    /// Learns what the store remembers before the first promise is made. Later that is asked for again in the background.
    pub(super) async fn know_standing(self: &Arc<Self>, intent: &Intent) -> Result<()> {
        match &intent.receipts {
            Some(witness) if witness.is_unread() => Box::pin(self.sync_standing(witness)).await,
            _ => {
                self.refresh_standing(intent);
                Ok(())
            }
        }
    }

    /// Asks again in the background what the store remembers, where that was not done lately.
    pub(super) fn refresh_standing(self: &Arc<Self>, intent: &Intent) {
        let Some(witness) = &intent.receipts else {
            return;
        };
        if witness.is_due(tokio::time::Instant::now()) {
            let (inner, witness) = (self.clone(), witness.clone());
            self.spawn(async move { inner.keep_standing(&witness).await });
        }
    }

    /// Writes what was learnt here, where the store does not remember it yet.
    pub(super) async fn save_standing(&self, witness: &Witness) {
        if witness.unsaved().is_some() {
            self.keep_standing(witness).await;
        }
    }

    async fn keep_standing(&self, witness: &Witness) {
        if let Err(error) = self.sync_standing(witness).await {
            let operation = witness.operation();
            tracing::warn!(operation, %error, "cannot read or write in the store whether receipts were seen; retried with the next requests");
        }
    }

    /// Writes what was learnt here, or else reads what others have.
    async fn sync_standing(&self, witness: &Witness) -> Result<()> {
        let operation = witness.operation();
        if let Some(standing) = witness.unsaved() {
            self.write_standing(operation, standing).await?;
            witness.saved(standing);
            return Ok(());
        }
        let standing = match self.is_fact(operation, Fact::Missing).await? {
            true => Standing::Missing,
            false if self.is_fact(operation, Fact::Seen).await? => Standing::Proven,
            false => Standing::Unproven,
        };
        witness.read(standing);
        Ok(())
    }

    async fn write_standing(&self, operation: &str, standing: Standing) -> Result<()> {
        match standing {
            Standing::Missing => self.state(operation, Fact::Missing).await,
            Standing::Proven => {
                self.state(operation, Fact::Seen).await?;
                let missing = self.fact_id(operation, Fact::Missing);
                self.store.erase(missing).await.map(drop)
            }
            Standing::Unproven => Ok(()),
        }
    }

    async fn is_fact(&self, operation: &str, fact: Fact) -> Result<bool> {
        let found = self.store.read(self.fact_id(operation, fact)).await?;
        Ok(found.is_some_and(|it| matches!(it.record.state, State::Completed { .. })))
    }

    /// Writes a fact, if it is not there.
    async fn state(&self, operation: &str, fact: Fact) -> Result<()> {
        let id = self.fact_id(operation, fact);
        let claim = Claim {
            guarantee: Guarantee::AtLeastOnce,
            attempts_max: u16::MAX,
            lease: LEASE,
            settle_after: LEASE,
            ..Claim::new(id, Fingerprint(FACT))
        };
        let answer = self.store.claim(std::slice::from_ref(&claim)).await?.pop();
        let settled = match answer.transpose()? {
            Some(Verdict::Replay(_)) => return Ok(()),
            Some(Verdict::Granted(grant)) => {
                let end = Settlement::Complete {
                    outcome: Outcome::new(200, fact.text(operation)).sealed(id),
                    retention: RETENTION,
                    remember: Duration::ZERO,
                };
                Some(self.store.settle(id, grant.fence, end).await?)
            }
            _ => None,
        };
        match settled {
            Some(Settled::Applied) => Ok(()),
            _ => {
                let message = format!("record {id} is being written by another process");
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }

    /// No request has such a scope: its parts are named otherwise.
    fn fact_id(&self, operation: &str, fact: Fact) -> RecordId {
        let scope = Scope::none()
            .with("refrain-receipts", operation)
            .with("fact", fact.name());
        let key = Key::new("fact").unwrap_or_else(|_| unreachable!("letters are a key"));
        RecordId::derive(self.store.secret(), &scope, &key)
    }
}

impl Fact {
    fn name(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::Missing => "missing",
        }
    }

    /// For the person who comes across the record.
    fn text(self, operation: &str) -> String {
        match self {
            Self::Seen => format!("Refrain: a receipt of {operation} was seen"),
            Self::Missing => format!("Refrain: a success of {operation} had no receipt"),
        }
    }
}
