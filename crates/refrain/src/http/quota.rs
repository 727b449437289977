//! Between `MatchedRequest` and the claim: a request beyond the quota of its scope is refused, unless its key has a record.
//!
//! With a key in the head, nothing of the body is read before.

use std::task::Poll;

use super::{
    body::{Carried, Guarded},
    extract, problem,
    request::{MatchedRequest, RequestState, StateOf, poll_once},
};
use crate::{
    Key, RecordId, Result, Scope,
    engine::{Admission, OverQuota},
};

/// Whether a request was admitted within the quota of its scope.
#[derive(Debug, Default)]
pub(super) enum QuotaState {
    /// Not asked yet.
    #[default]
    Unchecked,
    /// Within the quota; the admission is kept until the claim is decided.
    Admitted(Option<Admission>),
    /// A duplicate of a record, which needs no admission.
    Duplicate,
}

impl QuotaState {
    pub(super) fn is_checked(&self) -> bool {
        !matches!(self, Self::Unchecked)
    }

    /// Takes the admission, to keep it with the claim.
    pub(super) fn take(&mut self) -> Option<Admission> {
        match self {
            Self::Admitted(admission) => admission.take(),
            Self::Unchecked | Self::Duplicate => None,
        }
    }
}

impl<S> MatchedRequest<S> {
    /// Admits a request by its head, if its key is there, and then reads its body.
    pub(super) fn admit_by_head<B: Carried, R: Carried>(
        self,
        key: Option<Key>,
        body: B,
    ) -> StateOf<S, B, R>
    where
        S: Guarded<B, R>,
    {
        let Some(key) = key.clone().filter(|_| self.shared.engine.has_quota()) else {
            return self.read_body(key, body);
        };
        let scope = match self.scope() {
            Ok(scope) => scope,
            Err(error) => return self.refuse(&problem::invalid_key(&error)),
        };
        let secret = self.shared.engine.secret();
        let record = RecordId::derive(secret, &scope, &key);
        // An earlier version may have kept the record in another scope.
        let earlier = self.earlier_scope();
        let earlier = earlier.map_or(record, |it| RecordId::derive(secret, &it, &key));
        self.admit(&scope, [record, earlier], |this| {
            this.read_body(Some(key), body)
        })
    }

    fn scope(&self) -> Result<Scope> {
        let uri = self.shared.uri(&self.head);
        let host = extract::host(&self.head, &uri);
        let claims = self.claims.as_deref();
        extract::request_scope(
            &self.shared,
            &self.found,
            &self.head,
            claims,
            host.as_deref(),
        )
    }

    /// Proceeds if the scope is within its quota, or one of the records exists.
    pub(super) fn admit<B: Carried, R: Carried>(
        mut self,
        scope: &Scope,
        records: [RecordId; 2],
        proceed: impl FnOnce(Self) -> StateOf<S, B, R> + Send + 'static,
    ) -> StateOf<S, B, R>
    where
        S: Guarded<B, R>,
    {
        let over = match self.shared.engine.admit(scope) {
            Ok(admission) => {
                self.quota = QuotaState::Admitted(admission);
                return proceed(self);
            }
            Err(over) => over,
        };
        let engine = self.shared.engine.clone();
        let mut looking = Box::pin(async move {
            let found = engine.is_duplicate(&records, &over).await;
            (found, over)
        });
        if let Poll::Ready((found, over)) = poll_once(&mut looking) {
            return self.looked_up(found, &over, records[0], proceed);
        }
        let next = Box::pin(async move {
            let (found, over) = looking.await;
            self.looked_up(found, &over, records[0], proceed)
        });
        RequestState::ReadingBody { next }
    }

    fn looked_up<B: Carried, R: Carried>(
        mut self,
        found: Result<bool>,
        over: &OverQuota,
        record: RecordId,
        proceed: impl FnOnce(Self) -> StateOf<S, B, R>,
    ) -> StateOf<S, B, R>
    where
        S: Guarded<B, R>,
    {
        match found {
            Ok(true) => {
                self.quota = QuotaState::Duplicate;
                proceed(self)
            }
            Ok(false) => self.refuse(&problem::over_quota(over)),
            Err(error) => {
                crate::log_rarely!(error, %error, "cannot look up a record for a scope that is over its quota");
                self.refuse(&problem::no_store().with_record(record))
            }
        }
    }
}
