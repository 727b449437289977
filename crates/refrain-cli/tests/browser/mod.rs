//! A headless Chromium, driven with the DevTools protocol through a pipe.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#![allow(dead_code, reason = "each test file uses only part of this module")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
};

use base64::{Engine as _, prelude::BASE64_STANDARD as BASE64};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::support::PATIENCE;

/// Messages are sent on descriptor 3 and received on 4, each terminated by a zero byte.
const START: &str = r#"exec chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage \
    --no-first-run --hide-scrollbars --user-data-dir="$0" --remote-debugging-pipe \
    3<&0 4>&1 </dev/null >/dev/null 2>&1"#;

/// A browser with one page; killed on drop.
pub(crate) struct Browser {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    session: Option<String>,
    sent: u64,
    /// Page events since the last call.
    events: Vec<Value>,
    _folder: TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Browser {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", START])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = child.stdin.take().unwrap();
        let mut answers = BufReader::new(child.stdout.take().unwrap());
        let (tells, messages) = channel();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            while answers.read_until(0, &mut bytes).is_ok_and(|read| read > 0) {
                bytes.pop();
                let message = serde_json::from_slice(&bytes).unwrap();
                if tells.send(message).is_err() {
                    return;
                }
                bytes.clear();
            }
        });
        let mut browser = Self {
            child,
            commands,
            messages,
            session: None,
            sent: 0,
            events: Vec::new(),
            _folder: folder,
        };
        browser.open_page();
        browser
    }

    fn open_page(&mut self) {
        let page = self.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = json!({ "targetId": page["targetId"], "flatten": true });
        let session = self.call("Target.attachToTarget", attached);
        self.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
    }

    /// Calls a DevTools method and waits for its result.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.sent += 1;
        let mut command = json!({ "id": self.sent, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        let sent = self.commands.write_all(&bytes);
        sent.unwrap_or_else(|error| {
            panic!("{error}: is chromium installed? `cargo xtask test` installs it")
        });
        loop {
            let message = self.next(method);
            if message["id"] == self.sent {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    fn next(&self, what: &str) -> Value {
        let next = self.messages.recv_timeout(PATIENCE);
        next.unwrap_or_else(|_| {
            panic!("{what}: no reply from chromium; `cargo xtask test` installs it")
        })
    }

    /// Opens an address; returns the events up to the end of loading.
    pub(crate) fn open(&mut self, url: &str) -> Vec<Value> {
        self.events.clear();
        self.call("Page.navigate", json!({ "url": url }));
        self.loaded()
    }

    /// Clicks the element that an expression finds, and waits until the page that follows has loaded.
    pub(crate) fn click(&mut self, element: &str) -> Vec<Value> {
        self.follow(&format!(
            "(() => {{ const it = {element}; setTimeout(() => it.click(), 0); }})()"
        ))
    }

    /// Evaluates an expression that opens a page, and waits until it has loaded.
    pub(crate) fn follow(&mut self, expression: &str) -> Vec<Value> {
        self.events.clear();
        self.evaluate(expression);
        self.loaded()
    }

    /// Presses a key that opens a page, and waits until it has loaded.
    pub(crate) fn press_and_follow(&mut self, key: &str, text: &str) -> Vec<Value> {
        self.events.clear();
        self.press(key, text);
        self.loaded()
    }

    /// Waits until the page has loaded; returns the events until then.
    fn loaded(&mut self) -> Vec<Value> {
        while !self
            .events
            .iter()
            .any(|it| it["method"] == "Page.loadEventFired")
        {
            let message = self.next("load");
            self.events.push(message);
        }
        // Also catches events that the page causes just after loading.
        self.evaluate("new Promise(done => setTimeout(done, 100))");
        std::mem::take(&mut self.events)
    }

    /// Presses a key of the keyboard; `text` is what it types.
    pub(crate) fn press(&mut self, key: &str, text: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            " " => 32,
            // The codes of signs would be those of other keys.
            key => match key.as_bytes() {
                [letter] if letter.is_ascii_alphanumeric() => letter.to_ascii_uppercase(),
                _ => 0,
            },
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Evaluates an expression in the page.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let asked =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", asked);
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Sets the width of the window and the colour scheme, `light` or `dark`.
    pub(crate) fn look(&mut self, width: u32, scheme: &str) {
        let metrics =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let scheme = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call(
            "Emulation.setEmulatedMedia",
            json!({ "media": "", "features": scheme }),
        );
    }

    /// The top of the page as PNG; a picture of the whole page takes too long to inspect.
    pub(crate) fn screenshot(&mut self, width: u32, height: u32) -> Vec<u8> {
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        let asked = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let answer = self.call("Page.captureScreenshot", asked);
        BASE64.decode(answer["data"].as_str().unwrap()).unwrap()
    }

    /// The print version of the page as PDF.
    pub(crate) fn printed(&mut self) -> Vec<u8> {
        let answer = self.call("Page.printToPDF", json!({ "printBackground": true }));
        BASE64.decode(answer["data"].as_str().unwrap()).unwrap()
    }
}
