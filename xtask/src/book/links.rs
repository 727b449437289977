//! Checks that every link in the built book leads to an existing page and anchor.
//!
//! Checks the built pages instead of the sources, because these are the links and anchors that readers follow.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Pages that repeat others, and the 404 page, whose links are relative to the site's root.
const SKIPPED: [&str; 3] = ["print.html", "toc.html", "404.html"];

/// The links and anchors of a page.
#[derive(Debug, Default)]
struct Page {
    links: Vec<String>,
    ids: BTreeSet<String>,
}

/// Returns the dead links of the built book.
pub(super) fn check(built: &Path) -> Result<Vec<String>, String> {
    let mut pages = BTreeMap::new();
    for path in super::files(built, ".html")? {
        if SKIPPED.contains(&path.as_str()) {
            continue;
        }
        let text = fs::read_to_string(built.join(&path));
        let text = text.map_err(|error| format!("{path}: {error}"))?;
        pages.insert(path, page(&text));
    }
    let others = super::files(built, "")?.into_iter().collect();
    Ok(dead(&pages, &others))
}

/// `others` are files that may be linked to without an anchor.
fn dead(pages: &BTreeMap<String, Page>, others: &BTreeSet<String>) -> Vec<String> {
    let mut findings = BTreeSet::new();
    for (path, page) in pages {
        for link in page.links.iter().filter(|link| is_inside(link)) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => Some(path.clone()),
                file => resolve(path, file),
            };
            let target = target.filter(|it| pages.contains_key(it) || others.contains(it));
            let source = source(path);
            let Some(target) = target else {
                findings.insert(format!(
                    "{source}: the link to `{link}` leads out of the book or to a missing page; correct it, or write the file name without a link"
                ));
                continue;
            };
            let is_place = |page: &Page| anchor.is_empty() || page.ids.contains(anchor);
            if !pages.get(&target).is_none_or(is_place) {
                findings.insert(format!(
                    "{source}: the link to `{link}` refers to a missing heading of that page"
                ));
            }
        }
    }
    findings.into_iter().collect()
}

/// The source file of a built page.
fn source(built: &str) -> String {
    let page = built.trim_end_matches(".html");
    let page = page
        .strip_suffix("index")
        .map_or(page.into(), |folder| format!("{folder}README"));
    format!("docs/{page}.md")
}

fn page(html: &str) -> Page {
    let values = |name: &str| -> Vec<String> {
        let mark = format!(" {name}=\"");
        let found = html.split(mark.as_str()).skip(1);
        let found = found.filter_map(|rest| rest.split('"').next());
        found.map(|value| value.replace("&amp;", "&")).collect()
    };
    Page {
        links: [values("href"), values("src")].concat(),
        ids: values("id").into_iter().collect(),
    }
}

fn is_inside(link: &str) -> bool {
    let scheme = link.split(['/', '#', '?']).next().unwrap_or_default();
    !scheme.contains(':')
}

/// The path relative to the book's root; `None` if it leaves the book.
fn resolve(page: &str, file: &str) -> Option<String> {
    let file = file.split('?').next().unwrap_or_default();
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut path: Vec<&str> = folder.split('/').filter(|name| !name.is_empty()).collect();
    for name in file.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(path.pop()?),
            name => path.push(name),
        }
    }
    Some(path.join("/"))
}

#[cfg(test)]
mod tests {
    //! A broken link checker finds nothing, just as in a book without dead links.

    use super::*;

    #[test]
    fn dead_links_and_dead_places_are_found() {
        let pages = [
            (
                "index.html",
                r##"<a href="a/b.html#here">x</a> <a href="gone.html">x</a> <a href="https://x.example/y">x</a> <img src="style.css">"##,
            ),
            (
                "a/b.html",
                r##"<h2 id="here">x</h2> <a href="../index.html">x</a> <a href="#nowhere">x</a> <a href="../../out.html">x</a>"##,
            ),
        ];
        let pages = pages.map(|(path, text)| (path.to_owned(), page(text)));
        let others = BTreeSet::from(["style.css".to_owned()]);
        let found = dead(&BTreeMap::from(pages), &others);
        let begins = [
            "docs/README.md: the link to `gone.html` leads out",
            "docs/a/b.md: the link to `#nowhere` refers to a missing heading",
            "docs/a/b.md: the link to `../../out.html` leads out",
        ];
        assert_eq!(found.len(), begins.len(), "{found:?}");
        for begin in begins {
            assert!(found.iter().any(|it| it.starts_with(begin)), "{found:?}");
        }
    }
}
