//! The configurations that the packages contain: one that the command rejects is a service that never starts.

use std::{fs, process::Command};

use super::known::repository;

/// Checks a configuration as the packaged service reads it.
fn check(name: &str, text: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("refrain.toml");
    fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    let output = command.arg("check").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {said}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("upstream http"),
        "{name}: no upstream: {said}"
    );
}

#[test]
fn packaged_files_are_accepted() {
    for name in ["deploy/debian/refrain.toml", "deploy/compose/refrain.toml"] {
        check(name, &fs::read_to_string(repository(name)).unwrap());
    }
}

#[test]
fn configurations_in_manifests_are_accepted() {
    for name in ["gateway", "sidecar"] {
        let name = format!("deploy/kubernetes/{name}.yaml");
        let text = fs::read_to_string(repository(&name)).unwrap();
        let (_, after) = text.split_once("  refrain.toml: |\n").unwrap();
        let (inside, _) = after.split_once("---\n").unwrap();
        let lines: Vec<_> = inside
            .lines()
            .map(|line| line.trim_start_matches("    "))
            .collect();
        check(&name, &lines.join("\n"));
    }
}

#[test]
fn packages_have_the_version_of_the_command() {
    let version = env!("CARGO_PKG_VERSION");
    for (name, line) in [
        (
            "deploy/helm/refrain/Chart.yaml",
            format!("appVersion: \"{version}\""),
        ),
        (
            "deploy/kubernetes/gateway.yaml",
            format!("image: refrain:{version}"),
        ),
        (
            "deploy/kubernetes/sidecar.yaml",
            format!("image: refrain:{version}"),
        ),
    ] {
        let text = fs::read_to_string(repository(name)).unwrap();
        assert!(text.contains(&line), "{name} has no `{line}`");
    }
}
