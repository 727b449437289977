//! View of a node: knows the node's file, and therefore resolves references.

use crate::{Document, Node};

/// Maximum length of a chain of references.
const HOPS_MAX: usize = 32;

/// A node with its document and file. References are resolved on access.
#[derive(Debug, Clone, Copy)]
pub struct View<'d> {
    document: &'d Document,
    file: usize,
    node: &'d Node,
    /// Last segment of the last reference that led to this node.
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

    /// The node, with references resolved.
    #[must_use]
    pub fn node(&self) -> &'d Node {
        self.node
    }

    /// The document that the node belongs to.
    #[must_use]
    pub fn document(&self) -> &'d Document {
        self.document
    }

    /// Name in the reference that led to this node: `Payment` for `#/components/schemas/Payment`.
    #[must_use]
    pub fn ref_name(&self) -> Option<&'d str> {
        self.name
    }

    /// Whether both views are of the same node, not only of equal nodes.
    #[must_use]
    pub fn is_same(&self, other: &View<'_>) -> bool {
        std::ptr::eq(self.node, other.node)
    }

    /// Relative path from the document's first file to the file of this node; `None` if it is the first file.
    #[must_use]
    pub fn file_reference(&self) -> Option<String> {
        (self.file != 0).then(|| self.document.files.reference(self.file))
    }

    /// Member with this name, with references resolved.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<View<'d>> {
        Some(self.child(self.node.get(name)?))
    }

    /// Text of the member with this name.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&'d str> {
        self.node.get(name)?.as_str()
    }

    /// Whether the member with this name is `true`.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        self.node.get(name).and_then(Node::as_bool) == Some(true)
    }

    /// Members, in document order.
    pub fn members(&self) -> impl Iterator<Item = (&'d str, View<'d>)> + use<'d> {
        let view = *self;
        let map = self.node.as_map().into_iter().flatten();
        map.map(move |(name, node)| (name.as_str(), view.child(node)))
    }

    /// Items of a list.
    pub fn items(&self) -> impl Iterator<Item = View<'d>> + use<'d> {
        let view = *self;
        self.node.items().iter().map(move |node| view.child(node))
    }

    /// Members whose names start with `x-`.
    pub fn extensions(&self) -> impl Iterator<Item = (&'d str, &'d Node)> + use<'d> {
        let map = self.node.as_map().into_iter().flatten();
        let members = map.map(|(name, node)| (name.as_str(), node));
        members.filter(|(name, _)| name.starts_with("x-"))
    }

    fn child(&self, node: &'d Node) -> View<'d> {
        let name = None;
        View {
            node,
            name,
            ..*self
        }
        .followed()
    }

    /// Resolves references. A reference without a target, or a cycle of references, becomes `null`.
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
