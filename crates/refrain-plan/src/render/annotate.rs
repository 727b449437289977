//! Annotated copy of the description, which documents the policy for clients.

use refrain::policy::{Class, Operation as Rule, Policy, units::Span};
use refrain_openapi::{Document, Flavour, Map, Node};
use serde_json::json;

use super::{
    class_name, mark,
    references::{inline_references, rewrite},
    sealed,
};
use crate::{Plan, Planned};

const RESPONSE: &str = "RefrainProblem";
/// Descriptions of the status codes that Refrain itself returns.
const STATUSES: [(&str, &str); 7] = [
    ("400", "The key is missing or malformed"),
    (
        "409",
        "The first request is in flight, or its outcome is unknown",
    ),
    (
        "410",
        "The key was used, and its outcome is no longer stored",
    ),
    ("413", "The request is too large to deduplicate"),
    ("422", "The key was used for another request"),
    (
        "502",
        "The service is unreachable, or closed the connection",
    ),
    (
        "503",
        "The store is unavailable: the state of this key is not known",
    ),
];

/// Copies a document in its own format, with `x-refrain` on every operation.
/// Guarded operations also get a key parameter and the problem responses.
///
/// Referenced paths and operations are inlined, so that the copy has all annotations.
/// `references` is put before every relative reference, for a copy in another folder. YAML comments are lost.
///
/// # Errors
/// When the copy cannot be serialized.
pub fn annotated(
    plan: &Plan,
    document: &Document,
    policy: &Policy,
    references: &str,
) -> Result<String, String> {
    let mut root = document.root().clone();
    inline_references(&mut root, document);
    for planned in plan.operations.iter().filter(|it| it.is_served) {
        let rule = planned
            .pattern
            .as_ref()
            .and_then(|pattern| policy.operations().find(|it| it.name == *pattern));
        let item = root
            .as_map_mut()
            .and_then(|it| it.get_mut("paths"))
            .and_then(Node::as_map_mut);
        let item = item
            .and_then(|it| it.get_mut(&planned.path))
            .and_then(Node::as_map_mut);
        let shared = item
            .as_ref()
            .is_some_and(|it| has_key(it.get("parameters")));
        let operation = item.and_then(|it| it.get_mut(&planned.method.to_lowercase()));
        if let Some(operation) = operation.and_then(Node::as_map_mut) {
            annotate(operation, planned, rule, shared, document.flavour());
        }
    }
    if document.is_async() {
        annotate_channels(&mut root, plan);
    } else {
        add_response(&mut root, document.flavour());
    }
    if !references.is_empty() {
        rewrite(&mut root, references);
    }
    if let Some(map) = root.as_map_mut() {
        map.insert("x-refrain-plan".into(), Node::Text(mark()));
    }
    let text = document.format().write(&root)?;
    Ok(sealed(text))
}

fn annotate(
    operation: &mut Map,
    planned: &Planned,
    rule: Option<&Rule>,
    shared: bool,
    flavour: Flavour,
) {
    let class = rule
        .and_then(|it| it.class)
        .unwrap_or(planned.verdict.class);
    let rule = rule.filter(|it| it.guarded);
    let mut about = json!({ "class": class_name(class) });
    if let Some(rule) = rule {
        let sources: Vec<_> = rule.key.iter().map(ToString::to_string).collect();
        about["guarantee"] = serde_json::to_value(rule.terms.guarantee).unwrap_or_default();
        about["key"] = json!(sources);
        about["required"] = json!(rule.required);
        about["retention"] = json!(Span(rule.terms.retention).to_string());
        about["remember"] = json!(Span(rule.terms.remember).to_string());
    }
    operation.insert("x-refrain".into(), about.into());
    let Some(rule) = rule else { return };
    let is_by_header = rule
        .key
        .iter()
        .any(|it| it.to_string().starts_with("header:"));
    if is_by_header && class != Class::Event && !shared && !has_key(operation.get("parameters")) {
        let parameter = parameter(planned, rule.required, flavour);
        match operation.get_mut("parameters") {
            Some(Node::List(list)) => list.push(parameter),
            _ => {
                operation.insert("parameters".into(), Node::List(vec![parameter]));
            }
        }
    }
    let root = match flavour {
        Flavour::Swagger2 => "#/responses/",
        _ => "#/components/responses/",
    };
    if !matches!(operation.get("responses"), Some(Node::Map(_))) {
        operation.insert("responses".into(), Node::Map(Box::default()));
    }
    let responses = operation.get_mut("responses").and_then(Node::as_map_mut);
    if let Some(responses) = responses.filter(|_| class != Class::Event) {
        for (status, _) in STATUSES {
            let reference = json!({ "$ref": format!("{root}{RESPONSE}{status}") });
            responses
                .entry(status.into())
                .or_insert_with(|| reference.into());
        }
    }
}

