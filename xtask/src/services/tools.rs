//! Tools that tests need besides servers: Python with venv and Node with npm for the examples in other
//! languages, build tools for Kafka's library, a browser for page tests, and Prometheus' tool for alert rules.

use std::process::{Command, Stdio};

use super::package;

/// A tool, arguments with which it succeeds if it is installed, and its Debian packages.
type Tool = (&'static str, &'static [&'static str], &'static str);

const TOOLS: [Tool; 8] = [
    ("curl", &["--version"], "curl"),
    ("make", &["--version"], "make"),
    ("c++", &["--version"], "g++"),
    // Without it OpenSSL is compiled from source, which takes minutes.
    (
        "pkg-config",
        &["--exists", "openssl"],
        "libssl-dev pkg-config",
    ),
    (
        "python3",
        &["-c", "import venv, ensurepip"],
        "python3 python3-venv",
    ),
    ("npm", &["--version"], "nodejs npm"),
    // With a font, because without one a page shows no text.
    ("chromium", &["--version"], "chromium fonts-dejavu-core"),
    // promtool checks the alert rules.
    ("promtool", &["--version"], "prometheus"),
];

/// Installs missing tools.
pub(crate) fn find_or_install() -> Result<(), String> {
    let missing = TOOLS.iter().filter(|(tool, shows, _)| !works(tool, shows));
    let packages: Vec<_> = missing
        .flat_map(|(.., packages)| packages.split(' '))
        .collect();
    if packages.is_empty() {
        return Ok(());
    }
    let names = packages.join(" ");
    eprintln!("xtask test: {names}: not installed; installing the packages");
    package::install_all(&packages).map_err(|problem| {
        format!("{problem}\nInstall them (Debian: apt-get install {names}); the examples in other languages, the commands in the documentation, the Kafka library, the HTML report and the alert rules need them.")
    })
}

pub(crate) fn works(tool: &str, shows: &[&str]) -> bool {
    let mut command = Command::new(tool);
    let shown = command
        .args(shows)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    shown.status().is_ok_and(|status| status.success())
}
