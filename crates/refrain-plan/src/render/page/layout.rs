//! Page of a few kinds of blocks, written as Markdown or HTML.

use std::fmt::Write as _;

/// A part of a page. In text, code is between backticks.
#[derive(Debug)]
pub(super) enum Block {
    Heading(u8, String),
    Text(String),
    List(Vec<String>),
    Code(String),
    Table(Vec<String>, Vec<Vec<Cell>>),
}

/// A table cell.
#[derive(Debug)]
pub(super) enum Cell {
    Text(String),
    Code(String),
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1b1b1f}\
table{border-collapse:collapse;width:100%;font-size:.9em}td,th{border-bottom:1px solid #ccc;padding:.4rem .6rem;text-align:left;vertical-align:top}\
code,pre{background:#f3f3f6;border-radius:3px;padding:.1em .3em}pre{padding:.8rem;overflow:auto}\
@media(prefers-color-scheme:dark){body{background:#17171a;color:#e6e6ea}code,pre{background:#2a2a30}td,th{border-color:#444}}";

pub(super) fn markdown(blocks: &[Block]) -> String {
    let mut page = String::new();
    for block in blocks {
        match block {
            Block::Heading(level, text) => {
                page.push_str(&format!("{} {text}\n\n", "#".repeat(usize::from(*level))));
            }
            // One sentence per line, for readable diffs.
            Block::Text(text) => page.push_str(&(text.replace(". ", ".\n") + "\n\n")),
            Block::List(items) => {
                items
                    .iter()
                    .for_each(|item| page.push_str(&format!("- {item}\n")));
                page.push('\n');
            }
            Block::Code(code) => page.push_str(&format!("```http\n{code}\n```\n\n")),
            Block::Table(headings, rows) => {
                page.push_str(&format!(
                    "| {} |\n|{}\n",
                    headings.join(" | "),
                    "---|".repeat(headings.len())
                ));
                for row in rows {
                    let cells: Vec<_> = row.iter().map(cell).collect();
                    page.push_str(&format!("| {} |\n", cells.join(" | ")));
                }
                page.push('\n');
            }
        }
    }
    page.trim_end().to_owned() + "\n"
}

fn cell(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) => text.replace('|', "\\|"),
        Cell::Code(text) if text.is_empty() => String::new(),
        Cell::Code(text) => format!("`{}`", text.replace('|', "\\|").replace('`', "'")),
    }
}

pub(super) fn html(title: &str, mark: &str, blocks: &[Block]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<!-- Made by refrain plan; {mark} -->\n<head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{}</title><style>{STYLE}</style></head>\n<body>\n",
        escaped(title)
    );
    for block in blocks {
        add(&mut page, block);
    }
    page + "</body>\n</html>\n"
}

fn add(page: &mut String, block: &Block) {
    // Writing to a `String` never fails.
    let _ = match block {
        Block::Heading(level, text) => writeln!(page, "<h{level}>{}</h{level}>", escaped(text)),
        Block::Text(text) => writeln!(page, "<p>{}</p>", inline(text)),
        Block::List(items) => {
            let items: Vec<_> = items
                .iter()
                .map(|item| format!("<li>{}</li>", inline(item)))
                .collect();
            writeln!(page, "<ul>\n{}\n</ul>", items.join("\n"))
        }
        Block::Code(code) => writeln!(page, "<pre>{}</pre>", escaped(code)),
        Block::Table(headings, rows) => {
            let headings: String = headings
                .iter()
                .map(|it| format!("<th>{}</th>", escaped(it)))
                .collect();
            let row = |row: &Vec<Cell>| {
                let cells: String = row
                    .iter()
                    .map(|cell| match cell {
                        Cell::Text(text) => format!("<td>{}</td>", inline(text)),
                        Cell::Code(text) => format!("<td><code>{}</code></td>", escaped(text)),
                    })
                    .collect();
                format!("<tr>{cells}</tr>")
            };
            let rows: Vec<_> = rows.iter().map(row).collect();
            writeln!(
                page,
                "<table>\n<tr>{headings}</tr>\n{}\n</table>",
                rows.join("\n")
            )
        }
    };
}

fn inline(text: &str) -> String {
    let parts = escaped(text);
    let parts = parts.split('`').enumerate();
    parts
        .map(|(at, part)| {
            if at % 2 == 1 {
                format!("<code>{part}</code>")
            } else {
                part.to_owned()
            }
        })
        .collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
