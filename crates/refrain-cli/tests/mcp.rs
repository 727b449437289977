//! An assistant starts `refrain mcp` and sends requests line by line: results must equal those of the command,
//! and no request may change anything.

#![cfg(all(feature = "lint", feature = "mcp"))]
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use serde_json::{Value, json};
use support::{Starting, Upstream, answer, call, post};

/// The assistant's side of the connection.
struct Talk {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    last: u64,
}

impl Talk {
    fn start(folder: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
        let piped = command.current_dir(folder).arg("mcp").args(args);
        let mut child = piped
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take(), child.stdout.take().unwrap());
        let from = BufReader::new(from);
        let mut talk = Self {
            child,
            to,
            from,
            last: 0,
        };
        let begun = talk.ask("initialize", json!({
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" }
        }));
        assert_eq!(begun["result"]["serverInfo"]["name"], "refrain", "{begun}");
        assert!(
            begun["result"]["capabilities"]["tools"].is_object(),
            "{begun}"
        );
        talk.say(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        talk
    }

    fn say(&mut self, message: &Value) {
        writeln!(self.to.as_mut().unwrap(), "{message}").unwrap();
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        self.say(&json!({ "jsonrpc": "2.0", "id": self.last, "method": method, "params": params }));
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(answer["id"], self.last, "{answer}");
        answer
    }

    /// Calls a tool; returns whether it failed, and its text.
    fn call(&mut self, tool: &str, arguments: Value) -> (bool, String) {
        let answer = self.ask(
            "tools/call",
            json!({ "name": tool, "arguments": arguments }),
        );
        let result = &answer["result"];
        let text = result["content"][0]["text"].as_str();
        let text = text.unwrap_or_else(|| panic!("{answer}"));
        (result["isError"] == true, text.into())
    }

    /// Closes stdin; the server exits by itself.
    fn end(mut self) {
        self.to = None;
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
fn tools_return_the_output_of_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let good = "[[operation]]\nmatch = \"POST /v1/payments\"\nclass = \"monetary\"\n";
    fs::write(folder.path().join("refrain.toml"), good).unwrap();
    fs::write(
        folder.path().join("bad.toml"),
        "[policy]\nretension = \"1h\"\n",
    )
    .unwrap();
    let mut talk = Talk::start(folder.path(), &[]);
    let listed = talk.ask("tools/list", json!({}));
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<_> = tools
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "check",
            "review",
            "plan",
            "lint",
            "explain",
            "list_records",
            "show_record"
        ]
    );
    for tool in tools {
        assert_eq!(tool["annotations"]["readOnlyHint"], true, "{tool}");
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
    }
    let (failed, text) = talk.call("check", json!({ "file": "refrain.toml" }));
    let settings: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (failed, &settings["operations"][0]["retention"]),
        (false, &json!("30d"))
    );
    let (failed, text) = talk.call("check", json!({ "file": "bad.toml" }));
    assert!(
        failed && text.contains("did you mean `retention`?"),
        "{text}"
    );
    let (failed, text) = talk.call("review", json!({ "file": "refrain.toml" }));
    let review: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((failed, &review["open"]), (false, &json!(true)));
    let api =
        "openapi: 3.0.3\npaths: {/refunds: {post: {responses: {'201': {description: Made}}}}}\n";
    fs::write(folder.path().join("openapi.yaml"), api).unwrap();
    let before = fs::read_dir(folder.path()).unwrap().count();
    let asked = json!({ "description": "openapi.yaml", "out": "plan" });
    let (failed, text) = talk.call("plan", asked);
    assert!(!failed && text.contains("POST /refunds"), "{text}");
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        before,
        "the tool wrote a file"
    );
    let twice = "for attempt in range(5):\n    requests.post(url, json=body, headers={\"Idempotency-Key\": str(uuid4())})\n";
    fs::write(folder.path().join("pay.py"), twice).unwrap();
    let (failed, text) = talk.call("lint", json!({ "path": "pay.py" }));
    assert!(!failed && text.contains("key-in-retry-loop"), "{text}");
    let (failed, text) = talk.call("explain", json!({ "code": "outcome-unknown" }));
    assert!(!failed && text.contains("\"advice\": \"ask\""), "{text}");
    let (failed, text) = talk.call("explain", json!({ "code": "--help" }));
    assert!(
        failed && text.contains("invalid value '--help'"),
        "a value was parsed as a flag: {text}"
    );
    for (tool, arguments) in [
        ("check", json!({})),
        ("check", json!({ "file": 7 })),
        ("check", json!({ "file": "refrain.toml", "force": "yes" })),
        ("erase", json!({})),
    ] {
        let answer = talk.ask(
            "tools/call",
            json!({ "name": tool, "arguments": arguments }),
        );
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    talk.end();
}

#[test]
fn records_are_looked_up_at_the_proxy_that_was_named() {
    let upstream = Upstream::start(|_, stream| answer(stream, "201 Created", &[], b"charged"));
    let proxy = Starting::new()
        .arg("--upstream", format!("http://{}", upstream.address))
        .start();
    assert_eq!(call(proxy.address, post("order-7", "{}")).status, 201);
    let folder = tempfile::tempdir().unwrap();
    let admin = format!("http://{}", proxy.admin);
    let mut talk = Talk::start(folder.path(), &["--admin", &admin]);
    let (failed, text) = talk.call("list_records", json!({ "state": "completed" }));
    let listed: Value = serde_json::from_str(&text).unwrap();
    let id = listed["records"][0]["id"]
        .as_str()
        .unwrap_or_else(|| panic!("{listed}"));
    assert!(!failed);
    let (failed, text) = talk.call("show_record", json!({ "id": id }));
    assert!(!failed && text.contains("charged"), "{text}");
    let (failed, text) = talk.call("show_record", json!({ "id": "0".repeat(32) }));
    assert!(failed && text.contains("there is no record"), "{text}");
    talk.end();
}
