//! Renders `docs/peers.md`.

use super::{Peer, Said};

type Column<'p> = (&'p Peer, Vec<Said>);

const OPENING: &str = "\
# Test results for other libraries

Results of `refrain verify` on other idempotency libraries, each configured as its documentation says, in front of the same small payments service; and on our own proxy.
The sources are in `benches/peers`; [verify.md](verify.md#the-cases) describes the cases.

`FAIL` is a bug, `warn` is safe but inconvenient for clients, and – means that the case does not apply or was not run; the reasons are below.
A library can be right for its purpose and fail here: the cases test what a client of a payment service needs.
";

/// Renders the whole page.
pub(super) fn page(columns: &[Column<'_>], date: &str) -> String {
    let mut page = format!(
        "{OPENING}\nMeasured on {date} with `cargo xtask peers`, which writes this page.\n\n{}",
        table(columns)
    );
    for (peer, said) in columns {
        page += &format!("\n## {} {}\n\n{}\n", peer.name, peer.version, peer.setup);
        page += &findings("Failed", said, "FAIL");
        page += &findings("Warned", said, "warn");
        page += &findings("Not run", said, "skipped");
        if peer.is_in_memory {
            page += "\nNot run: the cases after a crash, because its records are in memory in this setup.\n";
        }
    }
    page
}

fn findings(title: &str, said: &[Said], verdict: &str) -> String {
    let mut told = said.iter().filter(|it| it.verdict == verdict).peekable();
    if told.peek().is_none() {
        return String::new();
    }
    let lines = told.map(|it| format!("- `{}`: {}\n", it.case, it.findings));
    format!("\n{title}:\n\n{}", lines.collect::<String>())
}

/// Renders the table of cases by peers.
pub(super) fn table(columns: &[Column<'_>]) -> String {
    let names: Vec<_> = columns.iter().map(|(peer, _)| peer.name).collect();
    let mut table = format!(
        "| case | {} |\n|---|{}\n",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    let longest = columns.iter().max_by_key(|(_, said)| said.len());
    for case in longest.map_or(&[][..], |(_, said)| said) {
        let cells = columns.iter().map(|(_, said)| {
            let found = said.iter().find(|it| it.case == case.case);
            match found.map_or("skipped", |it| &it.verdict) {
                "FAIL" => "**FAIL**",
                "skipped" => "–",
                verdict => verdict,
            }
        });
        let cells: Vec<_> = cells.collect();
        table += &format!("| `{}` | {} |\n", case.case, cells.join(" | "));
    }
    let count = |verdict: &str| {
        let each = columns.iter().map(|(_, said)| {
            let count = said.iter().filter(|it| it.verdict == verdict).count();
            count.to_string()
        });
        each.collect::<Vec<_>>().join(" | ")
    };
    table
        + &format!(
            "| failed | {} |\n| warned | {} |\n",
            count("FAIL"),
            count("warn")
        )
}
