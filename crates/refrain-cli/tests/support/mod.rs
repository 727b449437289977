//! Test setup for the proxy: the real binary, an upstream that records every byte, and a client that sends any bytes.

#![allow(
    dead_code,
    unused_imports,
    reason = "each test file uses only part of this module"
)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod client;
pub(crate) mod http2;
mod proxy;
mod terminal;
mod upstream;

use std::time::Duration;

pub(crate) use client::{Client, HttpResponse, call, get, post, request, request_json, request_to};
pub(crate) use proxy::{Proxy, Starting};
pub(crate) use terminal::Terminal;
pub(crate) use upstream::{AfterResponse, Parked, Seen, Upstream, answer, respond};

/// How long any step may take before the test fails.
pub(crate) const PATIENCE: Duration = refrain_testkit::wait::PATIENCE;

pub(crate) use refrain_testkit::wait::until_blocking as until;

/// Prefix that runs a command as an unprivileged user; empty if the tests are not run as root.
pub(crate) fn unprivileged() -> &'static [&'static str] {
    match rustix::process::geteuid().is_root() {
        true => &[
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
        ],
        false => &[],
    }
}

/// Offset of `needle` in `bytes`.
pub(crate) fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes
        .windows(needle.len())
        .position(|window| window == needle)
}
