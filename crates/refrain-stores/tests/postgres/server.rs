//! Private PostgreSQL server for one test, with settings that other tests could not share.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use refrain_testkit::{servers::free_port, wait};
use tempfile::TempDir;

/// PostgreSQL on its own port, with the superuser `refrain` and the database `postgres`.
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) folder: TempDir,
    settings: Vec<String>,
    child: Child,
}

/// Settings that differ from the defaults.
#[derive(Default)]
pub(crate) struct Setup<'a> {
    /// Password of the superuser; without one every login is accepted.
    pub(crate) password: Option<&'a str>,
    /// Additional settings.
    pub(crate) settings: &'a [&'a str],
    /// Name and content of files in the server's folder.
    pub(crate) files: &'a [(&'a str, &'a str)],
}

impl Server {
    pub(crate) async fn start(setup: Setup<'_>) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("refrain-pg-")
            .tempdir_in("/tmp")
            .unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let data = folder.path().join("data");
        initdb(folder.path(), &data, setup.password);
        for (name, text) in setup.files {
            let path = data.join(name);
            fs::write(&path, text).unwrap();
            chown(&path);
        }
        let port = free_port().unwrap();
        let settings = setup.settings.iter().map(|it| it.to_string()).collect();
        let child = spawn(folder.path(), port, &settings);
        let server = Self {
            port,
            folder,
            settings,
            child,
        };
        server.wait().await;
        server
    }

    /// Kills the server and all of its processes, like a crash.
    pub(crate) fn crash(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let data = self.folder.path().join("data");
        // The server does not restart before its last process is gone.
        wait::until_blocking("all its processes are gone", || {
            let pids = working_in(&data);
            for pid in &pids {
                let _ = Command::new("kill").args(["-9", pid]).output();
            }
            pids.is_empty()
        });
    }

    /// Restarts the server on the data that the crash left.
    pub(crate) async fn restart(&mut self) {
        self.child = spawn(self.folder.path(), self.port, &self.settings);
        self.wait().await;
    }

    async fn wait(&self) {
        let log = self.folder.path().join("log");
        wait::until("the private PostgreSQL starts", async || {
            let said = fs::read_to_string(&log).unwrap_or_default();
            said.contains("ready to accept")
        })
        .await;
    }

    pub(crate) fn url(&self, user: &str, query: &str) -> String {
        format!(
            "postgres://{user}@127.0.0.1:{}/postgres?connect_timeout=10&{query}",
            self.port
        )
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(folder: &Path, port: u16, settings: &Vec<String>) -> Child {
    let mut command = as_server(&binary("postgres"));
    command.arg("-D").arg(folder.join("data"));
    command.args(["-p", &port.to_string()]);
    command
        .arg("-c")
        .arg(format!("unix_socket_directories={}", folder.display()));
    command.args(["-c", "listen_addresses=127.0.0.1"]);
    for setting in settings {
        command.args(["-c", setting]);
    }
    let log = fs::File::create(folder.join("log")).unwrap();
    command.stdout(log.try_clone().unwrap()).stderr(log);
    command.process_group(0).spawn().unwrap()
}

/// Processes of the server in this folder; children outlive the killed parent.
fn working_in(data: &Path) -> Vec<String> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().into_string().ok());
    let is_there =
        |pid: &String| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|folder| folder == data);
    pids.filter(is_there).collect()
}

/// PostgreSQL refuses to run as root.
fn as_server(program: &str) -> Command {
    let is_root =
        fs::metadata("/proc/self").is_ok_and(|it| std::os::unix::fs::MetadataExt::uid(&it) == 0);
    if !is_root {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid=postgres",
        "--regid=postgres",
        "--clear-groups",
        "--pdeathsig=KILL",
        program,
    ]);
    command
}

fn chown(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    let _ = Command::new("chown").arg("postgres").arg(path).output();
}

fn initdb(folder: &Path, data: &Path, password: Option<&str>) {
    let mut command = as_server(&binary("initdb"));
    command.arg("-D").arg(data).args([
        "-U",
        "refrain",
        "-E",
        "UTF8",
        "--locale=C.UTF-8",
        "--no-sync",
    ]);
    match password {
        None => command.args(["-A", "trust"]),
        Some(password) => {
            let file = folder.join("password");
            fs::write(&file, password).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
            command
                .args(["-A", "scram-sha-256"])
                .arg(format!("--pwfile={}", file.display()))
        }
    };
    let done = command.stdin(Stdio::null()).output().unwrap();
    assert!(
        done.status.success(),
        "initdb: {}",
        String::from_utf8_lossy(&done.stderr)
    );
}

fn binary(name: &str) -> String {
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let mut found: Vec<PathBuf> = versions
        .map(|entry| entry.path().join("bin").join(name))
        .collect();
    found.retain(|path| path.is_file());
    found.sort();
    let found = found.pop().unwrap_or_else(|| {
        panic!("{name} is not in /usr/lib/postgresql: `cargo xtask test` installs PostgreSQL")
    });
    found.display().to_string()
}
