//! The compared libraries and their setup.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::cargo;

/// Session cookie; peers without sessions ignore it.
pub(super) const SESSION: &str = "Cookie: session=YWxpY2UtYWxpY2UtYWxpYw";
const OTHER_SESSION: &str = "Cookie: session=bWFsbG9yeS1tYWxsb3J5LQ";
/// JWTs of alice, of alice with a rotated token, and of mallory; no peer verifies the signature.
pub(super) const CALLER: &str = "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJzaG9wIiwic3ViIjoiYWxpY2UiLCJqdGkiOiIxIn0.c2lnbmF0dXJl";
pub(super) const ROTATED: &str = "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJzaG9wIiwic3ViIjoiYWxpY2UiLCJqdGkiOiIyIn0.c2lnbmF0dXJl";
const OTHER_CALLER: &str = "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJzaG9wIiwic3ViIjoibWFsbG9yeSIsImp0aSI6IjEifQ.c2lnbmF0dXJl";

/// One library in front of the payments service.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    /// The file that starts the peer.
    pub(super) source: &'static str,
    /// Header of another caller, in the form by which this peer distinguishes callers.
    pub(super) other: &'static str,
    pub(super) is_ours: bool,
    /// Whether records are lost when its process ends; such cases are skipped.
    pub(super) is_in_memory: bool,
    /// How the peer was set up, for the page.
    pub(super) setup: &'static str,
}

pub(super) const PEERS: [Peer; 6] = [
    Peer {
        name: "refrain proxy",
        version: "of this repository",
        source: "",
        other: OTHER_CALLER,
        is_ours: true,
        is_in_memory: false,
        setup: "`store = \"file:records\"` and the default policy, except for a lease of 1 s and a wait of 300 ms, in front of the service without keys.\nCallers send JWTs, whose subject is the scope by default.\nWith opaque bearer tokens it fails `rotated-credential`: each token is a separate scope, unless `scope` is set to a stable value.\nA first run with such tokens showed this failure; since then all systems are tested with JWTs.",
    },
    Peer {
        name: "express-idempotency",
        version: EXPRESS_IDEMPOTENCY,
        source: "express-idempotency.js",
        other: OTHER_CALLER,
        is_ours: false,
        is_in_memory: true,
        setup: "The middleware for all POST with its defaults, as in its README, and a handler that returns early if `isHit` is true.\nThe default store is in memory, which its README does not recommend for production; the only other store in its README uses MongoDB.",
    },
    Peer {
        name: "node-idempotency",
        version: NODE_IDEMPOTENCY,
        source: "node-idempotency.js",
        other: OTHER_CALLER,
        is_ours: false,
        is_in_memory: false,
        setup: "`@node-idempotency/core` with its Redis adapter and `enforceIdempotency`, called from Express as its README says (`onRequest`, `onResponse`), because its Express package was not available in the registry.\nIt leaves status, headers and the replay mark to its caller: `location`, `set-cookie` and `replay-marked` test our few lines around it.",
    },
    Peer {
        name: "asgi-idempotency-header",
        version: ASGI,
        source: "asgi-idempotency-header.py",
        other: OTHER_CALLER,
        is_ours: false,
        is_in_memory: false,
        setup: "The middleware with its Redis backend and its defaults on FastAPI, as in its README.",
    },
    Peer {
        name: "powertools",
        version: POWERTOOLS,
        source: "powertools.py",
        other: OTHER_CALLER,
        is_ours: false,
        is_in_memory: false,
        setup: "`idempotent_function` of Powertools for AWS Lambda (Python) with Redis around the payment function, in FastAPI.\nThe key consists of caller, header and path; the Lambda context has 1 s left.\nPayload validation is off: with Redis this version deletes the hash of the payload when the function returns, and rejects every duplicate.\nIt stores the return value of the function; our code adds status and Location; there is no cookie, and no sign of a replay.",
    },
    Peer {
        name: "axum-idempotent",
        version: AXUM,
        source: "",
        other: OTHER_SESSION,
        is_ours: false,
        is_in_memory: true,
        setup: "The layers of its README's example: direct key mode, key required, sessions in memory; callers are identified by their session cookie.\nIts README says that it is best effort, and that concurrent duplicates can both execute.",
    },
];

pub(super) const EXPRESS_IDEMPOTENCY: &str = "1.0.6";
pub(super) const NODE_IDEMPOTENCY: &str = "1.0.11";
pub(super) const ASGI: &str = "0.2.0";
pub(super) const POWERTOOLS: &str = "3.37.0";
/// The version in the manifest of `benches/peers/axum`.
const AXUM: &str = "0.6.0";

/// A file in `benches/peers`.
pub(super) fn source(name: &str) -> PathBuf {
    cargo::root().join("benches/peers").join(name)
}

/// The command that starts the peer on the first port; our own proxy has its upstream on the second.
pub(super) fn command(
    peer: &Peer,
    place: &Path,
    data: &Path,
    (port, upstream): (u16, u16),
    redis: &str,
) -> io::Result<String> {
    let (at, data_text) = (place.display(), data.display());
    let file = source(peer.source);
    let file = file.display();
    let environment = format!(
        "exec env REDIS_URL={redis} PYTHONDONTWRITEBYTECODE=1 NODE_PATH={at}/node/node_modules"
    );
    Ok(match peer.name {
        "refrain proxy" => {
            let policy = format!(
                "listen = \"127.0.0.1:{port}\"\nadmin = \"127.0.0.1:0\"\nupstream = \"http://127.0.0.1:{upstream}\"\n\
                 store = \"file:records\"\n[policy]\nlease = \"1s\"\nwait = \"300ms\"\n"
            );
            fs::write(data.join("refrain.toml"), policy)?;
            let refrain = super::refrain();
            format!(
                "cd {data_text} && exec {} proxy --config refrain.toml",
                refrain.display()
            )
        }
        "asgi-idempotency-header" => {
            format!("{environment} {at}/asgi/bin/python {file} {port} {data_text}")
        }
        "powertools" => {
            format!("{environment} {at}/powertools/bin/python {file} {port} {data_text}")
        }
        "axum-idempotent" => format!("exec {at}/axum/debug/refrain-peers {port} {data_text}"),
        _ => format!("{environment} node {file} {port} {data_text}"),
    })
}
