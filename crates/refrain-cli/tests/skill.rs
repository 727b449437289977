//! An assistant follows a skill literally: invalid front matter, a missing file or a mix of versions misleads it.
//! That its command lines parse is tested together with those of the book.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn run(args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    let output = command.arg("skill").args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../skills/refrain")
}

/// All files of a folder, with their text.
fn files(folder: &Path) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(here) = folders.pop() {
        for entry in fs::read_dir(here).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let name = path.strip_prefix(folder).unwrap().display().to_string();
                    found.insert((name, fs::read_to_string(&path).unwrap()));
                }
            }
        }
    }
    found
}

#[test]
fn installing_writes_all_of_it_and_again_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let skills = folder.path().join("deep/skills");
    let skills = skills.to_str().unwrap();
    let (code, stdout, stderr) = run(&["install", skills]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(stdout.contains("refrain/SKILL.md"), "{stdout}");
    let installed = Path::new(skills).join("refrain");
    assert_eq!(
        files(&installed),
        files(&source()),
        "a file is missing from the binary"
    );
    let (code, stdout, _) = run(&["install", skills]);
    assert_eq!(code, 0);
    assert!(stdout.contains("up to date"), "{stdout}");
}

#[test]
fn modified_files_are_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let skills = folder.path().to_str().unwrap();
    let keys = folder.path().join("refrain/references/keys.md");
    let skill = folder.path().join("refrain/SKILL.md");
    assert_eq!(run(&["install", skills]).0, 0);
    fs::write(&keys, "our own").unwrap();
    fs::remove_file(&skill).unwrap();
    let (code, stdout, stderr) = run(&["install", skills]);
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(
        stderr.contains("keys.md") && stderr.contains("--force"),
        "{stderr}"
    );
    assert_eq!(fs::read_to_string(&keys).unwrap(), "our own");
    assert!(!skill.exists(), "a rejected install wrote a file");
    // A modified file is kept even if it is not text.
    fs::write(&keys, [0xFF, 0xFE]).unwrap();
    assert_eq!(run(&["install", skills]).0, 1);
    assert_eq!(run(&["install", skills, "--force"]).0, 0);
    assert_eq!(files(&folder.path().join("refrain")), files(&source()));
}

#[test]
fn a_folder_that_cannot_be_written_to_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let (code, _, stderr) = run(&["install", file.to_str().unwrap()]);
    assert_eq!(code, 69, "{stderr}");
    assert_eq!(run(&["show", "references/none.md"]).0, 2);
    assert_eq!(run(&["install"]).0, 2);
}

/// Names are lower case with hyphens, at most 64 characters; descriptions have at most 1024 and no tags.
#[test]
fn the_front_matter_is_valid() {
    let (code, text, _) = run(&["show"]);
    assert_eq!(code, 0);
    let front = text.strip_prefix("---\n").unwrap();
    let (front, body) = front.split_once("\n---\n").unwrap();
    let members: Vec<_> = front
        .lines()
        .map(|it| it.split_once(": ").unwrap())
        .collect();
    assert_eq!(
        members.len(),
        2,
        "not one line for each member: {members:?}"
    );
    assert_eq!(members[0], ("name", "refrain"));
    let (name, description) = members[1];
    assert_eq!(name, "description");
    assert!(
        (100..=1024).contains(&description.len()),
        "{}",
        description.len()
    );
    // These end or change a plain scalar in YAML.
    for end in [": ", " #", "<", ">"] {
        assert!(!description.contains(end), "{end:?} in the description");
    }
    assert!(description.starts_with(char::is_alphabetic));
    for stage in 1..=6 {
        assert!(
            body.contains(&format!("\n## {stage}. ")),
            "no stage {stage}"
        );
    }
    assert!(body.contains("\n## When to stop and ask a person\n"));
}

#[test]
fn every_reference_is_there_and_is_used() {
    let text = fs::read_to_string(source().join("SKILL.md")).unwrap();
    let linked = text
        .split("](")
        .skip(1)
        .map(|it| it.split(')').next().unwrap());
    let linked: BTreeSet<String> = linked.map(Into::into).collect();
    let there = files(&source()).into_iter().map(|(name, _)| name);
    let there: BTreeSet<String> = there.filter(|name| name != "SKILL.md").collect();
    assert_eq!(linked, there);
    for name in there {
        assert_eq!(run(&["show", &name]).0, 0, "{name}");
    }
}
