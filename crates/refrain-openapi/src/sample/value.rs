//! Generates a value that satisfies a schema.

use std::cell::Cell;

use super::{Options, text};
use crate::{Map, Node, Schema};

/// Maximum nesting depth of generated values.
const DEPTH_MAX: usize = 10;
/// Maximum number of values in one request.
const VALUES_MAX: usize = 2_000;
/// Maximum number of generated list items, even if the schema requires more.
const ITEMS_MAX: usize = 50;

/// Generates the values of one request.
pub(super) struct Maker<'o> {
    pub(super) options: &'o Options,
    left: Cell<usize>,
}

impl<'o> Maker<'o> {
    pub(super) fn new(options: &'o Options) -> Self {
        Self {
            options,
            left: Cell::new(VALUES_MAX),
        }
    }

    /// Whether the request needs more than `VALUES_MAX` values.
    pub(super) fn is_exhausted(&self) -> bool {
        self.left.get() == 0
    }

    /// Value that satisfies this schema, for a member with this name.
    pub(super) fn value(&self, schema: Schema<'_>, name: &str) -> Node {
        self.value_at_depth(schema, name, 0)
    }

    /// Example with new values for the members that must be unique.
    pub(super) fn with_unique_members(&self, example: Node, schema: Schema<'_>) -> Node {
        let Node::Map(mut members) = example else {
            return example;
        };
        for (name, member) in schema.properties() {
            let is_text = members.get(name).is_some_and(|it| it.as_str().is_some());
            if let Some(word) = self.unique(member, name).filter(|_| is_text) {
                members.insert(name.to_owned(), Node::Text(word));
            }
        }
        Node::Map(members)
    }

    fn unique(&self, schema: Schema<'_>, name: &str) -> Option<String> {
        let is_free = keyword(schema, "enum").is_none() && keyword(schema, "const").is_none();
        let word = text::unique(schema, name, self.options);
        word.filter(|_| is_free)
    }

    fn value_at_depth(&self, schema: Schema<'_>, name: &str, depth: usize) -> Node {
        let Some(left) = self.left.get().checked_sub(1) else {
            return Node::Null;
        };
        self.left.set(left);
        if let Some(word) = self.unique(schema, name) {
            return Node::Text(word);
        }
        if let Some(said) = stated_value(schema) {
            return said;
        }
        let variant = variant(schema);
        match kind(schema) {
            Some("object") => self.object(schema, variant, depth),
            None if variant.is_some() || !schema.properties().is_empty() => {
                match variant.filter(|it| !is_object(*it)) {
                    Some(variant) => self.value_at_depth(variant, name, depth + 1),
                    None => self.object(schema, variant, depth),
                }
            }
            Some("array") => self.list(schema, name, depth),
            Some("integer") => number(schema, true),
            Some("number") => number(schema, false),
            // `true` would turn a dry run on, and the request would have no effect.
            Some("boolean") => Node::Bool(!text::is_pretending(name)),
            Some("null") => Node::Null,
            _ => Node::Text(text::fitting(schema, name, self.options)),
        }
    }

    fn object(&self, schema: Schema<'_>, variant: Option<Schema<'_>>, depth: usize) -> Node {
        let mut made = Map::new();
        if depth < DEPTH_MAX {
            self.add_members(schema, depth, &mut made);
            if let Some(variant) = variant {
                self.add_members(variant, depth, &mut made);
                // A variant may have variants itself.
                if let Some(inner) = self::variant(variant) {
                    self.add_members(inner, depth, &mut made);
                }
                name_variant(schema, variant, &mut made);
            }
            self.add_free(schema, depth, &mut made);
        }
        Node::Map(Box::new(made))
    }

    /// Adds the required members; in the outer two levels, all members if none is required.
    fn add_members(&self, schema: Schema<'_>, depth: usize, made: &mut Map) {
        let required = schema.required();
        for (name, member) in schema.properties() {
            let is_wanted = required.contains(&name) || (required.is_empty() && depth < 2);
            let is_left_out = member.is_read_only() || member.view().is("deprecated");
            let is_asked = required.contains(&name) && !member.is_read_only();
            if made.contains_key(name) || !is_wanted || (is_left_out && !is_asked) {
                continue;
            }
            made.insert(
                name.to_owned(),
                self.value_at_depth(member, name, depth + 1),
            );
        }
        for name in required {
            let is_described = schema.property(name).is_some();
            if !is_described && !made.contains_key(name) {
                made.insert(name.to_owned(), Node::from("sample"));
            }
        }
    }

    /// Adds members without names in the schema, to satisfy `minProperties`.
    fn add_free(&self, schema: Schema<'_>, depth: usize, made: &mut Map) {
        let least = count(schema, "minProperties").unwrap_or(0);
        let free = schema.view().get("additionalProperties");
        for at in made.len()..least.min(ITEMS_MAX) {
            let value = match free.filter(|it| it.node().as_map().is_some()) {
                Some(view) => self.value_at_depth(Schema::new(view), "", depth + 1),
                None => Node::from("sample"),
            };
            made.insert(format!("member{at}"), value);
        }
    }

