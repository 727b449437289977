//! Several proxies in their own processes, with one store and one upstream.

#![allow(dead_code, reason = "each test file uses only part of this module")]

use std::net::SocketAddr;

use refrain_testkit::servers::free_port;

use crate::{
    proxy::{Proxy, Setup},
    server::Server,
};

/// An address that stays reserved for one node, also while the node is down.
pub(crate) fn lasting_address() -> String {
    format!("127.0.0.1:{}", free_port().unwrap())
}

/// The proxies, each of which keeps its address when it is restarted.
pub(crate) struct Fleet {
    nodes: Vec<(Setup, Proxy)>,
}

impl Fleet {
    /// Starts `count` proxies with the same policy.
    pub(crate) fn start(count: u64, server: &Server, upstream: SocketAddr, policy: &str) -> Self {
        let mut fleet = Self { nodes: Vec::new() };
        for _ in 0..count {
            let listen = lasting_address();
            fleet.join(Setup::stored(&listen, &server.url(), upstream, policy));
        }
        fleet
    }

    /// Starts one more proxy.
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

    /// Restarts a killed node.
    pub(crate) fn restart(&mut self, node: usize) {
        let (setup, proxy) = &mut self.nodes[node];
        *proxy = setup.start();
    }

    /// Standard error of all nodes, over all restarts.
    pub(crate) fn log(&self) -> String {
        self.nodes.iter().map(|(setup, _)| setup.log()).collect()
    }
}
