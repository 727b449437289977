//! Unwraps response envelopes such as `{data, meta}`: the inner schema is the one to classify by.

use refrain_openapi::Schema;

use crate::{text::plain, words as lists};

/// Inner schema of an envelope, such as the order of `{data: Order, meta: …}`; any other schema is returned unchanged.
pub(crate) fn opened(schema: Schema<'_>) -> Schema<'_> {
    let members = schema.properties();
    if members.len() > lists::ENVELOPE.len() + lists::ENVELOPED.len() {
        return schema;
    }
    let is = |name: &str, list: &[&str]| list.contains(&plain(name).as_str());
    let inside = members
        .iter()
        .find(|(name, _)| is(name, lists::ENVELOPE))
        .filter(|(_, inside)| !inside.properties().is_empty() || inside.is("array"));
    let mut others = members
        .iter()
        .filter(|(name, _)| !is(name, lists::ENVELOPE));
    match inside {
        Some((_, inside)) if others.all(|(name, _)| is(name, lists::ENVELOPED)) => *inside,
        _ => schema,
    }
}

/// Item schema of a list, or of an unnamed envelope with exactly one list of a named schema.
/// Any other schema is returned unchanged.
pub(crate) fn unwrapped(schema: Schema<'_>) -> Schema<'_> {
    if let Some(items) = schema.items() {
        return items;
    }
    let lists = schema
        .properties()
        .into_iter()
        .filter_map(|(_, it)| it.items());
    let mut lists = lists.filter(|items| items.view().ref_name().is_some());
    match (lists.next(), lists.next(), schema.view().ref_name()) {
        (Some(items), None, None) => items,
        _ => schema,
    }
}
