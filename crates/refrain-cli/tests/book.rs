//! Somebody copies a refrain.toml from a page, and the proxy does not start with it.
//! So every such block on every page is given to the real command.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{fs, path::Path, process::Command};

#[path = "support/pages.rs"]
mod pages;

/// A secret that every sender's scheme takes.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The file that a block of TOML is, by what only that file has.
#[derive(Debug, PartialEq)]
enum Kind {
    Refrain,
    Verify,
    Other,
}

fn kind(text: &str) -> Kind {
    let has = |begin: &str| text.lines().any(|line| line.starts_with(begin));
    match () {
        () if has("[package]") || has("[dependencies") || has("[[rule") || has("[words") => {
            Kind::Other
        }
        () if has("url =") || has("[effects]") || has("[restart]") => Kind::Verify,
        () => Kind::Refrain,
    }
}

/// Whether the command takes this file, or what it says.
fn accepted(folder: &Path, text: &str) -> Result<(), String> {
    fs::write(folder.join("secret"), SECRET).unwrap();
    let here = folder.display().to_string();
    // Secrets are read with the file: those of the example's machine are put here.
    let text = text.replace("/run/secrets/", &format!("{here}/"));
    for name in quoted(&text).filter(|name| name.starts_with(&here)) {
        fs::write(name, SECRET).unwrap();
    }
    let file = folder.join("refrain.toml");
    fs::write(&file, &text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command.arg("check").arg(&file);
    let is_variable = |name: &&str| name.bytes().all(|it| it.is_ascii_uppercase() || it == b'_');
    command.envs(quoted(&text).filter(is_variable).map(|name| (name, SECRET)));
    let output = command.output().unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('"')
        .skip(1)
        .step_by(2)
        .filter(|it| !it.is_empty())
}

#[test]
fn the_book_shows_files_that_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let mut faults = Vec::new();
    let mut checked = 0;
    for page in pages::all() {
        for block in page.blocks() {
            let text = block.lines.join("\n") + "\n";
            if block.language != "toml" || kind(&text) == Kind::Other {
                continue;
            }
            checked += 1;
            let outcome = match kind(&text) {
                Kind::Verify => {
                    fs::write(folder.path().join("payment.json"), "{}").unwrap();
                    let read =
                        refrain_verify::verify::File::parse(&text, "verify.toml", folder.path());
                    read.map(drop).map_err(|error| error.to_string())
                }
                _ => accepted(folder.path(), &text),
            };
            faults.extend(outcome.err().map(|it| format!("{}: {it}", block.place)));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(checked > 8, "only {checked} files were found");
}

#[test]
fn what_is_no_good_is_found_in_the_book() {
    let folder = tempfile::tempdir().unwrap();
    let good = "[[operation]]\nmatch = \"POST /x\"\nwebhook = \"svix\"\nsignature = { secret_file = \"/run/secrets/svix\" }\n";
    assert_eq!(accepted(folder.path(), good), Ok(()));
    let bad = accepted(folder.path(), "[policy]\nretension = \"1h\"\n").unwrap_err();
    assert!(bad.contains("did you mean `retention`?"), "{bad}");
    assert_eq!(kind("url = \"http://x\"\n"), Kind::Verify);
    assert_eq!(kind("store = \"memory:\"\n"), Kind::Refrain);
}
