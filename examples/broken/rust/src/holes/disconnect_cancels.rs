//! The run is part of the connection's future, which is dropped when the client disconnects.
//!
//! Seen where the middleware awaits the handler: in most asynchronous frameworks a client's disconnect
//! cancels its request at the current await.
//! Cost: the claim is never settled, so the key stays in flight, and the impatient client that disconnected
//! is the one that retries.

use crate::hole::Hole;

pub(crate) struct DisconnectCancels;

impl Hole for DisconnectCancels {
    fn outlives_clients(&self) -> bool {
        false
    }
}
