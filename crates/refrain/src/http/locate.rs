//! For operators: finds the record that a request belongs to, without executing it.

use bytes::Bytes;
use http::request::Parts;

use super::{RefrainLayer, extract, observe};
use crate::{Error, ErrorKind, Key, RecordId, Result, policy::Mode};

/// The operation and the record of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// The operation that the request belongs to.
    pub operation: String,
    /// The identity of the record.
    pub record: RecordId,
}

impl RefrainLayer {
    /// Returns the record of a request, with the scope and key that the layer would use; `key` overrides the request's own.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the policy guards no such operation, or if key or scope are missing or invalid.
    pub fn locate(&self, head: &Parts, body: &Bytes, key: Option<Key>) -> Result<Located> {
        let uri = self.shared.uri(head);
        let (method, path) = (head.method.as_str(), uri.path());
        let policy = &self.shared.policy;
        let found = policy.find(method, path).ok_or_else(|| {
            invalid(format!(
                "no guarded operation matches {method} {path}; check the method and the path"
            ))
        })?;
        let operation = &found.operation;
        let content = extract::content(head, body);
        let sent = || extract::find_key(&operation.key, operation.syntax, head, &uri, &content);
        let key = match key {
            Some(key) => Some(key),
            None => sent()?,
        };
        let key = key.ok_or_else(|| invalid("the request has no key; pass one".into()))?;
        let mut intent = extract::intent(&self.shared, &found, key, head, body)?;
        if operation.mode == Mode::Observe {
            intent.scope = observe::scope(intent.scope);
        }
        Ok(Located {
            operation: operation.name.clone(),
            record: self.shared.engine.record_id(&intent),
        })
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
