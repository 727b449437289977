//! The layer in force, and the service that each client connection makes of it.
//!
//! A reload replaces the layer as a whole. A request takes the layer that is in force when its head has arrived, and keeps
//! it to its end. Requests compare one number, so that a connection only rebuilds its service after a reload.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use refrain::http::{RefrainLayer, RefrainService};
use tower_layer::Layer as _;

use crate::forward::Forward;

/// The layer in force, which a reload replaces. All threads share it.
#[derive(Debug)]
pub struct CurrentLayer {
    /// Number of the layer, which grows with each replacement.
    number: AtomicU64,
    layer: Mutex<RefrainLayer>,
}

impl CurrentLayer {
    pub(crate) fn new(layer: RefrainLayer) -> Arc<Self> {
        Arc::new(Self {
            number: AtomicU64::new(0),
            layer: Mutex::new(layer),
        })
    }

    /// The layer in force.
    #[must_use]
    pub fn get(&self) -> RefrainLayer {
        self.lock().clone()
    }

    /// Guards all requests that arrive from now on with this layer, and [retires](RefrainLayer::retire) the old one.
    pub fn replace(&self, layer: RefrainLayer) {
        layer.report();
        let old = {
            let mut current = self.lock();
            let old = std::mem::replace(&mut *current, layer);
            self.number.fetch_add(1, Ordering::Release);
            old
        };
        old.retire();
    }

    /// The layer in force and its number.
    fn numbered(&self) -> (u64, RefrainLayer) {
        let layer = self.lock();
        (self.number.load(Ordering::Relaxed), layer.clone())
    }

    fn lock(&self) -> MutexGuard<'_, RefrainLayer> {
        self.layer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The service of one client connection.
pub(crate) struct ConnectionService {
    current: Arc<CurrentLayer>,
    forward: Forward,
    /// The service, with the number of its layer.
    made: Mutex<(u64, RefrainService<Forward>)>,
}

impl ConnectionService {
    /// The service for the requests of one client, which `forward` sends on.
    pub(crate) fn new(current: &Arc<CurrentLayer>, forward: Forward) -> Self {
        let (number, layer) = current.numbered();
        Self {
            current: current.clone(),
            made: Mutex::new((number, layer.layer(forward.clone()))),
            forward,
        }
    }

    /// The service for one request, guarded by the layer in force.
    pub(crate) fn get(&self) -> RefrainService<Forward> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.0 != self.current.number.load(Ordering::Acquire) {
            let (number, layer) = self.current.numbered();
            *made = (number, layer.layer(self.forward.clone()));
        }
        made.1.clone()
    }
}
