//! Stores whether an operation's receipts are reliable, for all processes and across restarts.
//!
//! There are two facts, each an ordinary completed record under an identity that no request can have: a receipt was seen,
//! and a success had none. They need no further feature of a store.
//! If a process dies between the claim of a fact and its completion, the lease lapses, and the next process takes over.

use std::{sync::Arc, time::Duration};

use super::{Engine, Inner, Intent};
use crate::{
    Error, ErrorKind, Fingerprint, Guarantee, Key, Outcome, Result, Scope,
    key::RecordId,
    receipts::{Standing, Witness},
    record::{Claim, Settled, Settlement, State, Verdict},
    store::{FACT, Store},
};

/// Retention of a fact, which outlives every record that it is about. After it, the next receipt restores the fact.
const RETENTION: Duration = Duration::from_hours(24 * 3653);
/// Lease of the claim of a fact: a process that dies before the completion blocks the fact for this long.
const LEASE: Duration = Duration::from_secs(10);

/// A stored fact about an operation's receipts.
#[derive(Debug, Clone, Copy)]
enum Fact {
    /// A receipt was seen.
    Seen,
    /// A success had no receipt, and none was seen since.
    Missing,
}

impl Engine {
    /// Reads from the store whether an operation's receipts were seen before, in this process or another.
    ///
    /// The first claim does this automatically; call it to know earlier.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub async fn learn_standing(&self, witness: &Witness) -> Result<()> {
        self.inner.sync_standing(witness).await
    }
}

impl Inner {
    /// Reads the stored facts before the first claim. Later they are refreshed in the background.
    pub(super) async fn know_standing(self: &Arc<Self>, intent: &Intent) -> Result<()> {
        match &intent.receipts {
            Some(witness) if witness.is_unread() => Box::pin(self.sync_standing(witness)).await,
            _ => {
                self.refresh_standing(intent);
                Ok(())
            }
        }
    }

    /// Refreshes the facts in the background, if they are due.
    pub(super) fn refresh_standing(self: &Arc<Self>, intent: &Intent) {
        let Some(witness) = &intent.receipts else {
            return;
        };
        if witness.is_due(tokio::time::Instant::now()) {
            let (inner, witness) = (self.clone(), witness.clone());
            self.spawn(async move { inner.keep_standing(&witness).await });
        }
    }

    /// Writes a fact that this process learnt, if it is not stored yet.
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

    /// Writes an unsaved fact of this process, or else reads the stored ones.
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

    /// Writes a fact, if it is not stored yet.
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

    /// The identity of a fact. No request has such a scope, because no scope of a policy has parts of these names.
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

    /// Body of the fact's record, for operators who read it.
    fn text(self, operation: &str) -> String {
        match self {
            Self::Seen => format!("Refrain: a receipt of {operation} was seen"),
            Self::Missing => format!("Refrain: a success of {operation} had no receipt"),
        }
    }
}
