//! Node of a document: a JSON value whose object members keep their order.

use std::{cell::Cell, fmt};

use indexmap::{IndexMap, map::Entry};
use serde::{
    Serialize, Serializer,
    de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor},
};

/// Members of an object, in document order.
pub type Map = IndexMap<String, Node>;

/// Maximum number of members for a linear search.
const FEW: usize = 8;

/// A JSON value of a document.
///
/// [`serde_json::Value`] would sort members; a description is displayed and written back in its own order.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Node {
    /// `null`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(serde_json::Number),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Node>),
    /// An object.
    Map(Box<Map>),
}

impl Node {
    /// Member of an object, by name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Node> {
        let map = self.as_map()?;
        // Most objects are small, and comparing a few names is faster than hashing one.
        if map.len() > FEW {
            return map.get(name);
        }
        let mut members = map.iter();
        members.find(|(it, _)| *it == name).map(|(_, node)| node)
    }

    /// Members, if the node is an object.
    #[must_use]
    pub fn as_map(&self) -> Option<&Map> {
        match self {
            Self::Map(map) => Some(map),
            _ => None,
        }
    }

    /// Mutable members, if the node is an object.
    pub fn as_map_mut(&mut self) -> Option<&mut Map> {
        match self {
            Self::Map(map) => Some(map),
            _ => None,
        }
    }

    /// Text, if the node is a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Items of a list; empty for any other node.
    #[must_use]
    pub fn items(&self) -> &[Node] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }

    /// Value, if the node is a boolean.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(is) => Some(*is),
            _ => None,
        }
    }

    /// Value, if the node is a number.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Number(number) => number.as_f64(),
            _ => None,
        }
    }

    /// Converts the node to a `serde_json` value, which sorts members.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value;
        match self {
            Self::Null => Value::Null,
            Self::Bool(is) => Value::Bool(*is),
            Self::Number(number) => Value::Number(number.clone()),
            Self::Text(text) => Value::String(text.clone()),
            Self::List(items) => items.iter().map(Self::to_json).collect(),
            Self::Map(map) => map
                .iter()
                .map(|(name, node)| (name.clone(), node.to_json()))
                .collect(),
        }
    }

    /// Resolves a JSON pointer (`/paths/~1pets/get`). Percent-encoding is not decoded.
    #[must_use]
    pub fn pointer(&self, pointer: &str) -> Option<&Node> {
        if !pointer.is_empty() && !pointer.starts_with('/') {
            return None;
        }
        let mut node = self;
        for step in pointer.split('/').skip(1) {
            let name = step.replace("~1", "/").replace("~0", "~");
            node = match node {
                Self::Map(map) => map.get(&name)?,
                Self::List(items) => items.get(name.parse::<usize>().ok()?)?,
                _ => return None,
            };
        }
        Some(node)
    }
}

impl From<serde_json::Value> for Node {
    fn from(value: serde_json::Value) -> Self {
        use serde_json::Value;
        match value {
            Value::Null => Self::Null,
            Value::Bool(is) => Self::Bool(is),
            Value::Number(number) => Self::Number(number),
            Value::String(text) => Self::Text(text),
            Value::Array(items) => Self::List(items.into_iter().map(Self::from).collect()),
            Value::Object(map) => {
                let members = map.into_iter().map(|(name, value)| (name, value.into()));
                Self::Map(Box::new(members.collect()))
            }
        }
    }
}

impl From<&str> for Node {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(is) => serializer.serialize_bool(*is),
            Self::Number(number) => number.serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(items) => serializer.collect_seq(items),
            Self::Map(map) => serializer.collect_map(map.iter()),
        }
    }
}

/// Deserializes a node and limits the number of values.
/// YAML aliases count on every use, so that a small file cannot expand to a large value (alias bomb).
pub(crate) struct Seed<'c> {
    pub(crate) left: &'c Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        match self.left.get().checked_sub(1) {
            Some(left) => self.left.set(left),
            None => {
                return Err(D::Error::custom(format!(
                    "has more than {} values",
                    crate::NODES_MAX
                )));
            }
        }
        deserializer.deserialize_any(NodeVisitor { left: self.left })
    }
}

struct NodeVisitor<'c> {
    left: &'c Cell<usize>,
}

impl<'de> Visitor<'de> for NodeVisitor<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: Error>(self, is: bool) -> Result<Node, E> {
        Ok(Node::Bool(is))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Node, E> {
        Ok(Node::Number(number.into()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Node, E> {
        Ok(Node::Number(number.into()))
    }

    fn visit_i128<E: Error>(self, number: i128) -> Result<Node, E> {
        // The loss of precision does no harm: no caller needs such a number exactly.
        self.visit_f64(number as f64)
    }

    fn visit_u128<E: Error>(self, number: u128) -> Result<Node, E> {
        self.visit_f64(number as f64)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Node, E> {
        let number = serde_json::Number::from_f64(number);
        Ok(number.map_or_else(|| Node::Text(".nan".into()), Node::Number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.into()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Node, E> {
        Ok(Node::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(Seed { left: self.left })? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut map = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let node = access.next_value_seed(Seed { left: self.left })?;
            match map.entry(name) {
                Entry::Vacant(place) => place.insert(node),
                Entry::Occupied(there) => {
                    let name = there.key();
                    return Err(A::Error::custom(format!("duplicate member `{name}`")));
                }
            };
        }
        Ok(Node::Map(Box::new(map)))
    }
}
