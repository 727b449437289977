//! Takes in what a client still sends after its answer is made, and throws it away.
//!
//! Many clients send all of a request before they read. To close on them, or to reset their stream, destroys the answer that is on its way.
//! So they are read for a while, within bounds that no client can stretch.

use std::{
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::timeout;

/// The most that is read.
const BYTES_MAX: usize = 64 << 20;
/// The longest that is read.
const TIME_MAX: Duration = Duration::from_secs(30);
/// The longest that the client may stand still meanwhile.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Reads to the end or up to a bound. `poll_read` tells how many bytes have come; 0 at the end.
pub(super) async fn linger(mut poll_read: impl FnMut(&mut Context<'_>) -> Poll<usize>) {
    let reading = async {
        let mut read = 0;
        while read <= BYTES_MAX {
            match timeout(PAUSE_MAX, poll_fn(&mut poll_read)).await {
                Ok(more @ 1..) => read += more,
                Ok(0) | Err(_) => return,
            }
        }
    };
    // Whether it came to its end makes no difference.
    let _ = timeout(TIME_MAX, reading).await;
}
