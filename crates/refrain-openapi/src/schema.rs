//! JSON schema of a body or parameter: types, members and variants. Depth is limited, so cycles are safe.

use crate::{Map, Node, View};

/// Maximum nesting depth of `allOf`.
const ALL_OF_DEPTH_MAX: usize = 16;

/// A JSON schema in a document.
#[derive(Debug, Clone, Copy)]
pub struct Schema<'d> {
    view: View<'d>,
}

/// A member that [`Schema::walk`] visits.
#[derive(Debug, Clone, Copy)]
pub struct Member<'w, 'd> {
    /// Member names from the root of the walk to this member; list items add no name.
    pub path: &'w [&'d str],
    /// Name of the member.
    pub name: &'d str,
    /// Schema of the member.
    pub schema: Schema<'d>,
    /// Whether the schema of its object requires the member.
    pub is_required: bool,
}

impl<'d> Schema<'d> {
    /// Wraps a view of a schema.
    #[must_use]
    pub fn new(view: View<'d>) -> Self {
        Self { view }
    }

    /// View of the schema.
    #[must_use]
    pub fn view(&self) -> View<'d> {
        self.view
    }

    /// Name in the reference to the schema, or else its `title`.
    #[must_use]
    pub fn name(&self) -> Option<&'d str> {
        self.view.ref_name().or(self.view.text("title"))
    }

    /// Types of the schema, without `null`; empty if unspecified.
    /// This hides the difference between the type lists of 3.1 and `nullable` of 3.0.
    #[must_use]
    pub fn types(&self) -> Vec<&'d str> {
        let types = match self.view.node().get("type") {
            Some(Node::Text(one)) => vec![one.as_str()],
            Some(Node::List(many)) => many.iter().filter_map(Node::as_str).collect(),
            _ if self.view.node().get("properties").is_some() => vec!["object"],
            _ if self.view.node().get("items").is_some() => vec!["array"],
            _ => Vec::new(),
        };
        types.into_iter().filter(|it| *it != "null").collect()
    }

    /// Whether the schema, or a part of its `allOf`, has this type.
    #[must_use]
    pub fn is(&self, kind: &str) -> bool {
        self.parts().iter().any(|part| part.types().contains(&kind))
    }

    /// Value of the keyword `format`.
    #[must_use]
    pub fn format(&self) -> Option<&'d str> {
        self.view.text("format")
    }

    /// Allowed values, if the schema has an `enum`.
    #[must_use]
    pub fn values(&self) -> &'d [Node] {
        self.view.node().get("enum").map_or(&[], Node::items)
    }

    /// Schema of the items, if it is a list.
    #[must_use]
    pub fn items(&self) -> Option<Schema<'d>> {
        let parts = self.parts();
        parts
            .iter()
            .find_map(|part| part.view.get("items"))
            .map(Schema::new)
    }

    /// Whether the schema is `readOnly`: only responses contain it.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.view.is("readOnly")
    }

    /// Alternatives: `oneOf` and `anyOf`.
    #[must_use]
    pub fn variants(&self) -> Vec<Schema<'d>> {
        let parts = self.parts();
        let lists = parts
            .iter()
            .flat_map(|part| ["oneOf", "anyOf"].map(|name| part.view.get(name)));
        let variants = lists.flatten().flat_map(|it| it.items());
        variants.map(Schema::new).collect()
    }

    /// Members of an object, including those of `allOf`, but not those of alternatives.
    #[must_use]
    pub fn properties(&self) -> Vec<(&'d str, Schema<'d>)> {
        let mut found: Vec<(&'d str, Schema<'d>)> = Vec::new();
        let parts = self.parts();
        for part in &parts {
            let members = part
                .view
                .get("properties")
                .into_iter()
                .flat_map(|it| it.members());
            for (name, view) in members {
                // Names are unique within one object; only several parts can repeat a name.
                if parts.len() == 1 || !found.iter().any(|(known, _)| *known == name) {
                    found.push((name, Schema::new(view)));
                }
            }
        }
        found
    }

    /// Names of required members.
    #[must_use]
    pub fn required(&self) -> Vec<&'d str> {
        let parts = self.parts();
        let lists = parts
            .iter()
            .filter_map(|part| part.view.node().get("required"));
        lists
            .flat_map(Node::items)
            .filter_map(Node::as_str)
            .collect()
    }

    /// Member with this name.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<Schema<'d>> {
        let found = self
            .properties()
            .into_iter()
            .find(|(known, _)| *known == name);
        found.map(|(_, schema)| schema)
    }

    /// Whether the schema contains other schemas; most are strings and numbers, which the walk can skip.
    fn has_within(&self) -> bool {
        const WITHIN: [&str; 5] = ["properties", "items", "allOf", "oneOf", "anyOf"];
        let mut names = self.view.node().as_map().into_iter().flat_map(Map::keys);
        names.any(|name| WITHIN.contains(&name.as_str()))
    }

    /// The schema itself and all schemas of its `allOf`, recursively.
    #[must_use]
    pub fn parts(&self) -> Vec<Schema<'d>> {
        let mut parts = Vec::new();
        self.add_parts(0, &mut parts);
        parts
    }

    fn add_parts(&self, depth: usize, parts: &mut Vec<Schema<'d>>) {
        if depth > ALL_OF_DEPTH_MAX || parts.iter().any(|part| part.view.is_same(&self.view)) {
            return;
        }
        parts.push(*self);
        for view in self.view.get("allOf").into_iter().flat_map(|it| it.items()) {
            Schema::new(view).add_parts(depth + 1, parts);
        }
    }

    /// Calls `tell` for every member down to depth `depth_max`, including members of list items and alternatives,
    /// at most `members_max` times. A schema that contains itself is entered once per path.
    pub fn walk<'w>(
        &self,
        depth_max: usize,
        members_max: usize,
        mut tell: impl FnMut(Member<'_, 'd>),
    ) where
        'd: 'w,
    {
        let mut walk = SchemaWalk {
            left: members_max,
            depth_max,
            path: Vec::new(),
            entered: Vec::new(),
            tell: &mut tell,
        };
        walk.enter(*self);
    }
}

struct SchemaWalk<'w, 'd> {
    left: usize,
    depth_max: usize,
    path: Vec<&'d str>,
    entered: Vec<View<'d>>,
    tell: &'w mut dyn FnMut(Member<'_, 'd>),
}

impl<'d> SchemaWalk<'_, 'd> {
    fn enter(&mut self, schema: Schema<'d>) {
        let is_entered = self.entered.iter().any(|it| it.is_same(&schema.view));
        // Nested lists and variants add no names to the path, so they have a depth limit of their own.
        let is_deep = self.entered.len() > 4 * (self.depth_max + 1);
        if is_entered || is_deep || self.left == 0 || !schema.has_within() {
            return;
        }
        self.entered.push(schema.view);
        let required = schema.required();
        for (name, member) in schema.properties() {
            let Some(left) = self.left.checked_sub(1) else {
                break;
            };
            self.left = left;
            self.path.push(name);
            (self.tell)(Member {
                path: &self.path,
                name,
                schema: member,
                is_required: required.contains(&name),
            });
            if self.path.len() < self.depth_max {
                self.enter(member);
            }
            self.path.pop();
        }
        schema
            .items()
            .into_iter()
            .for_each(|items| self.enter(items));
        schema
            .variants()
            .into_iter()
            .for_each(|variant| self.enter(variant));
        self.entered.pop();
    }
}
