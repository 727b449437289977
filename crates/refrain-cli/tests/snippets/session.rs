//! Runs the commands of one page in its own folder.
//!
//! Servers (a proxy, a service in the background) stay up until the end of the page.
//! Ports on pages are replaced by free ones, so that pages run beside anything else on the machine.
//! A comment `<!-- setup` … `-->` contains commands that run at that point and that readers do not see.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    net::TcpStream,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use refrain_testkit::servers::free_port;
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use super::{NOT_RUN, pages::Page, root};

/// Ports that appear on pages.
const PORTS: [u16; 7] = [3000, 3999, 8080, 8377, 8378, 8379, 8380];
/// How long a server may take to be ready; the machine may be busy.
const READY_TRIES_MAX: u32 = 6_000;
const READY_PAUSE: Duration = Duration::from_millis(10);
/// Start of a comment with hidden commands.
const SETUP: &str = "<!-- setup";
const SETUP_END: &str = "-->";
/// Stands for any text in the output that a page shows.
const ANY: char = '…';

/// The commands of a page, its folder and its servers.
pub(super) struct Session<'p> {
    page: &'p Page,
    folder: TempDir,
    ports: BTreeMap<u16, u16>,
    servers: Vec<Child>,
    /// Number of blocks that were run.
    pub(super) commands: usize,
}

/// A block of a page that runs as a unit.
struct Script {
    place: String,
    language: String,
    text: String,
    exit_code: i32,
}

impl<'p> Session<'p> {
    pub(super) fn new(page: &'p Page) -> Self {
        let ports = PORTS.map(|port| (port, free_port().unwrap()));
        Self {
            page,
            folder: tempfile::tempdir().unwrap(),
            ports: ports.into(),
            servers: Vec::new(),
            commands: 0,
        }
    }

    /// Runs the whole page, up to the first difference.
    pub(super) fn play(&mut self) -> Result<(), String> {
        for script in scripts(self.page) {
            self.commands += 1;
            let run = match script.language.as_str() {
                "console" => self.compare(&script),
                "sql" => sql(&script.text),
                _ => self.run(&script),
            };
            run.map_err(|fault| format!("{}: {fault}", script.place))?;
        }
        Ok(())
    }

    /// Runs the lines of a `sh` block; text in a comment after a command must be in its output.
    fn run(&mut self, script: &Script) -> Result<(), String> {
        let mut output = String::new();
        for line in commands(&self.with_ports(&script.text)) {
            match line.strip_prefix("# ") {
                Some(remark) => expected(remark, &output)?,
                None if is_server(&line) => self.serve(&line)?,
                None => output = self.output(&line, script.exit_code)?,
            }
        }
        Ok(())
    }

    /// Runs the lines after `$ ` of a `console` block, and compares the output of each with the following lines.
    fn compare(&mut self, script: &Script) -> Result<(), String> {
        let text = self.with_ports(&script.text);
        let mut parts = text.split("$ ");
        parts.next();
        for part in parts {
            let lines = commands(part);
            let (line, shown) = lines.split_first().unwrap();
            let output = match is_server(line) {
                true => {
                    self.serve(line)?;
                    self.served()
                }
                false => self.output(line, script.exit_code)?,
            };
            let shown = shown.join("\n");
            if !fits(shown.trim(), output.trim()) {
                return Err(format!(
                    "`{line}` printed\n{output}\nand the page shows\n{shown}"
                ));
            }
        }
        Ok(())
    }

