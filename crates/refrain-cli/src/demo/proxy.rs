//! `refrain proxy` in its own process, so that the demo can kill it as a crash would.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, bail};

use super::watch::Watch;

/// The proxy's policy. Real payments need longer times; these keep the demo short.
pub(super) const POLICY: &str = r#"[[operation]]
match        = "POST /v1/payments"
class        = "monetary"
probe        = "GET /v1/payments?key={key}"
wait         = "1s"
timeout      = "500ms"
lease        = "1s"
settle_after = "1500ms"
"#;

/// The most bytes of the proxy's log that are shown if it does not start.
const WORDS_BYTES_MAX: usize = 4 << 10;

/// A running proxy. Dropping it kills it with -9.
#[derive(Debug)]
pub(super) struct Proxy {
    folder: PathBuf,
    upstream: SocketAddr,
    addresses: Addresses,
    process: Process,
    watch: Watch,
}

#[derive(Debug, Clone, Copy)]
struct Addresses {
    listen: SocketAddr,
    admin: SocketAddr,
}

impl Proxy {
    /// Starts the proxy with its records in `folder`, and waits until it listens.
    pub(super) async fn start(folder: &Path, upstream: SocketAddr) -> anyhow::Result<Self> {
        fs::write(folder.join("refrain.toml"), POLICY)?;
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let anywhere = Addresses {
            listen: any,
            admin: any,
        };
        let mut watch = Watch::start()?;
        let (process, addresses) = spawn(folder, upstream, anywhere, &mut watch).await?;
        Ok(Self {
            folder: folder.into(),
            upstream,
            addresses,
            process,
            watch,
        })
    }

    /// The address for buyers.
    pub(super) fn address(&self) -> SocketAddr {
        self.addresses.listen
    }

    /// The admin address.
    pub(super) fn admin(&self) -> SocketAddr {
        self.addresses.admin
    }

    /// Kills the proxy with -9, without draining.
    pub(super) fn kill(&mut self) {
        // Before the wait: after it, another process may have the same PID.
        self.watch.set_process(None);
        self.process.kill();
    }

    /// Starts the proxy again at the same addresses with the same records.
    pub(super) async fn start_again(&mut self) -> anyhow::Result<()> {
        let started = spawn(&self.folder, self.upstream, self.addresses, &mut self.watch);
        (self.process, self.addresses) = started.await?;
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A child process that is killed on drop, even if its start is cancelled.
#[derive(Debug)]
struct Process(Child);

impl Process {
    fn kill(&mut self) {
        // Both fail only if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts the proxy, and returns once it listens.
async fn spawn(
    folder: &Path,
    upstream: SocketAddr,
    addresses: Addresses,
    watch: &mut Watch,
) -> anyhow::Result<(Process, Addresses)> {
    let words = folder.join("proxy.log");
    let child = command(folder, upstream, addresses)?
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&words)?)
        .spawn();
    let mut process = Process(child.context("cannot start the proxy")?);
    watch.set_process(Some(process.0.id()));
    let stdout = process.0.stdout.take();
    let printed = tokio::task::spawn_blocking(move || stdout.and_then(read_addresses)).await?;
    match printed {
        Some(addresses) => Ok((process, addresses)),
        None => {
            watch.set_process(None);
            let words = fs::read(words).unwrap_or_default();
            let words = &words[..words.len().min(WORDS_BYTES_MAX)];
            let words = String::from_utf8_lossy(words);
            bail!("the proxy did not start: {}", words.trim())
        }
    }
}

fn command(folder: &Path, upstream: SocketAddr, addresses: Addresses) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("proxy")
        .args(["--upstream", &format!("http://{upstream}")])
        .args(["--listen", &addresses.listen.to_string()])
        .args(["--admin", &addresses.admin.to_string()])
        .args([
            "--store",
            &format!("file:{}", folder.join("records").display()),
        ])
        .arg("--config")
        .arg(folder.join("refrain.toml"));
    // Environment settings for the user's own proxy must not apply to this one.
    let names = std::env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| name.to_string_lossy().starts_with("REFRAIN_")) {
        command.env_remove(name);
    }
    Ok(command)
}

/// The addresses that the proxy prints. A thread drains the rest of its output, so that the proxy never blocks on a full pipe.
fn read_addresses(stdout: ChildStdout) -> Option<Addresses> {
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let (mut listen, mut admin) = (None, None);
    let addresses = loop {
        let line = lines.next()?;
        let behind = |words: &str| line.strip_prefix(words)?.trim_end().parse().ok();
        listen = listen.or_else(|| behind("listening on http://"));
        admin = admin.or_else(|| behind("admin on http://"));
        if let (Some(listen), Some(admin)) = (listen, admin) {
            break Addresses { listen, admin };
        }
    };
    std::thread::spawn(move || lines.for_each(drop));
    Some(addresses)
}

#[cfg(test)]
mod tests {
    //! A demo whose policy is rejected shows nothing.

    use refrain::policy::File;

    use super::*;

    #[test]
    fn the_policy_is_fine() {
        let settings = File::parse(POLICY, "refrain.toml").unwrap();
        let found = settings.policy.find("POST", "/v1/payments").unwrap();
        assert!(found.operation.probe.is_some() && found.operation.required);
    }
}
