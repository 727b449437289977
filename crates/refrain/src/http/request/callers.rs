//! `Verifying` and `Confirming`: the states in which a request waits until it is known who its caller is; and the scope in
//! which an earlier version kept the records of callers that it could not tell apart.

use super::{
    Carried, ClaimReply, ClaimResult, Confirmation, Duration, Engine, Error, Guard, Guarded,
    Intent, Key, MatchedRequest, ReadBody, RecordId, RequestState, Scope, StateOf, Verdict, caller,
    extract, problem, reply,
};
use crate::store::Store as _;

impl<S> MatchedRequest<S> {
    /// Whether its token has to be verified before the claim.
    pub(super) fn needs_verifying(&self) -> bool {
        self.claims.is_none() && self.shared.needs_token(&self.found.operation)
    }

    /// Verifies its token, and continues.
    pub(super) fn verify<F, R: Send + 'static, E: Send + 'static>(
        self,
        then: impl FnOnce(Self) -> RequestState<F, R, E> + Send + 'static,
    ) -> RequestState<F, R, E>
    where
        S: Send + 'static,
    {
        let next = Box::pin(async move {
            let (operation, headers) = (&self.found.operation, &self.head.headers);
            let verified = self.shared.verified_claims(operation, headers).await;
            match verified {
                Ok(claims) => then(Self {
                    claims: Some(Box::new(claims)),
                    ..self
                }),
                Err(problem) => self.refuse(&problem),
            }
        });
        RequestState::Verifying { next }
    }

    /// Claims, now that everything about the request is known.
    pub(super) fn claim<B: Carried, R: Carried>(self, key: Key, body: ReadBody) -> StateOf<S, B, R>
    where
        S: Guarded<B, R>,
    {
        let mut intent = match self.intent(key, &body.bytes) {
            Ok(intent) => intent,
            Err(problem) => return self.refuse(&problem),
        };
        let Some(earlier) = self.earlier_scope() else {
            return self.send_claim::<B, R>(intent, body);
        };
        let next = Box::pin(async move {
            match find_earlier(&self.shared.engine, &intent, &earlier).await {
                Ok(true) => intent.scope = earlier,
                Ok(false) => {}
                Err(error) => {
                    let record = self.shared.engine.record_id(&intent);
                    return self.unclaimed::<B, R>(record, error, body);
                }
            }
            self.send_claim::<B, R>(intent, body)
        });
        RequestState::Verifying { next }
    }

    /// The scope in which an earlier version may have kept the record.
    fn earlier_scope(&self) -> Option<Scope> {
        let claims = self.claims.as_deref();
        // Records that do not survive the process were written by this version.
        let is_kept = || {
            let store = self.shared.engine.store();
            store.guarantees().survives_process
        };
        extract::earlier_scope(&self.shared, &self.found, &self.head, claims).filter(|_| is_kept())
    }

    /// Asks the upstream whether the caller may see an outcome, if the policy says so, and continues.
    pub(super) fn claimed<B: Carried, R: Carried>(
        self,
        claimed: ClaimResult,
        record: RecordId,
        body: ReadBody,
    ) -> StateOf<S, B, R>
    where
        S: Guarded<B, R>,
    {
        let is_asked = self.found.operation.replay_probe.is_some();
        if !is_asked || !caller::shows_an_outcome(&claimed.reply) {
            return self.confirmed::<B, R>(claimed, record, body);
        }
        let next = Box::pin(async move {
            let (key, headers) = (&claimed.intent.key, &self.head.headers);
            match caller::confirm(&self.shared, &self.found, headers, key, record).await {
                Confirmation::Allowed => self.allowed::<B, R>(claimed, record, body).await,
                Confirmation::Refused(response) => RequestState::replied(*response),
                Confirmation::Unknown => self.refuse(&problem::unconfirmed().with_record(record)),
            }
        });
        RequestState::Confirming { next }
    }

    /// Continues for a caller that the upstream knows. Its credential may be a newer one of the same scope: then the claim
    /// is repeated without the credential.
    async fn allowed<B: Carried, R: Carried>(
        self,
        claimed: ClaimResult,
        record: RecordId,
        body: ReadBody,
    ) -> StateOf<S, B, R>
    where
        S: Guarded<B, R>,
    {
        let Ok(ClaimReply::Verdict(Verdict::OtherCredential)) = &claimed.reply else {
            return self.confirmed::<B, R>(claimed, record, body);
        };
        let mut intent = claimed.intent;
        intent.credential = None;
        let claimed = self
            .shared
            .engine
            .send_claim(intent, record, self.since)
            .await;
        match claimed.reply {
            // The record has disappeared meanwhile. Dropping the guard releases the claim, which has no credential.
            // A takeover keeps the credential of the first request.
            Ok(ClaimReply::Verdict(Verdict::Granted(guard))) if guard.attempt() == 1 => {
                drop(guard);
                let lease_left = Duration::from_secs(1);
                let verdict = Verdict::<Guard>::InFlight { lease_left };
                RequestState::replied(reply::to_verdict(&self.shared, record, &verdict))
            }
            _ => self.confirmed::<B, R>(claimed, record, body),
        }
    }
}

/// Whether an earlier version kept the record of this request, in the scope that it used.
///
/// In that scope, callers share keys that have scopes of their own now, so the record may be that of another caller.
async fn find_earlier(engine: &Engine, intent: &Intent, scope: &Scope) -> Result<bool, Error> {
    let id = RecordId::derive(engine.secret(), scope, &intent.key);
    let found = engine.store().read(id).await?;
    Ok(found.is_some_and(|found| {
        let record = &found.record;
        match (record.credential, intent.credential) {
            (Some(first), Some(asking)) => first == asking,
            // A tombstone has no credential.
            _ => {
                record.fingerprint == intent.fingerprint
                    || Some(record.fingerprint) == intent.earlier_fingerprint
            }
        }
    }))
}
