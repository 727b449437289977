//! Pages of a long search, and how far it is.

use std::io::{self, IsTerminal as _, Write};

use serde_json::Value;

/// Shows on a terminal how much of the store is searched. A response comes after a few seconds, also without a record.
pub(super) struct Progress<W: Write = io::Stderr> {
    output: Option<W>,
    is_shown: bool,
}

impl Progress {
    /// Progress on standard error, if that is a terminal.
    pub(super) fn new() -> Self {
        let stderr = io::stderr();
        Self::on(stderr.is_terminal().then_some(stderr))
    }
}

impl<W: Write> Progress<W> {
    fn on(output: Option<W>) -> Self {
        Self {
            output,
            is_shown: false,
        }
    }

    /// The records of a page, and the id after which the next page begins.
    pub(super) fn page(&mut self, mut page: Value) -> (Vec<Value>, Option<String>) {
        let next = page["next"].as_str().map(str::to_owned);
        let records = match page["records"].take() {
            Value::Array(records) => records,
            _ => Vec::new(),
        };
        self.clear();
        // Records are progress enough, and may be printed now.
        if next.is_some()
            && records.is_empty()
            && let Some(percent) = page["searched_percent"].as_u64()
        {
            self.write(&format!("searched {percent} % of the store…"));
            self.is_shown = true;
        }
        (records, next)
    }

    /// Removes the line, because other lines follow.
    fn clear(&mut self) {
        if self.is_shown {
            self.write("\r\x1b[K");
            self.is_shown = false;
        }
    }

    fn write(&mut self, text: &str) {
        if let Some(output) = &mut self.output {
            // Progress is not worth an error.
            let _ = output
                .write_all(text.as_bytes())
                .and_then(|()| output.flush());
        }
    }
}

impl<W: Write> Drop for Progress<W> {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shows_how_far_the_search_is_until_the_last_page() {
        let mut output = Vec::new();
        let mut progress = Progress::on(Some(&mut output));
        let empty = json!({ "records": [], "next": "40", "searched_percent": 25 });
        assert_eq!(progress.page(empty), (Vec::new(), Some("40".into())));
        let last = json!({ "records": [7], "next": null, "searched_percent": 100 });
        assert_eq!(progress.page(last), (vec![json!(7)], None));
        drop(progress);
        let shown = String::from_utf8(output).unwrap();
        assert_eq!(shown, "searched 25 % of the store…\r\x1b[K");
    }
}
