//! Reads and discards the rest of a request after its response is made.
//!
//! Many clients send a whole request before they read. Closing the connection or resetting the stream destroys the response in transit.
//! So the rest of the request is read for a while, within limits that no client can extend.

use std::{
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::timeout;

/// Most bytes that are read before a connection is closed.
pub(super) const BYTES_MAX: usize = 64 << 20;
/// Longest time of reading.
const TIME_MAX: Duration = Duration::from_secs(30);
/// Longest pause of the client.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Reads to the end, or until more than `bytes_max` have come, or too slowly. `poll_read` returns the number of bytes that have come; 0 at the end.
pub(super) async fn linger(
    bytes_max: usize,
    mut poll_read: impl FnMut(&mut Context<'_>) -> Poll<usize>,
) {
    let reading = async {
        let mut read = 0;
        while read <= bytes_max {
            match timeout(PAUSE_MAX, poll_fn(&mut poll_read)).await {
                Ok(more @ 1..) => read += more,
                Ok(0) | Err(_) => return,
            }
        }
    };
    // It makes no difference whether the end was reached.
    let _ = timeout(TIME_MAX, reading).await;
}
