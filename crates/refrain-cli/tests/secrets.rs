//! A password in a terminal, a log or a bug report is leaked: no command may print it, wherever it is in an address
//! and even if the address is invalid.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use refrain::policy::schemes::{broker_schemes, store_schemes};
use refrain_testkit::servers::{PrivatePostgres, PrivateRedis};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Realistic passwords, encoded or not. Neither half may be printed.
const PASSWORDS: [&str; 8] = [
    "qzxv%2Fjkwq",
    "qzxv/jkwq",
    "qzxv#jkwq",
    "qzxv?jkwq",
    "qzxv@jkwq",
    "qzxv:jkwq",
    "qzxv&jkwq=",
    "qzxv'jkwq",
];

/// Every setting that holds an address, with the lines before it in the file.
const SETTINGS: [(&str, &str); 7] = [
    ("store", ""),
    ("upstream", ""),
    ("receipts", "[policy]\n"),
    (
        "source",
        "[[worker]]\nname = \"a\"\nqueue = \"q\"\ndeliver = \"http://h/\"\n",
    ),
    (
        "deliver",
        "[[worker]]\nname = \"a\"\nqueue = \"q\"\nsource = \"redis://h\"\n",
    ),
    ("outbox", "[[relay]]\nto = \"redis://h\"\n"),
    ("to", "[[relay]]\noutbox = \"postgres://h/x\"\n"),
];

/// Every scheme of a server in the table, and two that are not in it.
fn schemes() -> Vec<&'static str> {
    let all = store_schemes().chain(broker_schemes());
    let mut all: Vec<_> = all.filter(|it| !["memory", "file"].contains(it)).collect();
    all.extend(["http", "mysql"]);
    all.sort_unstable();
    all.dedup();
    all
}

fn positions(scheme: &str, password: &str) -> Vec<String> {
    let mut addresses = vec![
        format!("{scheme}://u:{password}@127.0.0.1:1/x"),
        format!("{scheme}://:{password}@127.0.0.1:1"),
        format!("{scheme}://u@127.0.0.1:1/x#{password}"),
    ];
    for name in [
        "password",
        "sasl.password",
        "token",
        "secret",
        "sslpassword",
    ] {
        addresses.push(format!("{scheme}://127.0.0.1:1/x?{name}={password}"));
    }
    // Without a host, the part after an `@` is taken as the host.
    let password = password.replace('@', ":");
    addresses.push(format!("{scheme}://u:{password}"));
    addresses
}

/// Runs a command; returns its output.
fn run(folder: &Path, arguments: &[&str], variable: Option<(&str, &str)>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command.args(arguments).current_dir(folder);
    command.envs(variable);
    let output = command.output().unwrap();
    assert_ne!(output.status.code(), None, "{arguments:?} was killed");
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[track_caller]
fn assert_hidden(printed: &str, address: &str) {
    for half in ["qzxv", "jkwq"] {
        assert!(!printed.contains(half), "{address}: {half} in\n{printed}");
    }
}

#[test]
fn check_shows_no_password_of_any_setting() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("refrain.toml");
    let mut checked = 0;
    for (at, scheme) in schemes().into_iter().enumerate() {
        for (number, password) in PASSWORDS.iter().enumerate() {
            for (position, address) in positions(scheme, password).iter().enumerate() {
                // Settings take turns: each meets each scheme, password and position, but not every combination.
                let (setting, around) = SETTINGS[(at + number + position) % SETTINGS.len()];
                let value = serde_json::Value::from(address.as_str());
                fs::write(&file, format!("{around}{setting} = {value}\n")).unwrap();
                let form = if (number + position) % 2 == 0 {
                    "--json"
                } else {
                    "--report"
                };
                let arguments = match position % 3 {
                    0 => vec!["check", "refrain.toml"],
                    _ => vec!["check", "refrain.toml", form],
                };
                assert_hidden(&run(folder.path(), &arguments, None), address);
                checked += 1;
            }
        }
    }
    assert_eq!(checked, schemes().len() * PASSWORDS.len() * 9);
}

#[test]
fn an_address_without_quotes_or_scheme_is_not_repeated() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("refrain.toml");
    for line in [
        "store = postgres://u:canary@h/x",
        "store = \"postgres://u:canary@h/x",
        "store = \"host=db password=canary\"",
        "store = \"u:canary@h\"",
        "store = [\"redis://h\", \"postgres://u:canary@h/x\", \"memory:\"]",
        "threads = \"postgres://u:canary@h/x\"",
        "listen = \"postgres://u:canary@h/x\"",
        "[policy]\nrequired = \"postgres://u:canary@h/x\"",
        "store_env = \"postgres://u:canary@h/x\"",
        "store_file = \"postgres://u:canary@h/x\"",
    ] {
        fs::write(&file, format!("{line}\n")).unwrap();
        let printed = run(folder.path(), &["check", "refrain.toml"], None);
        assert!(!printed.contains("canary"), "{line}\n{printed}");
        assert!(printed.contains("refrain.toml:"), "{line}\n{printed}");
    }
}

