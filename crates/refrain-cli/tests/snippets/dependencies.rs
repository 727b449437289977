//! A reader copies the dependency lines of a page, and the code of the page does not compile with them.
//!
//! Each such page becomes a project outside the workspace, with only the features that its lines name.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{pages::Page, read_by_users, root};

/// Where pages expect a checkout of this project.
const CHECKOUT: &str = "../refrain/";
/// Prefix of lines that Rust blocks hide from readers.
const HIDDEN: &str = "# ";

/// A page with lines for Cargo.toml.
struct Project {
    place: String,
    dependencies: String,
    code: String,
}

fn projects() -> Vec<Project> {
    let mut projects = Vec::new();
    for page in read_by_users() {
        let is_dependencies = |text: &str| text.starts_with("[dependencies]");
        let blocks = page.blocks();
        for block in &blocks {
            let dependencies = block.lines.join("\n");
            if block.language == "toml" && is_dependencies(&dependencies) {
                projects.push(Project {
                    place: block.place.clone(),
                    code: code_after(&page, block.line),
                    dependencies,
                });
            }
        }
    }
    projects
}

/// The first Rust block after the dependency lines.
fn code_after(page: &Page, line: usize) -> String {
    let blocks = page.blocks();
    let code = blocks
        .iter()
        .find(|it| it.language == "rust" && it.line > line);
    let lines = code.map(|it| it.lines.clone()).unwrap_or_default();
    let lines = lines
        .iter()
        .map(|line| line.strip_prefix(HIDDEN).unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}

/// Writes the project and runs `cargo check`, with the versions of our lock file and without network.
fn check(project: &Project) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), project);
    let output = Command::new(env!("CARGO"))
        .args(["check", "--all-targets", "--offline", "--quiet"])
        .current_dir(folder.path())
        .env("CARGO_TARGET_DIR", target())
        .env_remove("RUSTFLAGS")
        .output()
        .unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{}: {}",
            project.place,
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

fn write(folder: &Path, project: &Project) {
    let checkout = format!("{}/", root().display());
    let dependencies = project.dependencies.replace(CHECKOUT, &checkout);
    let package =
        "[package]\nname = \"snippet\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n";
    fs::write(
        folder.join("Cargo.toml"),
        format!("{package}{dependencies}\n"),
    )
    .unwrap();
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    fs::create_dir(folder.join("src")).unwrap();
    let file = match project.code.contains("fn main()") {
        true => "src/main.rs",
        false => "src/lib.rs",
    };
    fs::write(folder.join(file), &project.code).unwrap();
}

/// Target folder, kept between runs below that of the workspace.
fn target() -> PathBuf {
    root().join("target/snippets")
}

#[test]
fn dependency_lines_build_the_code_of_their_page() {
    let projects = projects();
    let faults: Vec<_> = projects.iter().filter_map(|it| check(it).err()).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(
        projects.len() >= 3,
        "only {} pages have dependency lines",
        projects.len()
    );
}
