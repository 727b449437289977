//! Bodies are stored, statuses are not: every replay has status 200.
//!
//! Seen where a body cache was turned into an idempotency store.
//! Cost: the first response is 400 or 503 and its replay is 200, so the client believes that it has paid.

use crate::{hole::Hole, service::SampleResponse};

pub(crate) struct ReplayAlways200;

impl Hole for ReplayAlways200 {
    fn is_kept(&self, _: u16) -> bool {
        true
    }

    fn replay(&self, kept: SampleResponse) -> SampleResponse {
        SampleResponse {
            status: 200,
            is_replay: true,
            ..kept
        }
    }
}
