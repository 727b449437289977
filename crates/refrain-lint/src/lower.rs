//! Lowers a syntax tree to items.

use tree_sitter::{Node, Tree, TreeCursor};

use crate::{
    item::{Arg, Item, Role, Span},
    language::Lang,
    names::{fold, path},
};

/// Maximum nesting depth; deeper nodes are ignored.
const DEPTH_MAX: usize = 400;

/// Items of a syntax tree, in source order.
pub(crate) fn lower(lang: Lang, text: &str, tree: &Tree) -> Vec<Item> {
    let mut lower = Lower {
        roles: lang.roles(),
        lang,
        text,
        items: Vec::new(),
    };
    lower.visit(&mut tree.walk(), 0, 0);
    lower.items
}

struct Lower<'t> {
    roles: &'static [Role],
    lang: Lang,
    text: &'t str,
    items: Vec<Item>,
}

impl<'t> Lower<'t> {
    fn visit(&mut self, cursor: &mut TreeCursor<'t>, parent: usize, depth: usize) {
        let node = cursor.node();
        let mine = self.item(node, parent);
        let around = mine.unwrap_or(parent);
        if depth < DEPTH_MAX && cursor.goto_first_child() {
            loop {
                self.visit(cursor, around, depth + 1);
                if !cursor.goto_next_sibling() {
                    break;
                }
            }
            cursor.goto_parent();
        }
        if let Some(mine) = mine {
            let end = self.items.len();
            self.items[mine].last = end;
        }
    }

    /// Adds the item of a node, and returns its index.
    fn item(&mut self, node: Node<'t>, parent: usize) -> Option<usize> {
        if !node.is_named() {
            return None;
        }
        let role = *self.roles.get(usize::from(node.kind_id()))?;
        let parts = match role {
            Role::Other => return None,
            Role::Call => self.call(node),
            Role::Function => self.function(node),
            Role::Class => self.class(node),
            Role::Assign => return self.assign(node, parent),
            Role::Pair => self.pair(node)?,
            Role::Return => Parts::value(self.inside(node)),
            Role::If | Role::Loop | Role::With | Role::Catch => Parts::value(self.head(node)),
            _ => Parts::default(),
        };
        Some(self.push(role, node.byte_range(), parent, parts))
    }

    fn push(&mut self, role: Role, span: Span, parent: usize, parts: Parts) -> usize {
        let index = self.items.len();
        let parent = if index == 0 { 0 } else { parent };
        self.items.push(Item {
            role,
            span,
            parent,
            last: index + 1,
            name: parts.name,
            base: parts.base,
            value: parts.value,
            args: parts.args,
        });
        index
    }

