//! A completion script with a syntax error breaks every new terminal, and a package without a manual page leaves `man` empty.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::process::Command;

fn run(args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    let output = command.arg("completions").args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn every_shell_learns_the_commands_and_the_codes() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let (code, stdout, stderr) = run(&[shell]);
        assert_eq!((code, stderr.as_str()), (0, ""), "{shell}");
        for word in ["explain", "demo", "--schema"] {
            let word = match shell {
                "fish" => word.trim_start_matches('-'),
                _ => word,
            };
            assert!(stdout.contains(word), "{shell}: no {word}");
        }
    }
    assert!(run(&["bash"]).1.contains("outcome-unknown"));
}

#[test]
fn bash_completes_with_it() {
    let (_, script, _) = run(&["bash"]);
    let asked = "COMP_WORDS=(refrain explain key-r) COMP_CWORD=2; _refrain refrain key-r explain; echo \"${COMPREPLY[*]}\"";
    let output = Command::new("bash")
        .args(["--norc", "-c", &format!("{script}\n{asked}")])
        .output()
        .unwrap();
    let reply = String::from_utf8(output.stdout).unwrap();
    assert_eq!(reply.trim(), "key-reused");
}

#[test]
fn an_unknown_shell_is_wrong_usage() {
    for args in [&[][..], &["tcsh"]] {
        let (code, stdout, stderr) = run(args);
        assert_eq!((code, stdout.as_str()), (2, ""), "{args:?}");
        assert!(stderr.contains("zsh") || stderr.contains("<SHELL>"));
    }
}

#[test]
fn every_command_has_a_manual_page_with_its_examples() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    let status = command.arg("man").arg(&pages).status().unwrap();
    assert!(status.success());
    for (page, words) in [
        ("refrain.1", "refrain\\-proxy"),
        ("refrain-proxy.1", ".SH NOTES\n.nf\nExamples:\n"),
        ("refrain-records-resolve.1", "\\-\\-never\\-happened"),
    ] {
        let text = std::fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.contains(words), "{page}: {text}");
    }
    assert!(
        !pages.join("refrain-demo-watch.1").exists(),
        "a hidden command"
    );
}

#[test]
fn manual_pages_that_cannot_be_written_name_the_folder() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    let output = command.args(["man", "/dev/null/man1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("/dev/null/man1"), "{text}");
}
