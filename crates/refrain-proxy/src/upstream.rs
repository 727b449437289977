//! HTTP/1.1 client for the upstream: sends one request and reads its response, inside the caller's future.
//!
//! A connection has no task of its own, except to finish sending a request that is answered early: one system call writes a request
//! and another reads its response. Bytes that are not unambiguously one response are an error, and their connection is never reused.

mod connection;
mod exchange;
mod head;

pub(crate) use connection::UpstreamConnection;
pub(crate) use exchange::{
    ExchangeFailure, ExchangeTerms, UpstreamRequest, UpstreamResponse, exchange,
};
pub(crate) use head::{UpstreamHead, UpstreamHeadParser};

#[cfg(test)]
mod tests;