    fn str(&self, node: Node<'_>) -> &'t str {
        &self.text[node.byte_range()]
    }

    fn call(&self, node: Node<'t>) -> Parts {
        let arguments = node.child_by_field_name("arguments").or_else(|| {
            let mut cursor = node.walk();
            let mut children = node.named_children(&mut cursor);
            children
                .find(|child| matches!(child.kind(), "arguments" | "argument_list" | "token_tree"))
        });
        let block = node.child_by_field_name("block");
        let end = arguments
            .or(block)
            .map_or(node.end_byte(), |it| it.start_byte());
        let name = path(&self.text[node.start_byte()..end]);
        let base = name.rsplit_once('.').map_or("", |(base, _)| base).into();
        let args = arguments.map(|it| self.args(it)).unwrap_or_default();
        let value = arguments.map_or(end..end, |it| it.byte_range());
        Parts {
            name,
            base,
            value,
            args,
        }
    }

    fn args(&self, arguments: Node<'t>) -> Vec<Arg> {
        if arguments.kind() == "token_tree" {
            return self.tokens(arguments);
        }
        let mut cursor = arguments.walk();
        let children = arguments.named_children(&mut cursor);
        children
            .filter(|child| !child.kind().ends_with("comment"))
            .map(|child| self.arg(child))
            .collect()
    }

    /// Arguments of a macro, split at commas.
    fn tokens(&self, tree: Node<'t>) -> Vec<Arg> {
        let mut args = Vec::new();
        let mut from = tree.start_byte() + 1;
        let mut cursor = tree.walk();
        for child in tree.children(&mut cursor) {
            let is_end = child.end_byte() == tree.end_byte();
            if child.kind() == "," || is_end {
                let span = from..child.start_byte();
                if !self.text[span.clone()].trim().is_empty() {
                    args.push(Arg {
                        name: String::new(),
                        span,
                    });
                }
                from = child.end_byte();
            }
        }
        args
    }

    fn arg(&self, node: Node<'t>) -> Arg {
        let inner = |node: Node<'t>| node.named_child(0).unwrap_or(node);
        let (name, value) = match node.kind() {
            "keyword_argument" | "pair" => {
                let name = node
                    .child_by_field_name("name")
                    .or(node.child_by_field_name("key"));
                let name = name.map(|name| fold(self.str(name))).unwrap_or_default();
                (name, node.child_by_field_name("value").unwrap_or(node))
            }
            "argument" => {
                let name = node.child_by_field_name("name");
                let value = last_named(node);
                (
                    name.map(|name| fold(self.str(name))).unwrap_or_default(),
                    value,
                )
            }
            "dictionary_splat"
            | "list_splat"
            | "spread_element"
            | "hash_splat_argument"
            | "splat_argument"
            | "variadic_unpacking"
            | "variadic_argument" => ("*".into(), inner(node)),
            _ => (String::new(), node),
        };
        Arg {
            name,
            span: value.byte_range(),
        }
    }

    fn function(&self, node: Node<'t>) -> Parts {
        let name = node.child_by_field_name("name").map(|name| self.str(name));
        let name = name.or_else(|| self.given_name(node)).unwrap_or_default();
        let body = node.child_by_field_name("body");
        let params = node
            .child_by_field_name("parameters")
            .or(node.child_by_field_name("parameter"));
        let base = self.attributes(node);
        Parts {
            name: fold(name),
            base,
            value: body.unwrap_or(node).byte_range(),
            args: params.map(|it| self.params(it)).unwrap_or_default(),
        }
    }

    /// Name of the variable or field that a closure is assigned to.
    fn given_name(&self, node: Node<'t>) -> Option<&'t str> {
        let parent = node.parent()?;
        let field = match parent.kind() {
            "variable_declarator" | "public_field_definition" => "name",
            "field_definition" => "property",
            "pair" => "key",
            "assignment_expression" | "assignment" => "left",
            "let_declaration" => "pattern",
            "expression_list" => return self.given_in_list(parent),
            _ => return None,
        };
        parent.child_by_field_name(field).map(|it| self.str(it))
    }

    /// Go: `charge := func() …`.
    fn given_in_list(&self, list: Node<'t>) -> Option<&'t str> {
        let left = list.parent()?.child_by_field_name("left")?;
        (left.named_child_count() == 1).then(|| self.str(left))
    }

    /// Source text of decorators, annotations and attributes, in lower case.
    fn attributes(&self, node: Node<'t>) -> String {
        let mut text = String::new();
        if let Some(parent) = node
            .parent()
            .filter(|it| it.kind() == "decorated_definition")
        {
            text.push_str(&self.text[parent.start_byte()..node.start_byte()]);
        }
        let mut before = node.prev_named_sibling();
        while let Some(sibling) =
            before.filter(|it| matches!(it.kind(), "attribute_item" | "decorator"))
        {
            text.push_str(self.str(sibling));
            before = sibling.prev_named_sibling();
        }
        let mut cursor = node.walk();
        for child in node.named_children(&mut cursor) {
            if matches!(child.kind(), "modifiers" | "attribute_list" | "decorator") {
                text.push_str(self.str(child));
            }
        }
        text.to_lowercase()
    }

    fn params(&self, node: Node<'t>) -> Vec<Arg> {
        let mut cursor = node.walk();
        let children: Vec<_> = match node.named_child_count() {
            0 => vec![node],
            _ => node.named_children(&mut cursor).collect(),
        };
        let mut args = Vec::new();
        for child in children {
            for name in bound(child) {
                args.push(Arg {
                    name: fold(self.str(name)),
                    span: child.byte_range(),
                });
            }
        }
        args
    }

    fn class(&self, node: Node<'t>) -> Parts {
        let name = node
            .child_by_field_name("name")
            .or(node.child_by_field_name("type"));
        let body = node.child_by_field_name("body");
        let end = body.map_or(node.end_byte(), |body| body.start_byte());
        Parts {
            name: name.map(|name| fold(self.str(name))).unwrap_or_default(),
            base: self.attributes(node),
            value: node.start_byte()..end,
            args: Vec::new(),
        }
    }

    fn head(&self, node: Node<'t>) -> Span {
        if let Some(condition) = node.child_by_field_name("condition") {
            return condition.byte_range();
        }
        let body = node.child_by_field_name("body").or(node
            .child_by_field_name("value")
            .filter(|_| node.kind() == "match_arm"));
        let body = body.or_else(|| {
            let blocks = ["block", "then", "statement_block", "compound_statement"];
            let mut cursor = node.walk();
            let mut children = node.named_children(&mut cursor);
            children.find(|child| blocks.contains(&child.kind()))
        });
        let end = body.map_or(node.end_byte(), |body| body.start_byte());
        node.start_byte()..end.max(node.start_byte())
    }

    fn inside(&self, node: Node<'t>) -> Span {
        node.named_child(0)
            .map_or(node.byte_range(), |it| it.byte_range())
    }

    fn pair(&self, node: Node<'t>) -> Option<Parts> {
        let (key, value) = match node.kind() {
            "shorthand_property_identifier" | "shorthand_field_initializer" => (node, node),
            "argument" => (node.child_by_field_name("name")?, last_named(node)),
            "array_element_initializer" if node.named_child_count() == 2 => {
                (node.named_child(0)?, node.named_child(1)?)
            }
            "array_element_initializer" => return None,
            _ => {
                let key = ["key", "name", "field"]
                    .iter()
                    .find_map(|field| node.child_by_field_name(field));
                let key = key?;
                (key, node.child_by_field_name("value").unwrap_or(key))
            }
        };
        Some(Parts {
            name: fold(self.str(key)),
            ..Parts::value(value.byte_range())
        })
    }

    /// Adds one item for each variable on the left-hand side.
    fn assign(&mut self, node: Node<'t>, parent: usize) -> Option<usize> {
        let left = ["left", "name", "pattern", "property"]
            .iter()
            .find_map(|it| node.child_by_field_name(it))
            .or_else(|| {
                node.named_child(0)
                    .filter(|_| node.kind() == "const_element")
            })?;
        let right = ["right", "value", "default_value"]
            .iter()
            .find_map(|it| node.child_by_field_name(it));
        let right = right
            .or_else(|| Some(last_named(node)).filter(|it| it.start_byte() > left.start_byte()))?;
        let several = matches!(
            left.kind(),
            "expression_list"
                | "pattern_list"
                | "tuple_pattern"
                | "left_assignment_list"
                | "array_pattern"
                | "object_pattern"
        );
        let mut targets = vec![left];
        if several {
            let mut cursor = left.walk();
            targets = left.named_children(&mut cursor).collect();
        }
        let mut first = None;
        for target in targets.into_iter().take(8) {
            let (base, name) = self.target(target);
            let value = right.byte_range();
            let parts = Parts {
                name,
                base,
                value,
                args: Vec::new(),
            };
            let index = self.push(Role::Assign, node.byte_range(), parent, parts);
            first.get_or_insert(index);
        }
        // Items of the right-hand side become children of the last one.
        Some(self.items.len() - 1).filter(|_| first.is_some())
    }

    /// Owner and name of an assignment target: `headers["Idempotency-Key"]` is the name in quotes, owned by `headers`.
    fn target(&self, node: Node<'t>) -> (String, String) {
        let text = self.str(node);
        let text = text.strip_prefix("mut ").unwrap_or(text);
        let element = text
            .strip_suffix(']')
            .and_then(|text| text.rsplit_once('['));
        if let Some((base, name)) = element {
            return (path(base), fold(name));
        }
        let whole = path(text);
        match whole.rsplit_once('.') {
            Some((base, name)) => (base.into(), name.into()),
            None if self.lang == Lang::Ruby && text.starts_with('@') => ("@".into(), whole),
            None if text.contains(['.', '>']) => ("this".into(), whole),
            None => (String::new(), whole),
        }
    }
}

#[derive(Default)]
struct Parts {
    name: String,
    base: String,
    value: Span,
    args: Vec<Arg>,
}

impl Parts {
    fn value(value: Span) -> Self {
        Self {
            value,
            ..Self::default()
        }
    }
}

/// Names that a parameter binds: several in `a, b string`, in `{ id, body }` and in `State(app)`.
fn bound(param: Node<'_>) -> Vec<Node<'_>> {
    const NAMES_MAX: usize = 16;
    let mut cursor = param.walk();
    let mut names: Vec<_> = param
        .children_by_field_name("name", &mut cursor)
        .filter(Node::is_named)
        .collect();
    if names.is_empty() {
        names = param
            .child_by_field_name("pattern")
            .or((param.kind() == "typed_parameter")
                .then(|| param.named_child(0))
                .flatten())
            .into_iter()
            .collect();
    }
    if names.is_empty() {
        names.push(param);
    }
    let [only] = names.as_slice() else {
        return names;
    };
    if !only.kind().ends_with("pattern") || only.kind() == "rest_pattern" {
        return names;
    }
    let mut open = vec![*only];
    let mut inner = Vec::new();
    while let Some(node) = open.pop() {
        let mut cursor = node.walk();
        for child in node.named_children(&mut cursor) {
            match child.kind() {
                "identifier" | "shorthand_property_identifier_pattern" => inner.push(child),
                kind if kind.ends_with("pattern") => open.push(child),
                _ => {}
            }
        }
        if inner.len() >= NAMES_MAX {
            break;
        }
    }
    if inner.is_empty() { names } else { inner }
}

fn last_named(node: Node<'_>) -> Node<'_> {
    let count = node.named_child_count();
    let last = count
        .checked_sub(1)
        .and_then(|at| node.named_child(at as _));
    last.unwrap_or(node)
}
