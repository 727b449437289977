//! `verify.toml`: a sample request for every operation that `refrain verify` can test.

use refrain::policy::Class;
use refrain_openapi::{Document, Operation, sample};
use toml_edit::value;

use super::{class_name, line};
use crate::{Plan, Planned, keys::KEY_HEADER};

/// Maximum number of operations that `refrain verify` accepts in one file.
const OPERATIONS_MAX: usize = 100;
/// Largest body that is written into the file.
const BODY_BYTES_MAX: usize = 16 << 10;

/// Writes the test plan of `refrain verify`, or adds missing operations to an existing one.
///
/// An operation that needs an existing resource is written as a comment, for the user to fill in.
#[must_use]
pub fn verify(plan: &Plan, document: &Document, url: &str, existing: Option<&str>) -> String {
    let operations = document.operations();
    let pairs = || plan.operations.iter().zip(&operations);
    let is_tried = |it: &(&Planned, &Operation<'_>)| {
        let class = it.0.verdict.class;
        it.0.is_in_policy() && !matches!(class, Class::Read | Class::Event)
    };
    let count = pairs().filter(is_tried).count();
    // If there are too many operations, only those that move money are written.
    let is_first = |it: &(&Planned, &Operation<'_>)| {
        count <= OPERATIONS_MAX || it.0.verdict.class == Class::Monetary
    };
    let tried: Vec<_> = pairs()
        .filter(is_tried)
        .filter(is_first)
        .take(OPERATIONS_MAX)
        .collect();
    let mut text = existing.map_or_else(|| opening(plan, url, tried.len(), count), String::from);
    for (planned, operation) in tried {
        let mark = mark(planned);
        if !existing.is_some_and(|it| it.contains(&mark)) {
            text.push_str(&format!("\n{mark}{}", entry(planned, operation, plan)));
        }
    }
    text
}

/// Comment line that identifies an operation in the file, also if its entry is commented out.
fn mark(planned: &Planned) -> String {
    format!("# plan: {} is ", line(&planned.name()))
}

fn opening(plan: &Plan, url: &str, tried: usize, count: usize) -> String {
    let mut text = format!(
        "# Test plan for `refrain verify` of {}, generated from its description by `refrain plan`.\n\
         # Run it against the proxy of a test environment: refrain verify --config verify.toml\n\
         # Bodies are samples: correct those that your service rejects. `refrain plan` keeps your changes.\n",
        line(&plan.title)
    );
    if tried < count {
        text.push_str(&format!(
            "# It contains {tried} of {count} operations; those that move money come first.\n"
        ));
    }
    text.push_str(&format!("\nurl = {}\n\n", value(url)));
    text.push_str("# Counting effects makes the test stronger:\n# [effects]\n# url = \"http://127.0.0.1:3000/ledger\"\n");
    text
}

fn entry(planned: &Planned, operation: &Operation<'_>, plan: &Plan) -> String {
    let options = sample::Options {
        seed: 1,
        unique: Some("{{unique}}".into()),
        ..sample::Options::default()
    };
    let class = class_name(planned.verdict.class);
    let mut made = match sample::request(operation, &options) {
        Ok(made) => made,
        Err(why) => {
            return format!("{class}\n# cannot generate a sample: {}\n", line(&why));
        }
    };
    let Ok(body) = String::from_utf8(made.body.clone()) else {
        return format!("{class}\n# its body is not text; write body = \"@FILE\"\n");
    };
    if body.len() > BODY_BYTES_MAX {
        return format!(
            "{class}\n# its sample is too large for this file; write body = \"@FILE\"\n"
        );
    }
    // A path parameter that needs an existing resource stays in braces.
    made.path = unfilled(operation.path(), &made.path, &made.needs);
    let mut needs = Vec::new();
    // The description may also lack declarations of path parameters.
    let filled = made.path.replace("{{unique}}", "");
    needs.extend(
        filled
            .split('/')
            .filter(|it| it.contains('{'))
            .map(String::from),
    );
    let target = format!("{} {}{}", operation.method(), plan.base, made.target());
    let mut lines = vec![
        "[[operation]]".to_owned(),
        format!("match = {}", value(target)),
    ];
    if !body.is_empty() {
        lines.push(format!("body = {}", value(body)));
    }
    if let Some(kind) = made.content_type.filter(|it| it != "application/json") {
        lines.push(format!("content_type = {}", value(kind)));
    }
    let key = planned.keys.client_header();
    if key != KEY_HEADER {
        lines.push(format!("key_header = {}", value(key)));
    }
    let mut headers: Vec<_> = made
        .headers
        .iter()
        .map(|(name, text)| format!("{name}: {text}"))
        .collect();
    let credential = credential(operation);
    headers.extend(credential.iter().map(|it| format!("{it}alice")));
    if !headers.is_empty() {
        let headers: toml_edit::Array = headers.iter().collect();
        lines.push(format!("headers = {}", value(headers)));
    }
    if let Some(credential) = credential {
        lines.push(format!(
            "other_credential = {}",
            value(format!("{credential}mallory"))
        ));
    }
    match needs.is_empty() {
        true => format!("{class}\n{}\n", lines.join("\n")),
        false => {
            let lines = lines.join("\n");
            let commented: Vec<_> = lines.lines().map(|line| format!("# {line}")).collect();
            let needs = needs.join(", ");
            format!(
                "{class}\n# needs an existing resource: fill in {needs} and uncomment\n{}\n",
                commented.join("\n")
            )
        }
    }
}

/// The filled path, with the parameters in `needs` left in braces.
fn unfilled(path: &str, filled: &str, needs: &[String]) -> String {
    let parts = path.split('/').zip(filled.split('/'));
    let is_needed = |part: &str| needs.iter().any(|it| part.contains(&format!("{{{it}}}")));
    let parts = parts.map(|(part, filled)| if is_needed(part) { part } else { filled });
    parts.collect::<Vec<_>>().join("/")
}

/// Credential header of an operation, without the secret itself.
fn credential(operation: &Operation<'_>) -> Option<String> {
    let schemes = operation.security();
    let name = *schemes.first()?.first()?;
    let scheme = operation.view().document().security_scheme(name)?;
    match (
        scheme.text("type")?,
        scheme.text("in"),
        scheme.text("scheme"),
    ) {
        ("apiKey", Some("header"), _) => Some(format!("{}: ", scheme.text("name")?)),
        ("http", _, Some(kind)) if kind.eq_ignore_ascii_case("bearer") => {
            Some("Authorization: Bearer ".into())
        }
        ("oauth2" | "openIdConnect", ..) => Some("Authorization: Bearer ".into()),
        _ => None,
    }
}
