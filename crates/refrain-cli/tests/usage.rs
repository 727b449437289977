//! A new user types `refrain`: the help must list what there is, and an error must say what was wrong.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::process::Command;

use refrain::policy::schemes::brokers;

#[test]
fn the_command_explains_itself() {
    let version = concat!("refrain ", env!("CARGO_PKG_VERSION"));
    let cases: [(&[&str], i32, &[&str]); 20] = [
        (
            &["--help"],
            0,
            &[
                "demo ",
                "check ",
                "key ",
                "explain ",
                "store ",
                "completions ",
                "Examples:",
                "Exit codes:",
            ],
        ),
        (&["--version"], 0, &[version]),
        (&["demo", "--help"], 0, &["Examples:", "--once"]),
        (&["store", "--help"], 0, &["check ", "accept-damage "]),
        (&["store", "check", "--help"], 0, &["--json"]),
        (&["migrate", "--help"], 0, &["Examples:", "--print"]),
        (
            &["check", "--help"],
            0,
            &["Examples:", "--schema", "--report"],
        ),
        (&["skill", "--help"], 0, &["install ", "show ", "Examples:"]),
        (&["key", "--help"], 0, &["Examples:", "--params", "@FILE"]),
        (&["explain", "--help"], 0, &["Examples:", "--json"]),
        (&["completions", "--help"], 0, &["Examples:", "fish"]),
        (
            &["extproc", "--help"],
            0,
            &["--listen", "Examples:", "Exit codes:"],
        ),
        (
            &["doctor", "--help"],
            0,
            &["Examples:", "--probe", "--strict"],
        ),
        (&["man", "--help"], 0, &["Examples:", "man1"]),
        (&["key", "--entity", "a"], 2, &["--action", "--params"]),
        (
            &["records", "--help"],
            0,
            &["list ", "show ", "resolve ", "erase ", "Examples:"],
        ),
        (
            &["top", "--help"],
            0,
            &["--once", "--json", "--interval", "Examples:", "Keys:"],
        ),
        (&[], 2, &["Usage: refrain"]),
        (&["proxi"], 2, &["unrecognized subcommand 'proxi'"]),
        (&["demo", "--twice"], 2, &["--twice"]),
    ];
    for (args, code, words) in cases {
        let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
        let output = command.args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        for word in words {
            assert!(text.contains(word), "{args:?}: no {word} in\n{text}");
        }
        assert!(!text.contains("demo-watch"), "{args:?} shows hidden items");
    }
}

/// A user builds the command as the README says, and runs the examples of its help.
#[test]
fn the_examples_of_every_help_need_no_feature() {
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
        let output = command.args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let help = run(&["--help"]);
    let names = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = names.take_while(|line| line.starts_with("  "));
    let names: Vec<_> = names
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(
        names.contains(&"work") && names.contains(&"relay"),
        "{names:?}"
    );
    for name in names.iter().copied().chain([""]) {
        let args = [name, "--help"];
        let shown = run(args.strip_prefix(&[""]).unwrap_or(&args));
        // Every build has the stores' drivers, and with them their brokers.
        for (_, broker) in brokers().filter(|(it, _)| it.store.is_none()) {
            let scheme = format!("{}://", broker.schemes[0]);
            // Options list bare schemes; an example has a host after the scheme.
            let mut behind = shown.split(&scheme).skip(1);
            let has_host = behind.any(|text| text.starts_with(|c: char| c.is_alphanumeric()));
            assert!(!has_host, "{name}: {scheme} in\n{shown}");
        }
    }
}

#[cfg(not(feature = "extproc"))]
#[test]
fn a_build_without_envoy_support_prints_how_to_rebuild() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    let output = command.args(["extproc", "--store", "memory:"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(64));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("rebuild with --features extproc"), "{text}");
}

/// A reader of stderr may have exited already; the exit code must still report the failure.
#[test]
fn exit_code_is_correct_when_stderr_is_closed() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = Command::new(env!("CARGO_BIN_EXE_refrain"))
        .args(["check", "there-is-no-such-file.toml"])
        .stderr(writer)
        .status()
        .unwrap();
    assert_eq!(ended.code(), Some(64));
}
