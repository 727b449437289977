//! A reader copies a `refrain.toml` from a page, and the proxy rejects it.
//! So every such block on every page is passed to the real command.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{fs, path::Path, process::Command};

use refrain_verify::verify::{File, worker};

#[path = "support/pages.rs"]
mod pages;

/// A secret that is valid for every sender's scheme.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The kind of file that a TOML block is, recognised by a table that only this kind has.
#[derive(Debug, PartialEq)]
enum Kind {
    Refrain,
    Verify,
    VerifyWorker,
    Other,
}

fn kind(text: &str) -> Kind {
    let has = |begin: &str| text.lines().any(|line| line.starts_with(begin));
    match () {
        () if has("[package]") || has("[dependencies") || has("[[rule") || has("[words") => {
            Kind::Other
        }
        () if has("broker =") => Kind::VerifyWorker,
        () if has("url =") || has("[effects]") || has("[restart]") => Kind::Verify,
        () => Kind::Refrain,
    }
}

/// Whether the command accepts this file; otherwise its error message.
fn accepted(folder: &Path, text: &str) -> Result<(), String> {
    fs::write(folder.join("secret"), SECRET).unwrap();
    let here = folder.display().to_string();
    // Secrets are read when the file is: secret files of the examples are created in this folder.
    let text = text.replace("/run/secrets/", &format!("{here}/"));
    for name in quoted(&text).filter(|name| name.starts_with(&here)) {
        fs::write(name, secret(name)).unwrap();
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

/// What a secret file contains: a key of `[encryption]` has a form of its own, and no two of them are equal.
fn secret(name: &str) -> String {
    match name.contains("refrain-key") {
        true => format!("{:064x}", name.bytes().map(u32::from).sum::<u32>()),
        false => SECRET.into(),
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
                    let read = File::parse(&text, "verify.toml", folder.path());
                    read.map(drop).map_err(|error| error.to_string())
                }
                Kind::VerifyWorker => {
                    let read = worker::File::parse(&text, "verify.toml", folder.path());
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
fn invalid_examples_in_the_book_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let good = "[[operation]]\nmatch = \"POST /x\"\nwebhook = \"svix\"\nsignature = { secret_file = \"/run/secrets/svix\" }\n";
    assert_eq!(accepted(folder.path(), good), Ok(()));
    let bad = accepted(folder.path(), "[policy]\nretension = \"1h\"\n").unwrap_err();
    assert!(bad.contains("did you mean `retention`?"), "{bad}");
    assert_eq!(kind("url = \"http://x\"\n"), Kind::Verify);
    assert_eq!(kind("store = \"memory:\"\n"), Kind::Refrain);
}
