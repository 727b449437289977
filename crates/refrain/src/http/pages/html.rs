//! A small renderer of the Markdown of our own pages. It escapes all text, and rejects what it does not know.

/// Readable without a script or a second request, in light and dark, on a narrow screen.
const STYLE: &str = "\
:root{color-scheme:light dark;--text:#1c2024;--soft:#5b6570;--line:#d9dee3;--code:#f0f2f4;--link:#0b5cad;--page:#fff}\
@media(prefers-color-scheme:dark){:root{--text:#e4e7ea;--soft:#9aa5b1;--line:#3a424b;--code:#252b31;--link:#7db7f5;--page:#15191d}}\
*{box-sizing:border-box}\
body{margin:0;background:var(--page);color:var(--text);font:1rem/1.6 system-ui,sans-serif}\
main,nav{max-width:44rem;margin:0 auto;padding:0 1rem}\
nav{padding-top:1rem}main{padding-bottom:3rem}\
h1{font-size:1.6rem;line-height:1.25;margin:1rem 0}h2{font-size:1.15rem;margin:2rem 0 .5rem}\
a{color:var(--link)}\
code{background:var(--code);border-radius:.25rem;padding:.1em .3em;font-size:.9em;overflow-wrap:anywhere}\
pre{background:var(--code);border-radius:.25rem;padding:.75rem;overflow-x:auto}pre code{padding:0;overflow-wrap:normal}\
.table{overflow-x:auto}table{border-collapse:collapse;width:100%}\
th,td{text-align:left;vertical-align:top;padding:.4rem .6rem .4rem 0;border-bottom:1px solid var(--line)}\
th{color:var(--soft);font-weight:600}td code{overflow-wrap:normal}li{margin:.25rem 0}";

/// A whole page.
pub(super) fn document(title: &str, content: &str, has_index: bool) -> String {
    let nav = match has_index {
        true => "<nav><a href=\"./\">All problems</a></nav>\n",
        false => "",
    };
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{nav}<main>\n{content}</main>\n</body>\n</html>\n"
    )
}

/// Renders a page; returns its title and its content. `is_page` tells whether there is another page of this name.
///
/// # Errors
/// The first construct that is not known.
pub(super) fn render(
    markdown: &str,
    is_page: impl Fn(&str) -> bool,
) -> Result<(String, String), String> {
    let mut renderer = Renderer {
        lines: markdown.lines().collect(),
        at: 0,
        is_page: &is_page,
        title: String::new(),
        html: String::new(),
    };
    while renderer.at < renderer.lines.len() {
        renderer.block()?;
    }
    Ok((renderer.title, renderer.html))
}

struct Renderer<'a> {
    lines: Vec<&'a str>,
    /// The next line.
    at: usize,
    is_page: &'a dyn Fn(&str) -> bool,
    title: String,
    html: String,
}

impl<'a> Renderer<'a> {
    fn block(&mut self) -> Result<(), String> {
        let line = self.lines[self.at];
        match line {
            "" => self.at += 1,
            _ if line.starts_with('#') => self.heading(line)?,
            _ if line.starts_with("```") => self.code(),
            _ if line.starts_with('|') => self.table()?,
            _ if item(line).is_some() => self.list()?,
            _ => self.paragraph()?,
        }
        Ok(())
    }

    fn heading(&mut self, line: &str) -> Result<(), String> {
        let marks = line.bytes().take_while(|byte| *byte == b'#').count();
        let text = match line[marks..].strip_prefix(' ') {
            Some(text) if marks <= 3 => self.inline(text)?,
            _ => return Err(format!("heading `{line}`")),
        };
        if self.title.is_empty() {
            self.title.clone_from(&text);
        }
        self.html += &format!("<h{marks}>{text}</h{marks}>\n");
        self.at += 1;
        Ok(())
    }

    fn code(&mut self) {
        self.at += 1;
        let text = self.take_while(|line| !line.starts_with("```"));
        self.at += 1;
        let text: String = text.iter().map(|line| escape(line) + "\n").collect();
        self.html += &format!("<pre><code>{text}</code></pre>\n");
    }

