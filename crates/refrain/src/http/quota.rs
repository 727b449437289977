//! Between `MatchedRequest` and the claim: a request beyond the quota of its scope is refused, unless its key has a record.
//!
//! With a key in the head, nothing of the body is read before.

use std::task::Poll;

use super::{
    body::{Carried, Guarded},
    extract, problem,
    request::{MatchedRequest, QuotaState, RequestState, StateOf, poll_once},
};
use crate::{Key, RecordId, Result, Scope, engine::OverQuota};

impl<S> MatchedRequest<S> {
    /// Admits a request by its head, and then reads its body.
    pub(super) fn admit_by_head<B: Carried, R: Carried>(self, key: Key, body: B) -> StateOf<S, B, R>
    where
        S: Guarded<B, R>,
    {
        let scope = {
            let uri = self.shared.uri(&self.head);
            let host = extract::host(&self.head, &uri);
            extract::scope_of(&self.shared, &self.found, &self.head, host.as_deref())
        };
        let scope = match scope {
            Ok(scope) => scope,
            Err(error) => return self.refuse(&problem::invalid_key(&error)),
        };
        let record = RecordId::derive(self.shared.engine.secret(), &scope, &key);
        self.admit(&scope, record, |this| this.read(Some(key), body))
    }

    /// Proceeds if the scope is within its quota, or the record exists.
    pub(super) fn admit<B: Carried, R: Carried>(
        mut self,
        scope: &Scope,
        record: RecordId,
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
            let found = engine.is_duplicate(record, &over).await;
            (found, over)
        });
        if let Poll::Ready((found, over)) = poll_once(&mut looking) {
            return self.looked_up(found, &over, record, proceed);
        }
        let next = Box::pin(async move {
            let (found, over) = looking.await;
            self.looked_up(found, &over, record, proceed)
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