fn has_key(parameters: Option<&Node>) -> bool {
    let names = parameters
        .into_iter()
        .flat_map(Node::items)
        .filter_map(|it| it.get("name")?.as_str());
    names
        .map(crate::text::plain)
        .any(|name| name.contains("idempotency"))
}

fn parameter(planned: &Planned, required: bool, flavour: Flavour) -> Node {
    let description = "Identifies one intended effect. Send the same key with every retry of the same request, and a new key with a new request.";
    let mut parameter = Map::new();
    parameter.insert("name".into(), planned.keys.client_header().into());
    parameter.insert("in".into(), "header".into());
    parameter.insert("required".into(), Node::Bool(required));
    parameter.insert("description".into(), description.into());
    let schema = json!({ "type": "string", "minLength": 1, "maxLength": 255 });
    match flavour {
        Flavour::Swagger2 => {
            let members = Node::from(schema);
            parameter.extend(members.as_map().cloned().unwrap_or_default());
        }
        _ => {
            parameter.insert("schema".into(), schema.into());
        }
    }
    Node::Map(Box::new(parameter))
}

/// Adds the problem responses that operations refer to.
fn add_response(root: &mut Node, flavour: Flavour) {
    let schema = json!({
        "type": "object",
        "description": "RFC 9457; `advice` says what to do",
        "properties": {
            "type": { "type": "string" },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string" },
            "code": { "type": "string" },
            "advice": { "type": "string", "enum": ["wait", "reuse-key", "new-key", "ask"] },
        },
    });
    let Some(root) = root.as_map_mut() else {
        return;
    };
    let home = match flavour {
        Flavour::Swagger2 => root,
        _ => {
            let components = root
                .entry("components".into())
                .or_insert_with(|| Node::Map(Box::default()));
            let Some(components) = components.as_map_mut() else {
                return;
            };
            components
        }
    };
    let responses = home
        .entry("responses".into())
        .or_insert_with(|| Node::Map(Box::default()));
    let Some(responses) = responses.as_map_mut() else {
        return;
    };
    for (status, description) in STATUSES {
        let response = match flavour {
            Flavour::Swagger2 => json!({ "description": description, "schema": schema }),
            _ => {
                json!({ "description": description, "content": { "application/problem+json": { "schema": schema } } })
            }
        };
        responses
            .entry(format!("{RESPONSE}{status}"))
            .or_insert_with(|| response.into());
    }
}

fn annotate_channels(root: &mut Node, plan: &Plan) {
    let channels = root
        .as_map_mut()
        .and_then(|it| it.get_mut("channels"))
        .and_then(Node::as_map_mut);
    for (name, channel) in channels.into_iter().flatten() {
        let address = channel
            .get("address")
            .and_then(Node::as_str)
            .unwrap_or(name);
        let Some(consumer) = plan.consumers.iter().find(|it| it.channel == address) else {
            continue;
        };
        let about = json!({ "worker": consumer.name, "key": consumer.key, "class": if consumer.is_monetary { "monetary" } else { "event" } });
        if let Some(channel) = channel.as_map_mut() {
            channel.insert("x-refrain".into(), about.into());
        }
    }
}
