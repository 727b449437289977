//! Generates a sample request for an operation, from its examples and schemas.
//!
//! The same seed generates the same request.
//! Values are simple: required members, small numbers, and strings that satisfy format, pattern and length.
//! A schema cannot express every rule, so a service may still reject the request.
//!
//! ```
//! use refrain_openapi::{Document, sample};
//! let text = r#"{"openapi": "3.1.0", "paths": {"/orders": {"post": {"requestBody": {"content": {"application/json":
//!     {"schema": {"required": ["amount"], "properties": {"amount": {"type": "integer", "minimum": 5}}}}}}}}}}"#;
//! let document = Document::parse(text.as_bytes(), "orders.json")?;
//! let made = sample::request(&document.operations()[0], &sample::Options::default()).unwrap();
//! assert_eq!(made.target(), "/orders");
//! assert_eq!(made.body, br#"{"amount":5}"#);
//! # Ok::<(), refrain_openapi::ReadError>(())
//! ```

use std::collections::BTreeMap;

use crate::{Body, Node, Operation, Parameter, View};

mod pattern;
mod text;
mod value;

use value::Maker;

/// Options for sample requests.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Seed for values that must be unique.
    pub seed: u64,
    /// Placeholder for unique values, such as `{{unique}}`, which the caller replaces; by default the seed makes them.
    pub unique: Option<String>,
    /// Values of parameters by name; they take precedence over generated ones.
    pub given: BTreeMap<String, String>,
}

/// A sample request that the operation should accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleRequest {
    /// Path with its parameters filled in, without the document's base path.
    pub path: String,
    /// Query without the question mark; may be empty.
    pub query: String,
    /// Headers, except for `Content-Type`.
    pub headers: Vec<(String, String)>,
    /// Content type of the body, if there is one.
    pub content_type: Option<String>,
    /// Body; may be empty.
    pub body: Vec<u8>,
    /// Header for the idempotency key, if the document declares one.
    pub key_header: Option<String>,
    /// Path parameters that must identify an existing resource, but have a generated value.
    pub needs: Vec<String>,
}

impl SampleRequest {
    /// Path and query.
    #[must_use]
    pub fn target(&self) -> String {
        match self.query.is_empty() {
            true => self.path.clone(),
            false => format!("{}?{}", self.path, self.query),
        }
    }
}

/// Generates a sample request for an operation.
///
/// # Errors
/// When the content type of the body is unsupported, or the schema needs too many values.
pub fn request(operation: &Operation<'_>, options: &Options) -> Result<SampleRequest, String> {
    let maker = Maker::new(options);
    let mut made = SampleRequest {
        path: operation.path().to_owned(),
        query: String::new(),
        headers: Vec::new(),
        content_type: None,
        body: Vec::new(),
        key_header: None,
        needs: Vec::new(),
    };
    for parameter in operation.parameters() {
        add_parameter(&mut made, operation, &parameter, &maker);
    }
    if let Some(body) = operation.body() {
        made.body = body_bytes(&body, &maker)?;
        let kind = if body.content_type == "*/*" {
            "application/json"
        } else {
            body.content_type
        };
        made.content_type = Some(kind.to_owned());
    }
    match maker.is_exhausted() {
        true => Err("the sample for its schema would be too large for a request".into()),
        false => Ok(made),
    }
}

fn add_parameter(
    made: &mut SampleRequest,
    operation: &Operation<'_>,
    parameter: &Parameter<'_>,
    maker: &Maker<'_>,
) {
    let (name, place) = (parameter.name(), parameter.place());
    if place == "header" && is_key(name) {
        made.key_header = Some(name.to_owned());
        return;
    }
    let given = maker.options.given.get(name).cloned();
    if given.is_none() && !parameter.is_required() {
        return;
    }
    let said = given.or_else(|| documented(parameter));
    let is_made_up = said.is_none();
    let text = said.unwrap_or_else(|| plain(&maker.value(parameter.schema(), name)));
    match place {
        "path" => {
            let slot = format!("{{{name}}}");
            let is_own = operation.method() == "PUT" && made.path.ends_with(&slot);
            if is_made_up && !is_own {
                made.needs.push(name.to_owned());
            }
            made.path = made.path.replace(&slot, &escaped(&text, maker));
        }
        "query" => {
            let gap = if made.query.is_empty() { "" } else { "&" };
            let pair = format!("{gap}{}={}", escaped(name, maker), escaped(&text, maker));
            made.query.push_str(&pair);
        }
        "header" => made.headers.push((name.to_owned(), text)),
        "cookie" => made
            .headers
            .push(("Cookie".into(), format!("{name}={text}"))),
        _ => {}
    }
}

