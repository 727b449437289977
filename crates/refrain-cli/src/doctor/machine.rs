//! What the machine has to provide: permissions, ports, limits, and the upstream.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http::Uri;
use refrain::policy::{AccessLogTarget, Settings, TlsSettings, redacted};
use refrain_proxy::ServerTls;
use rustix::{
    fs::Access,
    process::{Resource, getrlimit},
};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};

use super::Finding;
use crate::client::{ADMIN, Client, RequestError, TlsFlags};

/// Length of the accept queue that the proxy asks the kernel for.
const BACKLOG: u64 = 4_096;
/// File descriptors beside those of connections: files of the store, logs, the runtime.
const DESCRIPTORS_RESERVED: u64 = 64;
const CONNECT_MAX: Duration = Duration::from_secs(5);

pub(super) async fn check(settings: &Settings) -> Vec<Finding> {
    let mut findings = vec![writable("audit log", &settings.audit_folder())];
    if let Some(AccessLogTarget::File(file)) = settings.access_log.as_ref().map(|it| &it.target) {
        findings.push(writable("access log", file));
    }
    let tls = [settings.tls.as_ref(), settings.admin_tls.as_ref()];
    let [listen_tls, admin_tls] = tls;
    findings.push(port("listen", settings.listen, listen_tls).await);
    findings.push(port("admin", settings.admin, admin_tls).await);
    findings.extend(listen_tls.map(|it| certificate("[tls]", ServerTls::of_proxy(it))));
    findings.extend(admin_tls.map(|it| certificate("[admin_tls]", ServerTls::of_admin(it))));
    findings.push(descriptors(settings.proxy.connections_max));
    findings.extend(accept_queue());
    findings.extend(upstream(settings).await);
    findings
}

/// Warns about a file that contains a password and that everybody can read.
pub(super) fn readable_secrets(file: &Path) -> Option<Finding> {
    let text = fs::read_to_string(file).ok()?;
    let mode = fs::metadata(file).ok()?.permissions().mode();
    let has_password = text.lines().any(|line| {
        let mut quoted = line.split(['"', '\'', ',']);
        quoted.any(|value| value.contains("://") && redacted(value) != value)
    });
    (has_password && mode & 0o044 != 0).then(|| {
        let file = file.display();
        let message = format!("{file} contains a password, and others can read it");
        let fix = format!(
            "chmod 600 {file}, or move the password to a file that `store_file` or another `…_file` names"
        );
        Finding::warning("permissions", message, fix)
    })
}

/// Checks whether a file or folder can be written, or created where it is missing.
pub(super) fn writable(check: &'static str, path: &Path) -> Finding {
    let existing = nearest(path);
    match rustix::fs::access(&existing, Access::WRITE_OK) {
        Ok(()) if existing == path => Finding::ok(check, format!("{} is writable", path.display())),
        Ok(()) => Finding::ok(check, format!("{} can be created", path.display())),
        Err(error) => Finding::error(
            check,
            format!(
                "cannot write {}: {}",
                existing.display(),
                io::Error::from(error)
            ),
            "run as the owner of this path, change its permissions, or name another path",
        ),
    }
}

/// The path itself, or the nearest of its parents that exists.
pub(super) fn nearest(path: &Path) -> PathBuf {
    let mut parents = path.ancestors();
    let found = parents.find(|it| it.exists() && !it.as_os_str().is_empty());
    found.map_or_else(|| PathBuf::from("."), Path::to_owned)
}

/// Checks that a port is free, or that a proxy already listens on it.
async fn port(name: &'static str, address: SocketAddr, tls: Option<&TlsSettings>) -> Finding {
    let error = match TcpListener::bind(address).await {
        Ok(_) => return Finding::ok("ports", format!("{name} {address} is free")),
        Err(error) => error,
    };
    if error.kind() == io::ErrorKind::AddrInUse {
        if tls.is_some_and(TlsSettings::requires_client) {
            return Finding::warning(
                "ports",
                format!("{name} {address} is in use, and requires certificates of its clients"),
                "check that a running proxy has this port, and no other program",
            );
        }
        return match is_ours(name, address, tls.is_some()).await {
            true => Finding::ok(
                "ports",
                format!("{name} {address} is served by a running proxy"),
            ),
            false => Finding::error(
                "ports",
                format!("{name} {address} is in use by another program"),
                format!("stop that program, or set `{name}` to another port"),
            ),
        };
    }
    let fix = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "choose a port of 1024 or above, or give the process the capability CAP_NET_BIND_SERVICE".into()
        }
        _ => format!("set `{name}` to an address of this machine"),
    };
    Finding::error(
        "ports",
        format!("cannot listen on {name} {address}: {error}"),
        fix,
    )
}