    fn table(&mut self) -> Result<(), String> {
        let rows = self.take_while(|line| line.starts_with('|'));
        self.html += "<div class=\"table\"><table>\n";
        for (at, row) in rows.iter().enumerate() {
            let (start, end) = match at {
                0 => ("<th scope=\"col\">", "</th>"),
                1 if row.bytes().all(|byte| b"|-: ".contains(&byte)) => continue,
                1 => return Err(format!("table without a line below its head: `{row}`")),
                _ => ("<td>", "</td>"),
            };
            self.html += "<tr>";
            for cell in cells(row)? {
                let cell = self.inline(&cell)?;
                self.html += &format!("{start}{cell}{end}");
            }
            self.html += "</tr>\n";
        }
        self.html += "</table></div>\n";
        Ok(())
    }

    /// A list without lists in it; further lines of an item are indented.
    fn list(&mut self) -> Result<(), String> {
        let is_numbered = |line: &str| line.starts_with(|it: char| it.is_ascii_digit());
        let first = is_numbered(self.lines[self.at]);
        let name = if first { "ol" } else { "ul" };
        self.html += &format!("<{name}>\n");
        while let Some(line) = self.lines.get(self.at).copied() {
            let Some(text) = item(line).filter(|_| is_numbered(line) == first) else {
                break;
            };
            self.at += 1;
            let mut lines = vec![text];
            let rest = self.take_while(|line| line.starts_with("  "));
            lines.extend(rest.iter().map(|line| line.trim_start()));
            if let Some(nested) = lines.iter().skip(1).find(|line| item(line).is_some()) {
                return Err(format!("list in a list: `{nested}`"));
            }
            let text = self.inline(&lines.join("\n"))?;
            self.html += &format!("<li>{text}</li>\n");
        }
        self.html += &format!("</{name}>\n");
        Ok(())
    }

    fn paragraph(&mut self) -> Result<(), String> {
        let line = self.lines[self.at];
        if line.starts_with([' ', '>', '<', '*', '+', '!']) || line.starts_with("---") {
            return Err(format!("line `{line}`"));
        }
        let is_text = |line: &str| {
            !line.is_empty() && !line.starts_with(['#', '|', '`']) && item(line).is_none()
        };
        self.at += 1;
        let mut lines = vec![line];
        // A line may begin with code, but not with a fence.
        lines.extend(self.take_while(|line| {
            is_text(line) || (line.starts_with('`') && !line.starts_with("```"))
        }));
        let text = self.inline(&lines.join("\n"))?;
        self.html += &format!("<p>{text}</p>\n");
        Ok(())
    }

    fn take_while(&mut self, fits: impl Fn(&str) -> bool) -> Vec<&'a str> {
        let rest = self.lines[self.at..].iter().copied();
        let taken: Vec<_> = rest.take_while(|line| fits(line)).collect();
        self.at += taken.len();
        taken
    }

    /// Text with code and links.
    fn inline(&self, text: &str) -> Result<String, String> {
        let mut html = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['`', '[']) {
            html += &plain(&rest[..at])?;
            let is_code = rest[at..].starts_with('`');
            rest = &rest[at + 1..];
            let (made, after) = match is_code {
                true => self.code_span(rest)?,
                false => self.link(rest)?,
            };
            html += &made;
            rest = after;
        }
        Ok(html + &plain(rest)?)
    }

    /// The code up to the next backtick. The name of another page links to it.
    fn code_span<'t>(&self, rest: &'t str) -> Result<(String, &'t str), String> {
        let (code, after) = rest
            .split_once('`')
            .filter(|(code, _)| !code.is_empty())
            .ok_or_else(|| format!("backtick without an end: `{rest}`"))?;
        let html = format!("<code>{}</code>", escape(code));
        let html = match (self.is_page)(code) {
            true => format!("<a href=\"{}\">{html}</a>", escape(code)),
            false => html,
        };
        Ok((html, after))
    }

    /// The rest of a link. Pages of the documentation that are not served here are only named.
    fn link<'t>(&self, rest: &'t str) -> Result<(String, &'t str), String> {
        let unknown = || format!("bracket without a link: `[{rest}`");
        let (text, after) = rest.split_once("](").ok_or_else(unknown)?;
        let (target, after) = after.split_once(')').ok_or_else(unknown)?;
        // No link in a link.
        let content = Renderer {
            is_page: &|_| false,
            lines: Vec::new(),
            title: String::new(),
            html: String::new(),
            at: 0,
        }
        .inline(text)?;
        let name = target.strip_suffix(".md").unwrap_or(target);
        let href = match target {
            _ if (self.is_page)(name) => name,
            _ if target.starts_with("https://") => target,
            _ => return Ok((content, after)),
        };
        Ok((format!("<a href=\"{}\">{content}</a>", escape(href)), after))
    }
}

