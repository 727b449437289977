//! Several proxies in processes of their own, on one store and in front of one service.

#![allow(
    dead_code,
    reason = "each test file that takes this in uses a part of it"
)]

use std::net::SocketAddr;

use refrain_testkit::servers::free_port;

use crate::{
    proxy::{Proxy, Setup},
    server::Server,
};

/// An address that one node keeps, and nobody else takes while it is dead.
pub(crate) fn lasting_address() -> String {
    format!("127.0.0.1:{}", free_port().unwrap())
}

/// The proxies, each of which keeps its address for all its lives.
pub(crate) struct Fleet {
    nodes: Vec<(Setup, Proxy)>,
}

impl Fleet {
    /// So many, with the same policy.
    pub(crate) fn start(count: u64, server: &Server, upstream: SocketAddr, policy: &str) -> Self {
        let mut fleet = Self { nodes: Vec::new() };
        for _ in 0..count {
            let listen = lasting_address();
            fleet.join(Setup::stored(&listen, &server.url(), upstream, policy));
        }
        fleet
    }

    /// One more.
    pub(crate) fn join(&mut self, setup: Setup) {
        let proxy = setup.start();
        self.nodes.push((setup, proxy));
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|(_, proxy)| proxy.address).collect()
    }

    pub(crate) fn address(&self, node: usize) -> SocketAddr {
        self.proxy(node).address
    }

    pub(crate) fn proxy(&self, node: usize) -> &Proxy {
        &self.nodes[node].1
    }

    pub(crate) fn kill(&mut self, node: usize) {
        self.nodes[node].1.kill();
    }

    /// Again, after a kill.
    pub(crate) fn restart(&mut self, node: usize) {
        let (setup, proxy) = &mut self.nodes[node];
        *proxy = setup.start();
    }

    /// What all of them wrote to standard error, in all their lives.
    pub(crate) fn log(&self) -> String {
        self.nodes.iter().map(|(setup, _)| setup.log()).collect()
    }
}