    fn list(&self, schema: Schema<'_>, name: &str, depth: usize) -> Node {
        let least = count(schema, "minItems").unwrap_or(1).max(1);
        let most = count(schema, "maxItems").unwrap_or(ITEMS_MAX);
        let is_distinct = keyword(schema, "uniqueItems").and_then(Node::as_bool) == Some(true);
        let mut items = Vec::new();
        let Some(inner) = schema.items().filter(|_| depth < DEPTH_MAX) else {
            return Node::List(items);
        };
        for at in 0..least.min(most).min(ITEMS_MAX) {
            let made = match inner.values().get(at) {
                Some(value) if is_distinct => value.clone(),
                _ => self.value_at_depth(inner, name, depth + 1),
            };
            items.push(match (made, is_distinct && at > 0) {
                (Node::Text(text), true) if inner.values().is_empty() => {
                    Node::Text(format!("{text}{at}"))
                }
                (Node::Number(number), true) if inner.values().is_empty() => {
                    let next = number.as_i64().unwrap_or(0) + i64::try_from(at).unwrap_or(0);
                    Node::Number(next.into())
                }
                (made, _) => made,
            });
        }
        Node::List(items)
    }
}

/// Value that the schema itself states: constant, example, default or first enum value.
pub(super) fn stated_value(schema: Schema<'_>) -> Option<Node> {
    let is_there = |node: &&Node| **node != Node::Null;
    let single = |name| keyword(schema, name).filter(is_there);
    let listed = |name| {
        let items = keyword(schema, name).map_or(&[][..], Node::items);
        items.iter().find(is_there)
    };
    single("const")
        .or_else(|| single("example"))
        .or_else(|| single("x-example"))
        .or_else(|| listed("examples"))
        .or_else(|| single("default"))
        .or_else(|| listed("enum"))
        .cloned()
}

/// Value of a keyword in the schema or in its `allOf`.
pub(super) fn keyword<'d>(schema: Schema<'d>, name: &str) -> Option<&'d Node> {
    let parts = schema.parts();
    parts.iter().find_map(|part| part.view().node().get(name))
}

/// Value of a keyword that is a count.
pub(super) fn count(schema: Schema<'_>, name: &str) -> Option<usize> {
    let number = keyword(schema, name)?.as_f64()?;
    (0.0..=1e9).contains(&number).then_some(number as usize)
}

fn kind(schema: Schema<'_>) -> Option<&str> {
    let parts = schema.parts();
    parts.iter().find_map(|part| part.types().first().copied())
}

fn is_object(schema: Schema<'_>) -> bool {
    let by_variants = || variant(schema).is_some_and(|it| kind(it) == Some("object"));
    kind(schema) == Some("object") || !schema.properties().is_empty() || by_variants()
}

/// Chosen alternative: the first that is not `null` and is not the schema itself.
fn variant(schema: Schema<'_>) -> Option<Schema<'_>> {
    let is_null = |it: &Schema<'_>| it.view().text("type") == Some("null");
    let variants = schema.variants();
    let fits = |it: &Schema<'_>| !is_null(it) && !it.view().is_same(&schema.view());
    variants.into_iter().find(fits)
}

/// Sets the discriminator to the chosen alternative, if the schema has one.
fn name_variant(schema: Schema<'_>, variant: Schema<'_>, made: &mut Map) {
    let discriminator = schema.view().get("discriminator");
    let Some(discriminator) = discriminator else {
        return;
    };
    let (Some(member), Some(name)) = (
        discriminator.text("propertyName"),
        variant.view().ref_name(),
    ) else {
        return;
    };
    let mapping = discriminator.get("mapping");
    let mut mapped = mapping.into_iter().flat_map(|it| it.members());
    let fits = |(_, target): &(&str, crate::View<'_>)| {
        let text = target.node().as_str().unwrap_or_default();
        text.rsplit('/').next() == Some(name)
    };
    let is_said = variant.property(member).and_then(stated_value);
    let known = mapped.find(fits).map(|(said, _)| Node::from(said));
    let value = known.or(is_said).unwrap_or_else(|| Node::from(name));
    made.insert(member.to_owned(), value);
}

/// Small number within the limits of the schema.
fn number(schema: Schema<'_>, is_whole: bool) -> Node {
    let limit = |name| keyword(schema, name).and_then(Node::as_f64);
    let is_open = |name| keyword(schema, name).and_then(Node::as_bool) == Some(true);
    let step = limit("multipleOf").filter(|step| *step > 0.0);
    let grain = step.unwrap_or(if is_whole { 1.0 } else { 0.01 });
    let low = match (limit("exclusiveMinimum"), limit("minimum")) {
        (Some(low), _) => Some(low + grain),
        (None, Some(low)) if is_open("exclusiveMinimum") => Some(low + grain),
        (None, low) => low,
    };
    let high = match (limit("exclusiveMaximum"), limit("maximum")) {
        (Some(high), _) => Some(high - grain),
        (None, Some(high)) if is_open("exclusiveMaximum") => Some(high - grain),
        (None, high) => high,
    };
    let mut chosen = 1.0_f64;
    chosen = low.map_or(chosen, |low| chosen.max(low));
    chosen = high.map_or(chosen, |high| chosen.min(high));
    if let Some(step) = step {
        // Round up to a multiple if that is within the limit, else down.
        let up = (chosen / step).ceil() * step;
        let fits = high.is_none_or(|high| up <= high);
        chosen = if fits {
            up
        } else {
            (chosen / step).floor() * step
        };
    }
    let whole = if low.is_some() {
        chosen.ceil()
    } else {
        chosen.floor()
    };
    if is_whole || chosen == whole {
        return Node::Number((whole as i64).into());
    }
    let rounded = (chosen * 1e6).round() / 1e6;
    serde_json::Number::from_f64(rounded).map_or(Node::Null, Node::Number)
}
