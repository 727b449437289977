//! JSON schema of `refrain.toml`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde_json::Value;

use super::forms::FingerprintTable;
use super::relay::RELAYS_MAX;
use super::typed::{
    Authorization, Encryption, Jwt, OperationHead, Proxy, Relay, Section, Server, Signed, Tls,
    Worker,
};
use super::worker::WORKERS_MAX;
use crate::policy::{
    OPERATIONS_MAX,
    schemes::{AddressForm, BackendId, broker_schemes, stores},
};

/// Configuration file of Refrain, `refrain.toml`.
// Only for the schema: with flattened structs, serde would lose the positions of list members.
#[derive(JsonSchema)]
#[schemars(title = "refrain.toml", deny_unknown_fields)]
#[expect(dead_code, reason = "only its schema is used")]
struct Whole {
    #[schemars(flatten)]
    server: Server,
    /// Limits and timeouts of the proxy.
    proxy: Option<Proxy>,
    /// Keys that encrypt the records of the store. Default: records are not encrypted.
    encryption: Option<Encryption>,
    /// TLS towards clients. Default: none; clients speak plain HTTP.
    tls: Option<Tls>,
    /// TLS of the admin listener. Default: none.
    admin_tls: Option<Tls>,
    /// Tokens whose claims a scope is made of.
    jwt: Option<Jwt>,
    /// Settings of every guarded operation; POST and PATCH are guarded by default.
    policy: Option<Section>,
    /// Guarded operations. Their own settings override those of their class, which override `[policy]`.
    #[schemars(length(max = OPERATIONS_MAX))]
    operation: Option<Vec<OperationSchema>>,
    /// Queues, and the services that their messages are delivered to.
    #[schemars(length(max = WORKERS_MAX))]
    worker: Option<Vec<Consumer>>,
    /// Outboxes, and the brokers that their messages are published to.
    #[schemars(length(max = RELAYS_MAX))]
    relay: Option<Vec<Relay>>,
}

/// One operation: its match and its settings.
#[derive(JsonSchema)]
#[schemars(rename = "Operation", deny_unknown_fields)]
#[expect(dead_code, reason = "only its schema is used")]
struct OperationSchema {
    #[schemars(flatten)]
    head: OperationHead,
    #[schemars(flatten)]
    section: Section,
    /// Signature verification; a request without a valid signature gets 401. Default: no verification.
    signature: Option<Signed>,
    /// Credential of probes after a restart, when the client's is no longer known. Default: none.
    probe_authorization: Option<Authorization>,
}

/// Queue, and the service that its messages are delivered to.
#[derive(JsonSchema)]
#[schemars(rename = "Worker", deny_unknown_fields)]
#[expect(dead_code, reason = "only its schema is used")]
struct Consumer {
    #[schemars(flatten)]
    worker: Worker,
    /// Credentials that are sent to the target with each message. Default: no credentials.
    authorization: Option<Authorization>,
}

pub(super) fn schema() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<Whole>().to_value();
    strip_null(&mut schema);
    if let Some(Value::Object(operation)) = schema.pointer_mut("/$defs/Operation") {
        operation.insert("required".into(), serde_json::json!(["match"]));
    }
    if let Some(Value::Object(worker)) = schema.pointer_mut("/$defs/Worker") {
        let required = serde_json::json!(["name", "queue", "deliver"]);
        worker.insert("required".into(), required);
        let sources = ["source", "source_env", "source_file"];
        let one = sources.map(|name| serde_json::json!({ "required": [name] }));
        worker.insert("anyOf".into(), serde_json::json!(one));
    }
    schema
}

/// Removes null from the schema: TOML has none, and an unset setting is omitted.
fn strip_null(schema: &mut Value) {
    match schema {
        Value::Array(members) => members.iter_mut().for_each(strip_null),
        Value::Object(object) => {
            if let Some(Value::Array(types)) = object.get_mut("type") {
                types.retain(|name| name != "null");
                if let [single] = types.as_slice() {
                    let single = single.clone();
                    object.insert("type".into(), single);
                }
            }
            if let Some(Value::Array(choices)) = object.get_mut("anyOf") {
                choices.retain(|choice| choice.get("type").is_none_or(|name| name != "null"));
                if let [Value::Object(single)] = choices.as_slice() {
                    let single = single.clone();
                    object.remove("anyOf");
                    object.extend(single.into_iter().filter(|(name, _)| name != "description"));
                }
            }
            object.values_mut().for_each(strip_null);
        }
        _ => {}
    }
}

macro_rules! text {
    ($($name:ident: $pattern:expr;)*) => {$(
        pub(super) struct $name;

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "pattern": $pattern })
            }

            fn inline_schema() -> bool {
                true
            }
        }
    )*};
}