/// The text of a list item.
fn item(line: &str) -> Option<&str> {
    let number = line.trim_start_matches(|it: char| it.is_ascii_digit());
    line.strip_prefix("- ").or_else(|| {
        number
            .strip_prefix(". ")
            .filter(|_| number.len() < line.len())
    })
}

/// The cells of a row; `\|` is a bar in a cell.
fn cells(row: &str) -> Result<Vec<String>, String> {
    let inner = row.strip_prefix('|').and_then(|row| row.strip_suffix('|'));
    let inner = inner.ok_or_else(|| format!("row without a bar at its end: `{row}`"))?;
    // A character that no page has stands for an escaped bar.
    let inner = inner.replace("\\|", "\u{0}");
    let cells = inner.split('|');
    Ok(cells
        .map(|cell| cell.trim().replace('\u{0}', "|"))
        .collect())
}

/// Text outside code and links.
fn plain(text: &str) -> Result<String, String> {
    let is_emphasis = text.contains('*') || text.starts_with('_') || text.contains(" _");
    match is_emphasis || text.contains(['<', '\\']) || text.ends_with('!') {
        true => Err(format!("text `{text}`")),
        false => Ok(escape(text)),
    }
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(markdown: &str) -> Result<String, String> {
        render(markdown, |name| name == "in-flight").map(|(_, html)| html)
    }

    #[test]
    fn each_construct_has_its_html() {
        for (markdown, expected) in [
            ("# A & `B`", "<h1>A &amp; <code>B</code></h1>\n"),
            ("one.\ntwo.\n\nthree.", "<p>one.\ntwo.</p>\n<p>three.</p>\n"),
            ("a\n`--b` c", "<p>a\n<code>--b</code> c</p>\n"),
            (
                "- a\n  b\n- c\n\nd",
                "<ul>\n<li>a\nb</li>\n<li>c</li>\n</ul>\n<p>d</p>\n",
            ),
            ("1. a\n2. b", "<ol>\n<li>a</li>\n<li>b</li>\n</ol>\n"),
            (
                "| a | b |\n|---|---|\n| 1 | `x\\|y` |",
                "<div class=\"table\"><table>\n<tr><th scope=\"col\">a</th><th scope=\"col\">b</th></tr>\n\
                 <tr><td>1</td><td><code>x|y</code></td></tr>\n</table></div>\n",
            ),
            (
                "```text\n<a> *b*\n```",
                "<pre><code>&lt;a&gt; *b*\n</code></pre>\n",
            ),
            (
                "`in-flight` [there](in-flight.md)",
                "<p><a href=\"in-flight\"><code>in-flight</code></a> <a href=\"in-flight\">there</a></p>\n",
            ),
            (
                "[`in-flight`](in-flight) [docs](../policy.md#a)",
                "<p><a href=\"in-flight\"><code>in-flight</code></a> docs</p>\n",
            ),
            (
                "[a](https://example.com/?b&c)",
                "<p><a href=\"https://example.com/?b&amp;c\">a</a></p>\n",
            ),
        ] {
            assert_eq!(rendered(markdown).as_deref(), Ok(expected), "{markdown}");
        }
    }

    #[test]
    fn text_cannot_become_markup() {
        for markdown in [
            "`<script>alert(1)</script>`",
            "```text\n<script>alert(1)</script>\n```",
            "[`\"><script>`](https://x/\"><script>)",
        ] {
            let html = rendered(markdown).unwrap();
            assert!(!html.contains("<script"), "{html}");
        }
        assert_eq!(
            rendered("[a](javascript:alert%281%29)").as_deref(),
            Ok("<p>a</p>\n")
        );
    }

    #[test]
    fn unknown_constructs_are_refused() {
        for markdown in [
            "#### deep",
            "#none",
            "> quote",
            "* star",
            "    code",
            "<b>bold</b>",
            "a <b>bold</b>",
            "**strong**",
            "an _emphasis_",
            "![image](a.png)",
            "a ![image](a.png)",
            "`open",
            "[open",
            "- a\n  - b",
            "| a |\n| 1 |",
            "| a |\n|---|\n| 1",
            "---",
        ] {
            assert!(rendered(markdown).is_err(), "{markdown}");
        }
    }
}
