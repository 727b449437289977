//! The example services as processes: installed once, started on their own port, killed and restarted.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

use refrain_testkit::servers::free_port;

use super::{ServiceDatabase, is_open};
use crate::support::until;

/// A running example; killed on drop.
pub(crate) struct Service {
    child: Child,
    start: Box<dyn Fn() -> Command>,
    log: PathBuf,
    pub(crate) address: SocketAddr,
}

impl Service {
    fn start(name: &str, start: impl Fn(SocketAddr) -> Command + 'static) -> Self {
        let port = free_port().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let log = made(&format!("{name}-{}.log", address.port()));
        let start = Box::new(move || start(address));
        let child = spawn(start(), &log, address);
        Self {
            child,
            start,
            log,
            address,
        }
    }

    /// Restarts the service if it has died.
    pub(crate) fn revive(&mut self) {
        let child = &mut self.child;
        until("the service dies", || child.try_wait().unwrap().is_some());
        self.child = spawn((self.start)(), &self.log, self.address);
    }

    /// Kills the service with SIGKILL and restarts it.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.child = spawn((self.start)(), &self.log, self.address);
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            eprintln!("the service said:\n{log}");
        }
        let _ = fs::remove_file(&self.log);
    }
}

fn spawn(mut command: Command, log: &Path, address: SocketAddr) -> Child {
    let log_file = fs::File::options().create(true).append(true).open(log);
    let log_file = log_file.unwrap();
    let errors = log_file.try_clone().unwrap();
    let child = command
        .stdin(Stdio::null())
        .stdout(log_file)
        .stderr(errors)
        .spawn();
    let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    until("the service listens", || is_open(address));
    assert!(
        child.try_wait().unwrap().is_none(),
        "the service has exited"
    );
    child
}

/// examples/receipts-python, in its own virtual environment.
pub(crate) fn python(place: &ServiceDatabase) -> Service {
    let folder = example("receipts-python");
    let environment = made("receipts-python");
    let wanted = fs::read_to_string(folder.join("requirements.txt")).unwrap();
    once(&environment, &wanted, || {
        let python = environment.join("bin/python");
        done(
            Command::new("python3")
                .args(["-m", "venv"])
                .arg(&environment),
        );
        done(
            Command::new(&python)
                .args([
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                    "--requirement",
                ])
                .arg(folder.join("requirements.txt")),
        );
    });
    let url = place.url();
    Service::start("receipts-python", move |address| {
        let mut command = Command::new(environment.join("bin/python"));
        command
            .args([
                "-m",
                "uvicorn",
                "app:app",
                "--log-level",
                "warning",
                "--port",
            ])
            .arg(address.port().to_string())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("DATABASE_URL", &url)
            .current_dir(&folder);
        command
    })
}

/// examples/receipts-node, with its packages in the target folder.
pub(crate) fn node(place: &ServiceDatabase) -> Service {
    let folder = example("receipts-node");
    let packages = made("receipts-node");
    let wanted = fs::read_to_string(folder.join("package.json")).unwrap();
    once(&packages, &wanted, || {
        fs::create_dir_all(&packages).unwrap();
        fs::write(packages.join("package.json"), &wanted).unwrap();
        done(
            Command::new("npm")
                .args([
                    "install",
                    "--no-audit",
                    "--no-fund",
                    "--no-package-lock",
                    "--loglevel=error",
                ])
                .current_dir(&packages),
        );
    });
    let url = place.url();
    Service::start("receipts-node", move |address| {
        let mut command = Command::new("node");
        command
            .arg(folder.join("app.js"))
            .env("NODE_PATH", packages.join("node_modules"))
            .env("PORT", address.port().to_string())
            .env("DATABASE_URL", &url);
        command
    })
}

/// examples/receipts-rust, built with the profile of this test.
pub(crate) fn rust(place: &ServiceDatabase) -> Service {
    let refrain = Path::new(env!("CARGO_BIN_EXE_refrain"));
    let folder = refrain.parent().unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args([
        "build",
        "--quiet",
        "--package",
        "receipts-rust",
        "--target-dir",
    ]);
    build.arg(folder.parent().unwrap());
    if folder.ends_with("release") {
        build.arg("--release");
    }
    done(build.current_dir(env!("CARGO_MANIFEST_DIR")));
    let (binary, url) = (folder.join("receipts-rust"), place.url());
    Service::start("receipts-rust", move |address| {
        let mut command = Command::new(&binary);
        command
            .env("PORT", address.port().to_string())
            .env("DATABASE_URL", &url);
        command
    })
}

fn example(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    path.canonicalize().unwrap().join(name)
}

/// A path below the target folder.
fn made(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Prepares a folder, unless it was prepared with the same requirements before.
fn once(folder: &Path, wanted: &str, make: impl FnOnce()) {
    let note = folder.join("made-for");
    if fs::read_to_string(&note).is_ok_and(|made_for| made_for == wanted) {
        return;
    }
    let _ = fs::remove_dir_all(folder);
    make();
    fs::write(note, wanted).unwrap();
}

/// Runs the command to its end; a failure, such as a missing network, fails the test with its output.
fn done(command: &mut Command) {
    let output = command.output();
    let output = output.unwrap_or_else(|error| {
        panic!("{command:?}: {error}; the examples need python3 with venv, and node with npm")
    });
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(
        output.status.success(),
        "{command:?} failed; it may need the network, for packages:\n{text}"
    );
}
