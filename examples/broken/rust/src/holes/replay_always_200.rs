//! Bodies are kept, statuses are not: what comes from the store is answered with 200.
//!
//! Seen where a cache of bodies was made into an idempotency store.
//! Cost: the first answer said 400 or 503, and its retry says 200: the client believes that it has paid.

use crate::{hole::Hole, service::Answer};

pub(crate) struct ReplayAlways200;

impl Hole for ReplayAlways200 {
    fn is_kept(&self, _: u16) -> bool {
        true
    }

    fn replay(&self, kept: Answer) -> Answer {
        Answer {
            status: 200,
            is_replay: true,
            ..kept
        }
    }
}