/// Runs each command with each scheme and position and one of the passwords: some addresses are rejected with the
/// configuration, some by the driver, and some servers are unreachable.
#[test]
fn commands_that_cannot_start_show_no_password() {
    let folder = TempDir::new().unwrap();
    let proxy = [
        "proxy",
        "--upstream",
        "http://127.0.0.1:9",
        "--listen",
        "127.0.0.1:0",
    ];
    let proxy = [&proxy[..], &["--admin", "127.0.0.1:0", "--store"]].concat();
    for (at, scheme) in schemes().into_iter().enumerate() {
        for position in 0..positions(scheme, "").len() {
            let password = PASSWORDS[(at + position) % PASSWORDS.len()];
            let address = &*positions(scheme, password).swap_remove(position);
            let check = |arguments: &[&str]| {
                let printed = run(folder.path(), arguments, None);
                assert_hidden(&printed, address);
                assert!(!printed.is_empty(), "{arguments:?} printed no reason");
            };
            let value = serde_json::Value::from(address);
            let worker = format!(
                "store = \"memory:\"\n[[worker]]\nname = \"a\"\nqueue = \"q\"\ndeliver = \"http://h/\"\nsource = {value}\n"
            );
            fs::write(folder.path().join("refrain.toml"), worker).unwrap();
            check(&["work"]);
            check(&[&proxy[..], &[address]].concat());
            check(&["migrate", "--store", address]);
            check(&["relay", "--outbox", address, "--to", address]);
        }
    }
    assert!(!folder.path().join("refrain-data").exists());
}

#[test]
fn commands_that_cannot_connect_show_no_password() {
    let folder = TempDir::new().unwrap();
    let held = folder.path().join("held.txt");
    for password in PASSWORDS {
        for scheme in ["postgres", "redis", "redis+sentinel", "nats", "amqp"] {
            let address = format!("{scheme}://u:{password}@127.0.0.1:1/x");
            fs::write(&held, format!("{address}\n")).unwrap();
            let by_file = ("REFRAIN_STORE_FILE", held.to_str().unwrap());
            let proxy = ["proxy", "--upstream", "http://127.0.0.1:9"];
            assert_hidden(&run(folder.path(), &proxy, Some(by_file)), &address);
            let value = serde_json::Value::from(address.as_str());
            let worker = format!(
                "store = \"memory:\"\n[[worker]]\nname = \"a\"\nqueue = \"q\"\ndeliver = \"http://h/\"\nsource = {value}\n"
            );
            fs::write(folder.path().join("refrain.toml"), worker).unwrap();
            let listed = ["work", "--dead-letters"];
            assert_hidden(&run(folder.path(), &listed, None), &address);
        }
        let upstream = format!("http://u:{password}@127.0.0.1:1");
        let printed = run(folder.path(), &["proxy", "--upstream", &upstream], None);
        assert_hidden(&printed, &upstream);
        assert!(!folder.path().join("refrain-data").exists());
    }
}

/// The servers accept any password, so the commands start and print their greeting.
#[test]
fn greetings_show_addresses_without_their_passwords() {
    let (redis, postgres) = (
        PrivateRedis::start().unwrap(),
        PrivatePostgres::start().unwrap(),
    );
    let cache = redis.url().replace("://", "://default:qzxv%2Fjkwq@");
    let database = postgres.url().replace('@', ":qzxv%2Fjkwq@");
    let folder = TempDir::new().unwrap();
    let text = format!(
        "store = [\"{cache}\", \"{database}\"]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n\
         upstream = \"http://127.0.0.1:9\"\n[[worker]]\nname = \"a\"\nqueue = \"q\"\nsource = \"{cache}\"\n\
         deliver = \"http://127.0.0.1:9/?token=qzxv\"\n\
         [[relay]]\noutbox = \"{database}\"\nto = \"{cache}\"\n"
    );
    fs::write(folder.path().join("refrain.toml"), text).unwrap();
    let made = run(
        folder.path(),
        &["migrate", "--config", "refrain.toml", "--outbox"],
        None,
    );
    assert_hidden(&made, &database);
    assert!(made.contains("table is ready"), "{made}");
    for (arguments, last) in [
        (&["proxy", "--config", "refrain.toml"][..], "curl"),
        (&["work"], "duplicates detected for"),
        (&["relay"], "from the outbox"),
    ] {
        let printed = greeting(folder.path(), arguments, last);
        assert_hidden(&printed, &cache);
        assert!(printed.contains(":***@"), "{printed}");
    }
}

/// Starts a command and stops it after the line with `last`; returns all its output.
fn greeting(folder: &Path, arguments: &[&str], last: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command
        .args(arguments)
        .args(["--log", "debug"])
        .current_dir(folder);
    let errors = folder.join("stderr");
    command.stderr(fs::File::create(&errors).unwrap());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut printed = String::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in lines.by_ref().map(Result::unwrap) {
        printed += &format!("{line}\n");
        if line.contains(last) {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
            break;
        }
    }
    for line in lines.map(Result::unwrap) {
        printed += &format!("{line}\n");
    }
    let status = child.wait().unwrap();
    printed += &fs::read_to_string(errors).unwrap();
    assert!(status.success(), "{arguments:?}: {printed}");
    printed
}