    fn output(&self, line: &str, exit_code: i32) -> Result<String, String> {
        let output = self.shell(line).stdin(Stdio::null()).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.code() {
            Some(code) if code == exit_code => Ok(printed),
            _ => Err(format!(
                "`{line}` ended with {}, not {exit_code}\n{printed}{}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            )),
        }
    }

    /// Starts a server and waits until it is ready: it has printed something, or its ports accept connections.
    fn serve(&mut self, line: &str) -> Result<(), String> {
        let line = line.trim_end().trim_end_matches('&');
        let log = |name: &str| {
            self.folder
                .path()
                .join(format!("{}.{name}", self.servers.len()))
        };
        let (out, err) = (log("out"), log("err"));
        let mut server = self
            .shell(&format!("exec {line}"))
            .stdin(Stdio::null())
            .stdout(fs::File::create(&out).unwrap())
            .stderr(fs::File::create(&err).unwrap())
            .process_group(0)
            .spawn()
            .unwrap();
        let named = |port: &&u16| line.contains(&port.to_string());
        let ports: Vec<u16> = self.ports.values().filter(named).copied().collect();
        let is_refrain = line.trim_start().starts_with("refrain ") || line.contains(" refrain ");
        let is_ready = || match is_refrain {
            true => fs::read_to_string(&out).unwrap().ends_with('\n'),
            false => ports
                .iter()
                .all(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok()),
        };
        for _ in 0..READY_TRIES_MAX {
            if is_ready() {
                self.servers.push(server);
                return Ok(());
            }
            if let Some(status) = server.try_wait().unwrap() {
                let said = fs::read_to_string(&err).unwrap();
                return Err(format!("`{line}` ended with {status}: {said}"));
            }
            thread::sleep(READY_PAUSE);
        }
        self.servers.push(server);
        Err(format!("`{line}` was never ready"))
    }

    /// Output of the newest server.
    fn served(&self) -> String {
        let log = format!("{}.out", self.servers.len() - 1);
        fs::read_to_string(self.folder.path().join(log)).unwrap()
    }

    fn shell(&self, line: &str) -> Command {
        let refrain = Path::new(env!("CARGO_BIN_EXE_refrain"));
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new("bash");
        command
            .args(["-euo", "pipefail", "-c", line])
            .current_dir(self.folder.path())
            .env(
                "PATH",
                format!("{}:{path}", refrain.parent().unwrap().display()),
            )
            .env("FIXTURES", root().join("crates/refrain-cli/tests/snippets"))
            .env("ROOT", root())
            .env("REFRAIN_LISTEN", format!("127.0.0.1:{}", self.ports[&8377]))
            .env("REFRAIN_ADMIN", format!("127.0.0.1:{}", self.ports[&8378]))
            .env(
                "REFRAIN_CHAOS",
                format!("http://127.0.0.1:{}", self.ports[&8380]),
            );
        command
    }

    /// Replaces ports by free ones, and adds the addresses that a command would use by default.
    fn with_ports(&self, text: &str) -> String {
        let text = text.replace("cargo run --release -- ", "refrain ");
        let chaos = "refrain chaos --upstream";
        let text = text.replace(
            chaos,
            &format!(
                "refrain chaos --listen 127.0.0.1:8379 --control 127.0.0.1:8380{}",
                &chaos[13..]
            ),
        );
        let mut with = String::new();
        let mut rest = text.as_str();
        while let Some(at) = rest.find(|it: char| it.is_ascii_digit()) {
            let (before, number) = rest.split_at(at);
            let end = number.find(|it: char| !it.is_ascii_digit());
            let (number, behind) = number.split_at(end.unwrap_or(number.len()));
            with.push_str(before);
            let is_port = [":", ", ", "port ", ".py "]
                .iter()
                .any(|it| before.ends_with(it));
            match number.parse().ok().and_then(|it: u16| self.ports.get(&it)) {
                Some(port) if is_port => write!(with, "{port}").unwrap(),
                _ => with.push_str(number),
            }
            rest = behind;
        }
        with + rest
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let group = Pid::from_child(server);
            let _ = kill_process_group(group, Signal::KILL);
            let _ = server.wait();
        }
    }
}

/// The blocks of a page that run, in order.
fn scripts(page: &Page) -> Vec<Script> {
    let mut scripts = Vec::new();
    for block in page.blocks() {
        let is_run = matches!(block.language, "sh" | "console" | "sql");
        if is_run && !block.has(NOT_RUN) && block.lines.iter().all(|it| *it != "-- wrong") {
            let exit_code = block.value("exit=").map_or(0, |it| it.parse().unwrap());
            scripts.push((
                block.line,
                Script {
                    place: block.place.clone(),
                    language: block.language.to_owned(),
                    text: block.lines.join("\n"),
                    exit_code,
                },
            ));
        }
    }
    for (at, behind) in page.text.match_indices(SETUP) {
        let (text, _) = page.text[at + behind.len()..]
            .split_once(SETUP_END)
            .unwrap();
        let line = page.text[..at].lines().count() + 1;
        scripts.push((
            line,
            Script {
                place: format!("{}:{line}", page.path),
                language: "sh".into(),
                text: text.to_owned(),
                exit_code: 0,
            },
        ));
    }
    scripts.sort_by_key(|(line, _)| *line);
    scripts.into_iter().map(|(_, script)| script).collect()
}

/// The lines, joined where a command continues: after a backslash or within quotes.
fn commands(text: &str) -> Vec<String> {
    let mut whole: Vec<String> = Vec::new();
    let (mut is_cut, mut is_quoted) = (false, false);
    for line in text.lines() {
        let part = line.strip_suffix('\\');
        let text = part.unwrap_or(line);
        match whole.last_mut().filter(|_| is_cut || is_quoted) {
            Some(before) if is_cut => before.push_str(text.trim_start()),
            Some(before) => *before += &format!("\n{text}"),
            None if text.trim().is_empty() => continue,
            None => whole.push(text.to_owned()),
        }
        let last = whole.last().unwrap();
        is_cut = part.is_some();
        is_quoted = !last.starts_with("# ") && last.matches('\'').count() % 2 == 1;
    }
    whole
}

/// Whether a command stays up: a `refrain` command that serves, or any command in the background.
fn is_server(line: &str) -> bool {
    let serves = [
        "refrain proxy",
        "refrain chaos --",
        "refrain work --config",
        "refrain relay",
    ];
    line.trim_end().ends_with('&') || serves.iter().any(|it| line.contains(it))
}

/// Checks a remark: it lists parts of the output, separated by commas, up to a semicolon.
fn expected(remark: &str, output: &str) -> Result<(), String> {
    let named = remark.split(';').next().unwrap_or_default();
    let output_lower = output.to_lowercase();
    let missing = named
        .split(", ")
        .find(|it| !output_lower.contains(&it.trim().to_lowercase()));
    match missing {
        Some(piece) => Err(format!("`{piece}` is not in\n{output}")),
        None => Ok(()),
    }
}

/// Whether the output equals what a page shows, with any text in place of `…`.
fn fits(shown: &str, output: &str) -> bool {
    if shown.is_empty() {
        return true;
    }
    let mut pieces = shown.split(ANY).map(str::trim);
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = output.strip_prefix(first) else {
        return false;
    };
    let pieces: Vec<_> = pieces.collect();
    if pieces.is_empty() {
        return rest.is_empty();
    }
    for piece in &pieces {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    shown.ends_with(ANY) || rest.is_empty()
}

/// Runs statements on PostgreSQL, in a new schema with the tables of `refrain migrate`, and rolls them back.
fn sql(text: &str) -> Result<(), String> {
    let made = ["--receipts", "--queue", "--outbox"].map(|table| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
        let output = command
            .args(["migrate", table, "--print"])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    });
    let made = match text.contains("CREATE TABLE refrain_receipts") {
        true => made[1..].concat(),
        false => made.concat(),
    };
    let schema = format!("snippets_{}", std::process::id());
    let address = refrain_testkit::servers::postgres_url();
    let run = async {
        let (client, connection) = tokio_postgres::connect(&address, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        let begin = format!("BEGIN; CREATE SCHEMA {schema}; SET LOCAL search_path = {schema};");
        client.batch_execute(&begin).await?;
        client.batch_execute(&made).await?;
        client.batch_execute(text).await?;
        client.batch_execute("ROLLBACK").await
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let done: Result<(), tokio_postgres::Error> = runtime.unwrap().block_on(run);
    done.map_err(|error| match error.as_db_error() {
        Some(why) => why.to_string(),
        None => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    //! A comparison that accepts everything would accept every wrong page.

    use super::*;

    #[test]
    fn output_that_differs_from_the_page_is_noticed() {
        assert!(fits("a 1\n…\nz", "a 1\nb\nc\nz"));
        assert!(fits("seed …", "seed 7"));
        assert!(!fits("a 1", "a 2"));
        assert!(!fits("a\n…\nz", "a\nb"));
        assert!(!fits("a …", "b c"));
        assert!(!fits("… z", "a z b"));
    }

    #[test]
    fn remarks_name_what_must_be_there() {
        assert!(
            expected(
                "201, charge number 1; as before",
                "HTTP/1.1 201 Created\nCharge number 1"
            )
            .is_ok()
        );
        assert!(expected("422", "HTTP/1.1 201 Created").is_err());
    }

    #[test]
    fn lines_are_joined_as_a_shell_does() {
        let text = "a 'b\nc' &\nd \\\n  e\n# it's f\ng";
        assert_eq!(commands(text), ["a 'b\nc' &", "d e", "# it's f", "g"]);
    }
}
