//! A look at a schema: its types, members and variants. Depth is bounded, circles are fine.

use crate::{Map, Node, View};

/// How deep `allOf` may lie within `allOf`.
const ALL_OF_DEPTH_MAX: usize = 16;

/// A schema where it stands.
#[derive(Debug, Clone, Copy)]
pub struct Schema<'d> {
    view: View<'d>,
}

/// A member that a walk came by.
#[derive(Debug, Clone, Copy)]
pub struct Member<'w, 'd> {
    /// The names that lead to it from the outside; items of lists add none.
    pub path: &'w [&'d str],
    /// Its own name.
    pub name: &'d str,
    /// What it looks like.
    pub schema: Schema<'d>,
    /// Whether it has to be there, as far as its own object says.
    pub is_required: bool,
}

impl<'d> Schema<'d> {
    /// The view as a schema.
    #[must_use]
    pub fn new(view: View<'d>) -> Self {
        Self { view }
    }

    /// The schema itself, to be looked into.
    #[must_use]
    pub fn view(&self) -> View<'d> {
        self.view
    }

    /// What the reference to it calls it, or its `title`.
    #[must_use]
    pub fn name(&self) -> Option<&'d str> {
        self.view.ref_name().or(self.view.text("title"))
    }

    /// Its types; none where it does not say. The lists of 3.1 and `nullable` of 3.0 are the same here: `null` is left out.
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

    /// Whether it is of this type, itself or by what it is made of.
    #[must_use]
    pub fn is(&self, kind: &str) -> bool {
        self.parts().iter().any(|part| part.types().contains(&kind))
    }

    /// `format`.
    #[must_use]
    pub fn format(&self) -> Option<&'d str> {
        self.view.text("format")
    }

    /// The values that it may have, where they are listed.
    #[must_use]
    pub fn values(&self) -> &'d [Node] {
        self.view.node().get("enum").map_or(&[], Node::items)
    }

    /// What a list holds.
    #[must_use]
    pub fn items(&self) -> Option<Schema<'d>> {
        let parts = self.parts();
        parts
            .iter()
            .find_map(|part| part.view.get("items"))
            .map(Schema::new)
    }

    /// Whether it is only in answers.
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

    /// Members of an object, those of its `allOf` among them, without those of alternatives.
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
                // The members of one object have different names already.
                if parts.len() == 1 || !found.iter().any(|(known, _)| *known == name) {
                    found.push((name, Schema::new(view)));
                }
            }
        }
        found
    }

    /// The names of members that have to be there.
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

    /// The member of this name.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<Schema<'d>> {
        let found = self
            .properties()
            .into_iter()
            .find(|(known, _)| *known == name);
        found.map(|(_, schema)| schema)
    }

    /// Whether it is made of other schemas; most are texts and numbers, which need no walk.
    fn has_within(&self) -> bool {
        const WITHIN: [&str; 5] = ["properties", "items", "allOf", "oneOf", "anyOf"];
        let mut names = self.view.node().as_map().into_iter().flat_map(Map::keys);
        names.any(|name| WITHIN.contains(&name.as_str()))
    }

    /// Itself, and what `allOf` adds, however deep.
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

    /// Tells every member within `depth_max` objects, those of lists and alternatives too, `members_max` at most.
    /// A schema that contains itself is entered once on each way.
    pub fn walk<'w>(
        &self,
        depth_max: usize,
        members_max: usize,
        mut tell: impl FnMut(Member<'_, 'd>),
    ) where
        'd: 'w,
    {
        let mut walk = Walk {
            left: members_max,
            depth_max,
            path: Vec::new(),
            entered: Vec::new(),
            tell: &mut tell,
        };
        walk.enter(*self);
    }
}

struct Walk<'w, 'd> {
    left: usize,
    depth_max: usize,
    path: Vec<&'d str>,
    entered: Vec<View<'d>>,
    tell: &'w mut dyn FnMut(Member<'_, 'd>),
}

impl<'d> Walk<'_, 'd> {
    fn enter(&mut self, schema: Schema<'d>) {
        let is_entered = self.entered.iter().any(|it| it.is_same(&schema.view));
        // Lists of lists and variants of variants add no names, so their depth is bounded apart.
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
