//! Whether running nodes answer, and have the same version and the same time.

use std::collections::BTreeSet;

use refrain::clock::wall_time;

use super::{Finding, store};
use crate::client::{ADMIN, Client, TlsFlags};

pub(super) async fn check(nodes: &[String], tls: &TlsFlags) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut versions = BTreeSet::new();
    for node in nodes {
        match look(node, tls).await {
            Ok((version, clock)) => {
                findings.push(Finding::ok(
                    "nodes",
                    format!("{node} runs version {version}"),
                ));
                findings.extend(clock);
                versions.insert(version);
            }
            Err(message) => {
                let fix = "start the node, or correct its address or REFRAIN_ADMIN_TOKEN";
                findings.push(Finding::error("nodes", message, fix));
            }
        }
    }
    if versions.len() > 1 {
        let versions: Vec<_> = versions.into_iter().collect();
        findings.push(Finding::warning(
            "nodes",
            format!("the nodes run different versions: {}", versions.join(", ")),
            "finish the upgrade; docs/operating/upgrades.md says which versions work on one store",
        ));
    }
    findings
}

/// Version of a node, and the finding about its clock.
async fn look(node: &str, tls: &TlsFlags) -> Result<(String, Option<Finding>), String> {
    let client = Client::new(&ADMIN, Some(node), None, tls);
    let client = client.map_err(|error| error.to_string())?;
    let before = wall_time();
    let (date, overview) = client
        .get_dated("/api/overview")
        .await
        .map_err(|error| error.to_string())?;
    let ours = (before + wall_time()) / 2;
    let version = overview["version"].as_str().unwrap_or("unknown").to_owned();
    Ok((version, date.map(|theirs| store::skew(node, ours, theirs))))
}
