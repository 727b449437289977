//! An upstream that failed under load once filled the disk of the logs, and the lines that an operator needed were among
//! millions of others.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use support::{AfterResponse, Proxy, Upstream, call, get, post, until};
use tokio::time::Instant;

const REPEATED: &str = "no response from the upstream";
const REQUESTS: usize = 300;

#[test]
fn repeated_errors_are_counted_and_unknown_outcomes_are_all_logged() {
    let upstream = Upstream::start(|_, _| AfterResponse::Close);
    let proxy = Proxy::start(upstream.address, "");
    let since = Instant::now();
    for _ in 0..REQUESTS {
        assert_eq!(call(proxy.address, get("/")).status, 502);
    }
    let records = (0..20).map(|at| {
        let told = call(proxy.address, post(&format!("k{at}"), "x"));
        told.header("refrain-record").unwrap().to_owned()
    });
    let records: Vec<_> = records.collect();
    until("every unknown outcome has a line", || {
        let log = proxy.errors();
        let is_named = |record: &String| log.contains(&format!("refrain records resolve {record}"));
        records.iter().all(is_named)
    });
    let pauses = usize::try_from(since.elapsed().as_secs()).unwrap() / 10;
    let lines = proxy.errors().matches(REPEATED).count();
    assert!(
        (1..=1 + pauses).contains(&lines),
        "{lines} lines in {pauses} pauses"
    );
    until("suppressed lines are counted", || {
        call(proxy.address, get("/"));
        let log = proxy.errors();
        let mut repeated = log.lines().filter(|line| line.contains(REPEATED));
        repeated.any(|line| {
            let suppressed = line.split("suppressed=").nth(1).unwrap();
            suppressed
                .split(' ')
                .next()
                .unwrap()
                .parse::<usize>()
                .unwrap()
                > 0
        })
    });
}
