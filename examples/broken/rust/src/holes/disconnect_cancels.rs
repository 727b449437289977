//! The run is part of the connection's future, which is dropped when the client hangs up.
//!
//! Seen wherever the handler is awaited in the middleware: in most asynchronous frameworks a client that goes away
//! cancels what it asked for, at whatever await it stands.
//! Cost: the claim was taken and nobody is left to settle it: the key says "in flight", and the client that hung up
//! because it was impatient is the one who retries.

use crate::hole::Hole;

pub(crate) struct DisconnectCancels;

impl Hole for DisconnectCancels {
    fn outlives_clients(&self) -> bool {
        false
    }
}
