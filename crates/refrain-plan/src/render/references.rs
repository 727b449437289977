//! References in the annotated copy: inlines the ones to annotate, and corrects the paths of the others.

use refrain_openapi::{Document, Node, View};

/// Members that hold data; a `$ref` inside them is not a reference.
const DATA: [&str; 4] = ["example", "value", "default", "const"];

/// Inlines referenced paths and operations, because annotations must be in the copy itself.
pub(super) fn inline_references(root: &mut Node, document: &Document) {
    let view = document.view();
    let name = document.name();
    let paths = root.as_map_mut().and_then(|it| it.get_mut("paths"));
    let (Some(paths), Some(view)) = (paths, view.get("paths")) else {
        return;
    };
    take(paths, &view, name);
    for (path, view) in view.members() {
        let item = paths.as_map_mut().and_then(|it| it.get_mut(path));
        let Some(item) = item else { continue };
        take(item, &view, name);
        for (method, view) in view.members() {
            let operation = item.as_map_mut().and_then(|it| it.get_mut(method));
            operation.into_iter().for_each(|it| take(it, &view, name));
        }
    }
}

/// Replaces a reference with its target; members beside the reference are kept.
fn take(node: &mut Node, view: &View<'_>, name: &str) {
    if node.get("$ref").is_none() || view.node().as_map().is_none() {
        return;
    }
    let mut whole = view.node().clone();
    if let Some(file) = view.file_reference() {
        relocate(&mut whole, &|text| moved(text, &file, name));
    }
    let beside = node.as_map().cloned().unwrap_or_default();
    if let Some(map) = whole.as_map_mut() {
        for (name, node) in beside.into_iter().filter(|(name, _)| name != "$ref") {
            map.entry(name).or_insert(node);
        }
    }
    *node = whole;
}

/// Converts a reference in `file` to the equivalent reference in the document's first file, named `first`.
fn moved(text: &str, file: &str, first: &str) -> String {
    let (other, fragment) = text.split_once('#').unwrap_or((text, ""));
    let mut parts: Vec<_> = file.split('/').collect();
    if !other.is_empty() {
        parts.pop();
        for part in other.split('/') {
            match part {
                "." => {}
                ".." if parts.last().is_some_and(|it| *it != "..") => {
                    parts.pop();
                }
                part => parts.push(part),
            }
        }
    }
    let path = parts.join("/");
    let path = if path == first { "" } else { &path };
    match text.contains('#') {
        true => format!("{path}#{fragment}"),
        false => path.into(),
    }
}

/// Prefixes every reference to another file with a folder.
pub(super) fn rewrite(node: &mut Node, folder: &str) {
    relocate(node, &|text| match text.starts_with('#') {
        true => text.into(),
        false => format!("{folder}{text}"),
    });
}

/// Rewrites every reference, except for URLs.
fn relocate(node: &mut Node, new: &dyn Fn(&str) -> String) {
    match node {
        Node::Map(map) => {
            for (name, node) in map.iter_mut() {
                match node {
                    Node::Text(text) if name == "$ref" && !text.contains("://") => {
                        *text = new(text);
                    }
                    Node::Map(mapping) if name == "mapping" => {
                        relocate_mapping(mapping.values_mut(), new);
                    }
                    _ if DATA.contains(&name.as_str()) => {}
                    node => relocate(node, new),
                }
            }
        }
        Node::List(items) => items.iter_mut().for_each(|item| relocate(item, new)),
        _ => {}
    }
}

/// Rewrites a discriminator mapping. Values that look like paths are references; other values are schema names.
fn relocate_mapping<'n>(values: impl Iterator<Item = &'n mut Node>, new: &dyn Fn(&str) -> String) {
    for value in values {
        match value {
            Node::Text(text) if text.contains(['/', '#']) && !text.contains("://") => {
                *text = new(text);
            }
            node => relocate(node, new),
        }
    }
}
