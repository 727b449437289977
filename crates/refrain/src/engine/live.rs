//! What a running operation shows of its answer before it has ended.

use std::{any::Any, fmt, sync::Arc};

/// What a running operation shows to its duplicates in this process before it has ended.
///
/// The engine hands it on and does not look inside: who [shows](super::Running::show) it knows what it is.
#[derive(Clone)]
pub struct Live(Arc<dyn Any + Send + Sync>);

impl Live {
    /// Shows this.
    pub fn new<T: Send + Sync + 'static>(shown: Arc<T>) -> Self {
        Self(shown)
    }

    /// What is shown, if it is of that type.
    #[must_use]
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.clone().downcast().ok()
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Live")
    }
}
