//! Checks the links between the project's pages.

use super::{
    Finding,
    tree::{File, Tree},
};

/// Rule: every relative link in a Markdown page points to a file or folder of the project.
pub(super) fn targets(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for page in tree.ending(".md") {
        for (at, target) in links(page) {
            let found = resolve(&page.path, &target).is_some_and(|path| exists(tree, &path));
            if !found {
                let message =
                    format!("the link to `{target}` refers to a missing file; correct the path");
                findings.push(Finding::new(&page.path, at, message));
            }
        }
    }
    findings
}

fn exists(tree: &Tree, path: &str) -> bool {
    let folder = format!("{path}/");
    let is_folder = |other: &String| other.starts_with(&folder);
    path.is_empty() || tree.paths.contains(path) || tree.paths.iter().any(is_folder)
}

/// The relative links of a page without their `#` fragments, with line numbers.
fn links(page: &File) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    let mut in_fence = false;
    for (at, line) in page.lines() {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
        }
        if in_fence {
            continue;
        }
        let prose = without_code(line);
        let inline = prose
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split([')', ' ']).next());
        let targets = inline.chain(definition(&prose));
        let relative = targets.filter(|target| is_relative(target));
        links.extend(relative.map(|target| (at, before_anchor(target).into())));
    }
    links
}

/// The target of a link definition such as `[name]: target`.
fn definition(line: &str) -> Option<&str> {
    let (_, target) = line.strip_prefix('[')?.split_once("]: ")?;
    target.split(' ').next()
}

/// The line without inline code.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

fn is_relative(target: &str) -> bool {
    let elsewhere =
        target.contains("://") || target.starts_with("mailto:") || target.starts_with('/');
    !elsewhere && !before_anchor(target).is_empty()
}

fn before_anchor(target: &str) -> &str {
    target.split_once('#').map_or(target, |(path, _)| path)
}

/// The path relative to the root; `None` if the link leaves the project.
fn resolve(page: &str, target: &str) -> Option<String> {
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut path: Vec<&str> = folder.split('/').filter(|name| !name.is_empty()).collect();
    for name in target.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(path.pop()?),
            name => path.push(name),
        }
    }
    Some(path.join("/"))
}
