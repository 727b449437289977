//! Every setting of `refrain.toml`, from the schema that editors use.

use refrain::policy::File;
use serde_json::Value;

use super::{cell, check};

/// Each table of the file: its heading, its JSON pointer in the schema, and its introduction.
const TABLES: [(&str, &str, &str); 11] = [
    ("At the top", "", "Settings of the process."),
    (
        "`[proxy]`",
        "/$defs/Proxy",
        "Limits and timeouts of the proxy itself.",
    ),
    (
        "`[tls]` and `[admin_tls]`",
        "/$defs/Tls",
        "[TLS](../operating/tls.md) towards clients, and of the admin listener.",
    ),
    (
        "`[jwt]`",
        "/$defs/Jwt",
        "Tokens whose claims [a scope](../concepts/scope.md#claims-of-a-verified-token) is made of.",
    ),
    (
        "`[encryption]`",
        "/$defs/Encryption",
        "Keys that [encrypt the records of the store](../operating/encryption.md).",
    ),
    (
        "`[policy]`",
        "/$defs/Section",
        "Settings of every guarded operation; an `[[operation]]` may override each of them.",
    ),
    (
        "`[[operation]]`",
        "/$defs/Operation",
        "Settings that only an operation has.",
    ),
    (
        "`signature`",
        "/$defs/Signed",
        "An inline table of an `[[operation]]`.",
    ),
    (
        "`[[worker]]`",
        "/$defs/Worker",
        "A queue, and the service that its messages are delivered to.",
    ),
    (
        "`authorization`",
        "/$defs/Authorization",
        "An inline table of a `[[worker]]`, and the setting `probe_authorization` of an `[[operation]]`.",
    ),
    (
        "`[[relay]]`",
        "/$defs/Relay",
        "An outbox, and the broker that its messages are published to.",
    ),
];

/// Tables that are the value of a setting, and the anchors of their sections.
const INLINE: [(&str, &str); 2] = [
    ("Signed", "#signature"),
    ("Authorization", "#authorization"),
];

#[test]
fn settings() {
    let schema = File::schema();
    let mut page = String::from(
        "# refrain.toml, every setting\n\n\
         [The policy](../policy.md) explains the settings; this list is generated from the schema that `refrain check --schema` prints.\n\n",
    );
    for (heading, place, said) in TABLES {
        let table = schema.pointer(place).unwrap();
        page += &format!("## {heading}\n\n{said}\n\n");
        page += &rows(&schema, table, place == "/$defs/Operation");
    }
    page += "## Choices\n\n";
    for (name, choices) in schema["$defs"].as_object().unwrap() {
        if let Some(choices) = choices["oneOf"].as_array() {
            page += &said_of(&schema, name, choices);
        }
    }
    check("refrain-toml.md", &(page.trim_end().to_owned() + "\n"));
}

fn rows(schema: &Value, table: &Value, is_operation: bool) -> String {
    let shared = schema.pointer("/$defs/Section/properties").unwrap();
    let required = table["required"].as_array().cloned().unwrap_or_default();
    let mut rows = String::from("| setting | takes | default | meaning |\n|---|---|---|---|\n");
    for (name, setting) in table["properties"].as_object().unwrap() {
        if is_table(setting) || (is_operation && shared.get(name).is_some()) {
            continue;
        }
        let (meaning, default) = meaning(setting["description"].as_str().unwrap());
        let default = match required.contains(&name.as_str().into()) {
            true => "required".into(),
            false => default,
        };
        let takes = cell(&takes(setting));
        rows += &format!("| `{name}` | {takes} | {default} | {} |\n", cell(&meaning));
    }
    rows + "\n"
}

/// Whether a setting is a table that has its own section.
fn is_table(setting: &Value) -> bool {
    let target = setting["$ref"]
        .as_str()
        .or(setting["items"]["$ref"].as_str());
    target.is_some_and(|it| TABLES.iter().any(|(_, place, _)| it == format!("#{place}")))
        && !INLINE
            .iter()
            .any(|(name, _)| setting["$ref"] == format!("#/$defs/{name}"))
}

/// The description split into its meaning and the default that it ends with.
fn meaning(description: &str) -> (String, String) {
    match description.split_once(" Default: ") {
        Some((meaning, default)) => (meaning.into(), default.trim_end_matches('.').into()),
        None => (description.into(), "none".into()),
    }
}

/// The kinds of values that a setting takes.
fn takes(setting: &Value) -> String {
    if let Some(name) = setting["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap();
        return match INLINE.iter().find(|(table, _)| *table == name) {
            Some((_, link)) => format!("[a table]({link})"),
            None => format!("[a choice](#{})", name.to_lowercase()),
        };
    }
    if let Some(kinds) = setting["anyOf"].as_array() {
        let mut kinds: Vec<_> = kinds.iter().map(takes).collect();
        kinds.dedup();
        return kinds.join(" or ");
    }
    if let Some(word) = setting["const"].as_str() {
        return format!("`\"{word}\"`");
    }
    match setting["type"].as_str().unwrap() {
        "array" => "a list of these".into(),
        "boolean" => "`true` or `false`".into(),
        "integer" => "a number".into(),
        "object" => "a table".into(),
        _ => match setting["pattern"].as_str() {
            Some(pattern) if pattern.contains("[0-9]+ms") => "a duration".into(),
            Some(pattern) if pattern.contains("KiB") => "a size".into(),
            _ => "text".into(),
        },
    }
}

fn said_of(schema: &Value, name: &str, choices: &[Value]) -> String {
    let whole = schema["$defs"][name]["description"].as_str().unwrap();
    let first = whole.split("\n\n").next().unwrap();
    let mut said = format!("### {name}\n\n{first}\n\n| value | meaning |\n|---|---|\n");
    for choice in choices {
        let (value, meaning) = (&choice["const"], choice["description"].as_str().unwrap());
        said += &format!("| `{}` | {} |\n", value.as_str().unwrap(), cell(meaning));
    }
    said + "\n"
}
