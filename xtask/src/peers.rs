//! `cargo xtask peers`: runs `refrain verify` against other idempotency libraries, installed from their registries.
//!
//! Installs everything into `target/peers`, and writes `docs/peers.md`.

use std::{
    fs, io,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

use refrain_servers::{PrivateRedis, free_port};

use crate::{cargo, services::UNAVAILABLE};

mod install;
mod list;
mod page;

use list::{PEERS, Peer};

/// Arguments of `refrain verify` for every peer.
const ASKED: [&str; 22] = [
    "--op",
    "POST /v1/payments?currency=978",
    "--body",
    r#"{"amount":20,"to":"bob"}"#,
    "--bad-body",
    r#"{"amount":-1,"to":"bob"}"#,
    "--failing-body",
    r#"{"amount":503,"reference":"{{unique}}"}"#,
    "--slow-body",
    r#"{"amount":20,"reference":"{{unique}}","slow":true}"#,
    "--other-path",
    "/v1/refunds?currency=978",
    "--header",
    list::CALLER,
    "--rotated-credential",
    list::ROTATED,
    "--lease",
    "1s",
    "--retention",
    "3s",
    "--header",
    list::SESSION,
];

/// Number of attempts to connect while a service starts.
const START_TRIES: u32 = 200;
const START_STEP: Duration = Duration::from_millis(50);

/// The result of one case of `refrain verify`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    verdict: String,
    case: String,
    findings: String,
}

/// Installs the peers, verifies them and writes the page; exit code 69 if something is unavailable.
pub(crate) fn run() -> ExitCode {
    match compare() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask peers: {error}");
            ExitCode::from(UNAVAILABLE)
        }
    }
}

fn compare() -> io::Result<()> {
    let place = cargo::root().join("target/peers");
    fs::create_dir_all(&place)?;
    install::all(&place)?;
    let redis = PrivateRedis::start()?;
    let mut columns = Vec::new();
    for peer in &PEERS {
        eprintln!("xtask peers: {}", peer.name);
        let said = verified(peer, &place, &redis.url())?;
        columns.push((peer, said));
    }
    let page = page::page(&columns, &today()?);
    print!("{}", page::table(&columns));
    fs::write(cargo::root().join("docs/peers.md"), page)
}

fn verified(peer: &Peer, place: &Path, redis: &str) -> io::Result<Vec<Said>> {
    let data = place.join("data").join(peer.name.replace(' ', "-"));
    let _ = fs::remove_dir_all(&data);
    fs::create_dir_all(&data)?;
    let (port, upstream) = (free_port()?, free_port()?);
    let url = format!("http://127.0.0.1:{port}");
    let service = match peer.is_ours {
        true => Some(Upstream::start(place, &data, upstream)?),
        false => None,
    };
    let counting = if peer.is_ours { upstream } else { port };
    let command = list::command(peer, place, &data, (port, upstream), redis)?;
    let output = Command::new(refrain())
        .args(["verify", &url])
        .args(ASKED)
        .args(["--other-credential", peer.other])
        .args(cases(peer)?)
        .arg("--effects-url")
        .arg(format!("http://127.0.0.1:{counting}/ledger"))
        .args(["--restart-command", &command])
        .stdin(Stdio::null())
        .output()?;
    drop(service);
    let said = parsed(&String::from_utf8_lossy(&output.stdout));
    match output.status.code() {
        Some(0 | 1) if !said.is_empty() => Ok(said),
        _ => Err(io::Error::other(format!(
            "cannot verify {}: {}; its command was {command}",
            peer.name,
            String::from_utf8_lossy(&output.stderr).trim(),
        ))),
    }
}

fn refrain() -> PathBuf {
    cargo::root().join("target/debug/refrain")
}

/// Cases to run; a peer that keeps records in memory skips those that restart its process.
fn cases(peer: &Peer) -> io::Result<Vec<String>> {
    if !peer.is_in_memory {
        return Ok(Vec::new());
    }
    let list = Command::new(refrain())
        .args(["verify", "--list"])
        .output()?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let ids = list
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let ids = ids.filter(|id| !id.starts_with("kill-"));
    Ok(ids.flat_map(|id| ["--case".into(), id.into()]).collect())
}

/// Parses the lines of verify's table, such as `  FAIL     other-body      findings`.
fn parsed(text: &str) -> Vec<Said> {
    let line = |line: &str| {
        let (verdict, rest) = line.strip_prefix("  ")?.split_once(' ')?;
        let (case, findings) = rest
            .trim_start()
            .split_once(' ')
            .unwrap_or((rest.trim(), ""));
        let is_one = ["pass", "warn", "FAIL", "skipped"].contains(&verdict);
        (is_one && !case.ends_with(':')).then(|| Said {
            verdict: verdict.into(),
            case: case.into(),
            findings: findings.trim().into(),
        })
    };
    text.lines().filter_map(line).collect()
}

/// The payments service without idempotency keys, upstream of our own proxy. Killed on drop.
struct Upstream(std::process::Child);

impl Upstream {
    fn start(place: &Path, data: &Path, port: u16) -> io::Result<Self> {
        let child = Command::new("node")
            .arg(list::source("payments.js"))
            .args([port.to_string(), data.display().to_string()])
            .env("NODE_PATH", place.join("node/node_modules"))
            .stdin(Stdio::null())
            .spawn()?;
        let service = Self(child);
        for _ in 0..START_TRIES {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Ok(service);
            }
            thread::sleep(START_STEP);
        }
        Err(io::Error::other("the service did not start to listen"))
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn today() -> io::Result<String> {
    let date = Command::new("date").args(["-u", "+%F"]).output()?;
    Ok(String::from_utf8_lossy(&date.stdout).trim().into())
}

#[cfg(test)]
mod tests {
    //! The table is parsed from verify's output for humans; a line that is not parsed would silently drop a case.

    use super::*;

    #[test]
    fn the_table_is_read_and_nothing_else() {
        let text = "http://127.0.0.1:1, seed 7\n\nPOST /v1/payments\n  pass     sequential-duplicate\n  \
                    FAIL     other-body              another body; and more\n\nPOST /v1/payments: effects are counted\n\n  \
                    FAIL other-body: The same key with another body\n       seen: another body\n";
        let said = parsed(text);
        let short: Vec<_> = said
            .iter()
            .map(|it| (&*it.verdict, &*it.case, &*it.findings))
            .collect();
        assert_eq!(
            short,
            [
                ("pass", "sequential-duplicate", ""),
                ("FAIL", "other-body", "another body; and more"),
            ]
        );
    }
}
