//! Server processes: the upstream, nginx and the proxy. Each is pinned to one processor and ends with its owner.

use std::{
    convert::Infallible,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;

use crate::{clock, harness};

const START_MAX: Duration = Duration::from_secs(10);
/// Prefixes of the line in which a process prints its address.
const TOLD: [&str; 2] = ["listening on http://", "chaos    http://"];

/// A server process.
pub(crate) struct Peer {
    child: Child,
    pub(crate) address: SocketAddr,
    /// Its admin address, if it has one.
    pub(crate) admin: Option<SocketAddr>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Peer {
    /// A service that echoes every request's body.
    pub(crate) fn upstream(processor: usize) -> Result<Self> {
        let mut command = tied(&std::env::current_exe()?, processor);
        command.args(["--child", "upstream"]);
        Self::that_tells(command)
    }

    /// The proxy of a build, with one thread and these further lines in `[proxy]`.
    pub(crate) fn refrain(
        binary: &Path,
        processor: usize,
        upstream: SocketAddr,
        store: &str,
        folder: &Path,
        lines: &str,
    ) -> Result<Self> {
        let file = folder.join("refrain.toml");
        fs::write(&file, format!("[proxy]\nthreads = 1\n{lines}"))?;
        let mut command = tied(binary, processor);
        command
            .args(["proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(["--upstream", &format!("http://{upstream}")])
            .args(["--store", store, "--config"])
            .arg(file);
        Self::start(command, Some("admin on http://"))
    }

    /// `refrain chaos` of this build, without any rule.
    pub(crate) fn chaos(processor: usize, upstream: SocketAddr) -> Result<Self> {
        let mut command = tied(&refrain_binary()?, processor);
        command
            .args([
                "chaos",
                "--listen",
                "127.0.0.1:0",
                "--control",
                "127.0.0.1:0",
            ])
            .args(["--upstream", &format!("http://{upstream}")]);
        Self::that_tells(command)
    }

    /// nginx as a plain proxy, with one worker.
    pub(crate) fn nginx(processor: usize, upstream: SocketAddr, folder: &Path) -> Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let file = folder.join("nginx.conf");
        fs::write(&file, nginx_conf(address, upstream, folder))?;
        let mut command = tied(&nginx_binary()?, processor);
        command
            .arg("-p")
            .arg(folder)
            .arg("-c")
            .arg(&file)
            .args(["-e", "stderr"]);
        let child = command.stdout(Stdio::null()).spawn()?;
        let peer = Self {
            child,
            address,
            admin: None,
        };
        peer.wait_until_it_answers()?;
        Ok(peer)
    }

    /// Starts a process that prints its address.
    fn that_tells(command: Command) -> Result<Self> {
        Self::start(command, None)
    }

    /// Starts a process that prints its address, and after it its admin address with this prefix.
    fn start(mut command: Command, admin_prefix: Option<&str>) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("the process has no output")?;
        let mut lines = BufReader::new(output).lines();
        let address = loop {
            let line = lines.next().context("the process exited at once")??;
            let told = TOLD.iter().find_map(|told| line.strip_prefix(told));
            if let Some(address) = told.and_then(|told| told.split(' ').next()) {
                break address.parse()?;
            }
        };
        let admin = admin_prefix.map(|prefix| {
            let line = lines
                .next()
                .context("the process printed no admin address")??;
            let address = line.strip_prefix(prefix).context(line.clone())?;
            anyhow::Ok(address.parse()?)
        });
        // Reads the rest of the output, so that the pipe does not fill up.
        thread::spawn(move || lines.for_each(drop));
        Ok(Self {
            child,
            address,
            admin: admin.transpose()?,
        })
    }

    fn wait_until_it_answers(&self) -> Result<()> {
        let start = clock::now();
        while TcpStream::connect(self.address).is_err() {
            ensure!(start.elapsed() < START_MAX, "nginx does not start");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// CPU time of the process so far.
    pub(crate) fn processor_time(&self) -> Duration {
        processor_time(self.child.id()).unwrap_or_default()
    }
}

/// CPU time of a process so far.
pub(crate) fn processor_time(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields
        .split_whitespace()
        .skip(11)
        .map(|field| field.parse::<u64>());
    let (user, system) = (ticks.next()?.ok()?, ticks.next()?.ok()?);
    let a_second = rustix::param::clock_ticks_per_second();
    Some(Duration::from_millis((user + system) * 1_000 / a_second))
}

fn tied(program: &Path, processor: usize) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &processor.to_string()]).arg(program);
    command
}

/// Pins this process to a processor.
pub(crate) fn tie_self(processor: usize) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

fn nginx_conf(address: SocketAddr, upstream: SocketAddr, folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "worker_processes 1; daemon off; master_process off; pid {folder}/nginx.pid;
events {{ worker_connections 2048; }}
http {{
  access_log off; keepalive_requests 100000000; keepalive_timeout 60s;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream service {{ server {upstream}; keepalive 512; keepalive_requests 100000000; }}
  server {{
    listen {address};
    location / {{ proxy_pass http://service; proxy_http_version 1.1; proxy_set_header Connection \"\"; }}
  }}
}}
"
    )
}

/// The `refrain` binary of this build.
pub(crate) fn refrain_binary() -> Result<PathBuf> {
    let binary = std::env::current_exe()?.with_file_name("refrain");
    ensure!(
        binary.exists(),
        "{} is missing; run `cargo build --release --package refrain-cli`, as `cargo xtask bench` does",
        binary.display()
    );
    Ok(binary)
}

/// An installed nginx, or one unpacked from Debian's package without installation.
fn nginx_binary() -> Result<PathBuf> {
    let places = ["/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/bin/nginx"];
    if let Some(found) = places.iter().map(Path::new).find(|place| place.exists()) {
        return Ok(found.into());
    }
    let folder = std::env::current_exe()?.with_file_name("nginx-package");
    let binary = folder.join("usr/sbin/nginx");
    if !binary.exists() {
        println!(
            "  nginx is not installed; downloading its package and unpacking it next to the build"
        );
        fs::create_dir_all(&folder)?;
        run(Command::new("apt-get")
            .args(["download", "nginx"])
            .current_dir(&folder))?;
        let package = fs::read_dir(&folder)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|it| it == "deb"))
            .context("no package was downloaded")?;
        run(Command::new("dpkg-deb").arg("-x").arg(package).arg(&folder))?;
    }
    ensure!(
        binary.exists(),
        "cannot install nginx; run apt-get install nginx"
    );
    Ok(binary)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command
        .output()
        .map_err(|error| anyhow!("{command:?}: {error}; run apt-get install nginx"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// Echoes every request's body; runs in the process of [`Peer::upstream`].
pub(crate) fn serve_upstream() -> Result<()> {
    harness::thread_runtime()?.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("listening on http://{}", listener.local_addr()?);
        std::io::stdout().flush()?;
        serve(listener).await
    })
}

/// Echoes every request's body on this listener.
pub(crate) async fn serve(listener: tokio::net::TcpListener) -> Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let serving = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service_fn(echo));
        tokio::spawn(serving);
    }
}

async fn echo(request: Request<Incoming>) -> Result<Response<Full<bytes::Bytes>>, Infallible> {
    let body = request.into_body().collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    Ok(Response::new(Full::new(body)))
}
