//! The response that a running operation shows to its duplicates before it has ended.

use std::{any::Any, fmt, sync::Arc};

/// A value that a running operation shows to its duplicates in this process before it has ended, such as a streamed response.
///
/// The engine passes it on unchanged; the code that [shows](super::Running::show) it defines its type.
#[derive(Clone)]
pub struct Live(Arc<dyn Any + Send + Sync>);

impl Live {
    /// Wraps the value to show.
    pub fn new<T: Send + Sync + 'static>(shown: Arc<T>) -> Self {
        Self(shown)
    }

    /// The shown value, if it has that type.
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
