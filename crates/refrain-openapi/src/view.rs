//! A node where it stands: it knows its file, so it can follow references.

use crate::{Document, Node};

/// How many references in a row are followed.
const HOPS_MAX: usize = 32;

/// A node where it stands in its document. References are followed when they are looked at.
#[derive(Debug, Clone, Copy)]
pub struct View<'d> {
    document: &'d Document,
    file: usize,
    node: &'d Node,
    /// What the last reference that led here called it.
    name: Option<&'d str>,
}

impl<'d> View<'d> {
    pub(crate) fn new(document: &'d Document, file: usize, node: &'d Node) -> Self {
        let name = None;
        Self {
            document,
            file,
            node,
            name,
        }
        .followed()
    }

    /// The node, after references were followed.
    #[must_use]
    pub fn node(&self) -> &'d Node {
        self.node
    }

    /// The document that it belongs to.
    #[must_use]
    pub fn document(&self) -> &'d Document {
        self.document
    }

    /// What the reference that led here calls it: `Payment` for `#/components/schemas/Payment`.
    #[must_use]
    pub fn ref_name(&self) -> Option<&'d str> {
        self.name
    }

    /// Whether both are the same place, not merely equal.
    #[must_use]
    pub fn is_same(&self, other: &View<'_>) -> bool {
        std::ptr::eq(self.node, other.node)
    }

    /// How the document's first file refers to the file that this stands in; none where that is the first file itself.
    #[must_use]
    pub fn file_reference(&self) -> Option<String> {
        (self.file != 0).then(|| self.document.files.reference(self.file))
    }

    /// The member of this name, its references followed.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<View<'d>> {
        Some(self.at(self.node.get(name)?))
    }

    /// The text in the member of this name.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&'d str> {
        self.node.get(name)?.as_str()
    }

    /// Whether the member of this name is `true`.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        self.node.get(name).and_then(Node::as_bool) == Some(true)
    }

    /// The members, in their order.
    pub fn members(&self) -> impl Iterator<Item = (&'d str, View<'d>)> + use<'d> {
        let view = *self;
        let map = self.node.as_map().into_iter().flatten();
        map.map(move |(name, node)| (name.as_str(), view.at(node)))
    }

    /// The items of a list.
    pub fn items(&self) -> impl Iterator<Item = View<'d>> + use<'d> {
        let view = *self;
        self.node.items().iter().map(move |node| view.at(node))
    }

    /// Members whose names start with `x-`.
    pub fn extensions(&self) -> impl Iterator<Item = (&'d str, &'d Node)> + use<'d> {
        let map = self.node.as_map().into_iter().flatten();
        let members = map.map(|(name, node)| (name.as_str(), node));
        members.filter(|(name, _)| name.starts_with("x-"))
    }

    fn at(&self, node: &'d Node) -> View<'d> {
        let name = None;
        View {
            node,
            name,
            ..*self
        }
        .followed()
    }

    /// A reference that leads nowhere, or in a circle of nothing but references, is nothing.
    fn followed(mut self) -> Self {
        for _ in 0..HOPS_MAX {
            let Some(reference) = self.node.get("$ref").and_then(Node::as_str) else {
                return self;
            };
            let Some((file, node)) = self.document.files.target(self.file, reference) else {
                break;
            };
            self.name = reference
                .rsplit(['/', '#'])
                .next()
                .filter(|name| !name.is_empty());
            (self.file, self.node) = (file, node);
        }
        self.node = &Node::Null;
        self
    }
}
