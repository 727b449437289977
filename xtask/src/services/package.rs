//! Installs servers from Debian packages as root; otherwise unpacks them into the user's cache.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::Service;

/// Installs or unpacks the packages of missing services.
pub(super) fn install(missing: &[&Service]) -> Result<(), String> {
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = missing.iter().map(|service| service.name).collect();
    let names = names.join(" and ");
    eprintln!("xtask services: {names}: not installed; installing the package");
    let packages: Vec<_> = missing.iter().map(|service| service.package).collect();
    install_or_unpack(&packages).map_err(|problem| {
        let variables: Vec<_> = missing.iter().map(|service| service.url_variable).collect();
        let (packages, variables) = (packages.join(" "), variables.join(" and "));
        format!(
            "{names}: {problem}\nInstall them (Debian: apt-get install {packages}), start Docker, \
             or set {variables} to your own servers."
        )
    })
}

/// Installs packages as root; otherwise unpacks them into the user's cache.
pub(super) fn install_or_unpack(packages: &[&str]) -> Result<(), String> {
    match is_root() {
        true => install_all(packages),
        false => packages.iter().try_for_each(|package| unpack(package)),
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

/// Installs packages, as root.
pub(super) fn install_all(packages: &[&str]) -> Result<(), String> {
    succeed(&mut apt(&["update"]))?;
    let mut install = apt(&["install", "--yes", "--no-install-recommends"]);
    succeed(install.args(packages))?;
    Ok(())
}

/// Downloads a package and its missing dependencies, and unpacks them into the cache.
pub(super) fn unpack(package: &str) -> Result<(), String> {
    let cache = refrain_servers::cache_folder();
    let part = cache.join(format!("{package}.part-{}", std::process::id()));
    let done = Unpacking { part: &part }.run(package);
    let done = done.and_then(|root| {
        let place = cache.join(package);
        // An existing folder is incomplete, or its programs would have been found.
        let _ = fs::remove_dir_all(&place);
        fs::rename(root, place).map_err(|error| error.to_string())
    });
    let _ = fs::remove_dir_all(&part);
    done
}

/// A folder with apt's own files, the archives, and the unpacked files.
struct Unpacking<'a> {
    part: &'a Path,
}

impl Unpacking<'_> {
    /// Returns the folder with the unpacked files.
    fn run(&self, package: &str) -> Result<PathBuf, String> {
        let (root, archives) = (self.part.join("root"), self.part.join("archives"));
        let made = self.make_folders(&[&root, &archives]);
        made.map_err(|error| format!("{}: {error}", self.part.display()))?;
        succeed(self.apt(&["update"]).current_dir(&archives))?;
        let simulated = ["install", "--simulate", "--no-install-recommends", package];
        let plan = succeed(&mut self.apt(&simulated))?;
        let mut download = self.apt(&["download"]);
        succeed(download.args(planned(&plan)).current_dir(&archives))?;
        let entries = fs::read_dir(&archives).map_err(|error| error.to_string())?;
        for entry in entries.flatten() {
            let mut command = Command::new("dpkg-deb");
            succeed(command.arg("-x").arg(entry.path()).arg(&root))?;
        }
        Ok(root)
    }

    fn make_folders(&self, more: &[&Path]) -> io::Result<()> {
        for folder in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(self.part.join(folder))?;
        }
        more.iter().try_for_each(fs::create_dir_all)
    }

    /// apt with its own package lists: those of the machine may be old or missing, and only root can update them.
    fn apt(&self, arguments: &[&str]) -> Command {
        let mut command = apt(&[]);
        for (name, folder) in [("Dir::State", "state"), ("Dir::Cache", "cache")] {
            let folder = self.part.join(folder);
            command.arg(format!("--option={name}={}", folder.display()));
        }
        command.arg("--option=Dir::State::status=/var/lib/dpkg/status");
        command.arg("--option=Debug::NoLocking=true");
        command.args(arguments);
        command
    }
}

/// Parses the packages of a simulated installation, as in `Inst redis-server (5:7.0.15-1 Debian:12/stable [amd64])`.
fn planned(plan: &str) -> impl Iterator<Item = &str> {
    let lines = plan.lines().filter_map(|line| line.strip_prefix("Inst "));
    lines.filter_map(|line| line.split(' ').next())
}

fn apt(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.args(["--quiet=2"]).args(arguments);
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Runs a command that must succeed; returns its output.
fn succeed(command: &mut Command) -> Result<String, String> {
    let ran = command.stdin(Stdio::null()).output();
    let output = ran.map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?} failed: {}", why.trim()))
}