/// Checks that the certificate and the key of a listener can be used.
fn certificate(table: &str, loaded: Result<Arc<ServerTls>, impl std::fmt::Display>) -> Finding {
    match loaded {
        Ok(_) => Finding::ok("tls", format!("the certificate and key of {table} fit")),
        Err(error) => {
            let fix = format!("correct the files that {table} names");
            Finding::error("tls", error.to_string(), fix)
        }
    }
}

/// Whether a Refrain process serves this address: its admin listener answers, or it returns the pages of problems.
async fn is_ours(name: &str, address: SocketAddr, is_tls: bool) -> bool {
    let scheme = if is_tls { "https" } else { "http" };
    let url = format!("{scheme}://{address}");
    // The certificate names the host that clients use, not this address.
    let Ok(client) = Client::new(&ADMIN, Some(&url), None, &TlsFlags::unverified()) else {
        return false;
    };
    match name {
        "admin" => matches!(
            client.get("/api/overview").await,
            Ok(_) | Err(RequestError::Refused { .. })
        ),
        _ => client.is_refrain().await,
    }
}

fn descriptors(connections_max: usize) -> Finding {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    // Each client connection has one to the upstream, and a quarter is reserved.
    let needed = (connections_max as u64 * 2 + DESCRIPTORS_RESERVED) * 4 / 3;
    if limit >= needed {
        return Finding::ok(
            "limits",
            format!("{limit} open files are enough for {connections_max} connections"),
        );
    }
    let fits = limit.saturating_mul(3) / 8;
    Finding::warning(
        "limits",
        format!("{limit} open files allow about {fits} of {connections_max} connections"),
        format!(
            "set LimitNOFILE={needed} in the systemd unit, run `ulimit -Hn {needed}`, or lower `connections_max`"
        ),
    )
}

fn accept_queue() -> Option<Finding> {
    let text = fs::read_to_string("/proc/sys/net/core/somaxconn").ok()?;
    let allowed: u64 = text.trim().parse().ok()?;
    Some(match allowed >= BACKLOG {
        true => Finding::ok(
            "limits",
            format!("the kernel queues up to {allowed} new connections"),
        ),
        false => Finding::warning(
            "limits",
            format!(
                "the kernel queues only {allowed} new connections; a burst of clients waits a second or more"
            ),
            format!("sysctl -w net.core.somaxconn={BACKLOG}"),
        ),
    })
}

/// Checks that the upstream accepts connections.
async fn upstream(settings: &Settings) -> Option<Finding> {
    let Some(url) = settings.upstream.as_deref() else {
        let fix = "write `upstream` into refrain.toml; workers and relays do not need it";
        return Some(Finding::warning(
            "upstream",
            "no upstream is set, so `refrain proxy` does not start",
            fix,
        ));
    };
    let uri: Uri = url.parse().ok()?;
    let default = if uri.scheme_str() == Some("https") {
        443
    } else {
        80
    };
    let host = uri.host()?.trim_matches(['[', ']']);
    let connecting = TcpStream::connect((host, uri.port_u16().unwrap_or(default)));
    let error = match timeout(CONNECT_MAX, connecting).await {
        Ok(Ok(_)) => {
            return Some(Finding::ok(
                "upstream",
                format!("{} accepts connections", redacted(url)),
            ));
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "timed out".into(),
    };
    let message = format!("cannot connect to {}: {error}", redacted(url));
    Some(Finding::warning(
        "upstream",
        message,
        "start the service, or correct `upstream`",
    ))
}