text! {
    Address: r"^(\[[0-9A-Fa-f:.]+\]|[0-9.]+):[0-9]{1,5}$";
    HostName: r"^[0-9A-Za-z.-]+$";
    Upstream: r"^https?://[^/?#@\s]+(/[^?#\s]*)?$";
    NetworkText: r"^[0-9A-Fa-f:.]+(/[0-9]{1,3})?$";
    OtlpUrl: r"^https?://[^/?#@\s]+(/[^?#\s]*)?$";
    StoreUrl: store_pattern(|_| true);
    BrokerUrl: any_of(broker_schemes().map(|it| (it, AddressForm::Url)));
    DeliverUrl: r"^https?://[^/?#@\s]+([/?][^#\s]*)?$";
    MessageKey: r"^(id|cloudevents|position|header:[^\s:]+|body:/.*|natural:.*\{/.*\}.*|preset:[a-z-]+)$";
    FieldText: r"^(header:[^\s:]+|body:/.*)$";
    ReceiptsUrl: store_pattern(|id| id == BackendId::Postgres);
    ProblemBase: r"^(/|https?://).*/$|^/$";
    KeySource: r"^(header:[^\s:]+|body:/.*|derive|natural:.*\{/.*\}.*|preset:[a-z-]+)$";
    ScopeText: r"^(credential|route|none|tls:subject|header:[^\s:]+|jwt:.+|path:.+)$";
    CredentialText: r"^((header|cookie):[^\s:]+|tls:subject)$";
    FingerprintText: r"^(method|path|query|body|host|body:/.*|header:[^\s:]+)$";
    Duration: r"^(?=[0-9])([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$";
    HeaderName: r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$";
    PatternText: r"^(\*|[A-Z_-]+(\|[A-Z_-]+)*)\s+(\*|/\S*)$";
    VariableName: r"^[A-Z0-9_]+$";
    PathText: r"^.+$";
    ProbeText: r"^GET /\S*\{[^{}]+\}\S*$";
    JwksUrl: r"^https?://[^/?#@\s]+([/?][^#\s]*)?$";
    JwtAlgorithm: r"^((RS|PS|HS)(256|384|512)|ES256|ES384|EdDSA)$";
    ReplayProbeText: r"^GET /\S*$";
}

/// Pattern of the store addresses of some backends.
fn store_pattern(is_meant: impl Fn(BackendId) -> bool) -> String {
    let stores = stores().filter(|(backend, _)| is_meant(backend.id));
    any_of(stores.flat_map(|(_, it)| it.schemes.iter().map(move |scheme| (*scheme, it.form))))
}

fn any_of(schemes: impl Iterator<Item = (&'static str, AddressForm)>) -> String {
    let form = |(scheme, form): (&str, AddressForm)| {
        let rest = match form {
            AddressForm::Alone => "",
            AddressForm::Folder => ".+",
            AddressForm::Url => "//.+",
        };
        format!("{}:{rest}", scheme.replace('+', r"\+"))
    };
    let forms: Vec<_> = schemes.map(form).collect();
    format!("^({})$", forms.join("|"))
}

/// A whole number of bytes, or a string with a unit.
pub(super) struct Size;

/// A status code, or a string for a range of them.
pub(super) struct StatusText;

/// A number from 1 to 1000.
pub(super) struct Attempts;

/// A boolean, or `required`.
pub(super) struct AuditForm;

macro_rules! fixed {
    ($($name:ident: $schema:tt;)*) => {$(
        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }

            fn inline_schema() -> bool {
                true
            }
        }
    )*};
}

fixed! {
    Size: { "anyOf": [
        { "type": "string", "pattern": "^[0-9]+(B|bytes|KiB|MiB|GiB)?$" },
        { "type": "integer", "minimum": 0, "maximum": 67_108_864 }
    ] };
    StatusText: { "anyOf": [
        { "type": "string", "pattern": "^([2-5]xx|[2-5][0-9]{2}(-[2-5][0-9]{2})?)$" },
        { "type": "integer", "minimum": 200, "maximum": 599 }
    ] };
    Attempts: { "type": "integer", "minimum": 1, "maximum": 1000 };
    AuditForm: { "anyOf": [{ "type": "boolean" }, { "type": "string", "const": "required" }] };
}

/// Parts of a fingerprint, or a table that contains them.
pub(super) struct FingerprintForm;

impl JsonSchema for FingerprintForm {
    fn schema_name() -> Cow<'static, str> {
        "FingerprintForm".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let parts = OneOrMore::<FingerprintText>::json_schema(generator);
        let table = FingerprintTable::json_schema(generator);
        json_schema!({ "anyOf": [parts, table] })
    }

    fn inline_schema() -> bool {
        true
    }
}

/// One `T`, or a list of them.
pub(super) struct OneOrMore<T>(std::marker::PhantomData<T>);

impl<T: JsonSchema> JsonSchema for OneOrMore<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("OneOrMore{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [one, { "type": "array", "items": one, "maxItems": 64 }] })
    }

    fn inline_schema() -> bool {
        true
    }
}
