//! The stage of the proxy's tests: the real binary, an upstream that writes down every byte, and a client that says what it likes.

#![allow(dead_code, unused_imports, reason = "no test file needs all of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod client;
pub(crate) mod http2;
mod proxy;
mod upstream;

use std::time::Duration;

pub(crate) use client::{Client, HttpResponse, call, get, post, request, request_to};
pub(crate) use proxy::{Proxy, Starting};
pub(crate) use upstream::{AfterResponse, Parked, Seen, Upstream, answer, respond};

/// How long anything may take before a test has failed.
pub(crate) const PATIENCE: Duration = refrain_testkit::wait::PATIENCE;

pub(crate) use refrain_testkit::wait::until_blocking as until;

/// A command that becomes another one with the rights of nobody in particular; empty where these tests have no others.
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

/// The place of `needle` in `bytes`.
pub(crate) fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes
        .windows(needle.len())
        .position(|window| window == needle)
}