/// Whether a header of this name is the idempotency key.
fn is_key(name: &str) -> bool {
    let small = name.to_ascii_lowercase();
    small.contains("idempotency") || small.contains("idempotent")
}

/// Value of a parameter from the document's examples, defaults or enums.
fn documented(parameter: &Parameter<'_>) -> Option<String> {
    let schema = parameter.schema();
    let value = example_of(parameter.view()).or_else(|| value::stated_value(schema))?;
    Some(plain(&value))
}

/// Example beside the schema of a parameter or body.
fn example_of(view: View<'_>) -> Option<Node> {
    let single = ["example", "x-example"].into_iter();
    let single = single.filter_map(|name| view.node().get(name));
    let many = view.get("examples").or_else(|| view.get("x-examples"));
    let first = many.and_then(|it| it.members().next()).map(|it| it.1);
    let first = first.and_then(|it| it.node().get("value").or(Some(it.node())));
    single.chain(first).next().cloned()
}

/// Text form of a value for a path, query, header or form.
fn plain(value: &Node) -> String {
    match value {
        Node::Text(text) => text.clone(),
        Node::Null => String::new(),
        Node::List(items) => items.iter().map(plain).collect::<Vec<_>>().join(","),
        other => other.to_json().to_string(),
    }
}

/// Percent-encodes a text for a URL; the placeholder for unique values stays unchanged.
fn escaped(text: &str, maker: &Maker<'_>) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~,".contains(&byte);
    let whole = |text: &str| -> String {
        let each = text.bytes().map(|byte| match is_plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        });
        each.collect()
    };
    match &maker.options.unique {
        Some(word) if !word.is_empty() => {
            let parts: Vec<_> = text.split(&**word).map(whole).collect();
            parts.join(word)
        }
        _ => whole(text),
    }
}

fn body_bytes(body: &Body<'_>, maker: &Maker<'_>) -> Result<Vec<u8>, String> {
    let kind = body.content_type.split(';').next().unwrap_or_default();
    let kind = kind.trim().to_ascii_lowercase();
    let example = example_of(body.view);
    let value = || match (&example, body.schema) {
        (Some(example), Some(schema)) => maker.with_unique_members(example.clone(), schema),
        (Some(example), None) => example.clone(),
        (None, Some(schema)) => maker.value(schema, ""),
        (None, None) => Node::Map(Box::default()),
    };
    if body.is_json() {
        return serde_json::to_vec(&value()).map_err(|error| error.to_string());
    }
    match &*kind {
        "application/x-www-form-urlencoded" => Ok(form(&value(), maker).into_bytes()),
        _ if kind.starts_with("text/") => Ok(plain(&value()).into_bytes()),
        _ => match example {
            Some(Node::Text(text)) => Ok(text.into_bytes()),
            _ => Err(format!(
                "cannot generate a body of type {kind}; only JSON, forms and text are supported"
            )),
        },
    }
}

fn form(value: &Node, maker: &Maker<'_>) -> String {
    let mut pairs = Vec::new();
    for (name, value) in value.as_map().into_iter().flatten() {
        let values = match value {
            Node::List(items) => &items[..],
            other => std::slice::from_ref(other),
        };
        for value in values {
            let value = escaped(&plain(value), maker);
            pairs.push(format!("{}={value}", escaped(name, maker)));
        }
    }
    pairs.join("&")
}
