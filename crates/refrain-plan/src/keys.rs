//! Sources of an operation's key: the client's header, the sender's event id, or business identifiers (natural key).

use refrain::{key::Sender, policy::Class};
use refrain_openapi::{Operation, Schema};
use serde::Serialize;

use crate::{
    text::{last_word, plain},
    words as lists,
};

mod event;
pub(crate) use event::best_id;
use event::event_id;

/// Maximum number of identifiers in one natural key; a reference, an amount and a currency may be added.
const MEMBERS_MAX: usize = 3;
/// Maximum depth of members in natural keys.
const DEPTH_MAX: usize = 2;
/// Number of members after which the search stops.
const GATHERED_MAX: usize = 100;
/// Default header, for documents that name none.
pub(crate) const KEY_HEADER: &str = "Idempotency-Key";

/// Sources of an operation's key.
#[derive(Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Keys {
    /// Key header that the document already declares.
    pub header: Option<String>,
    /// Source of the event's own id, in policy syntax.
    pub event: Option<String>,
    /// Sender of the webhook, in policy syntax.
    pub sender: Option<&'static str>,
    /// Natural keys, for clients that send no key.
    pub natural: Vec<NaturalKey>,
}

/// A key made of business identifiers in the body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NaturalKey {
    /// Source in policy syntax: `natural:{/customer_id}-{/cart_id}`.
    pub source: String,
    /// When two different requests get the same key, compared with a key that the client sends.
    pub risk: String,
}

impl Keys {
    pub(crate) fn of(operation: &Operation<'_>, class: Class) -> Self {
        let header = key_header(operation);
        match class {
            Class::Event => {
                let sender = sender(operation).map(Sender::name);
                let event = event_id(operation);
                Self {
                    header,
                    event,
                    sender,
                    natural: Vec::new(),
                }
            }
            Class::Create | Class::Monetary => {
                let natural = natural(operation, class == Class::Monetary);
                Self {
                    header,
                    natural,
                    ..Self::default()
                }
            }
            _ => Self {
                header,
                ..Self::default()
            },
        }
    }

    /// Header in which clients send the key.
    #[must_use]
    pub fn client_header(&self) -> &str {
        self.header.as_deref().unwrap_or(KEY_HEADER)
    }
}

fn key_header(operation: &Operation<'_>) -> Option<String> {
    let parameters = operation.parameters().into_iter();
    let mut headers = parameters.filter(|it| it.place() == "header");
    let is_key = |name: &str| name.contains("idempotency") || name == "paypalrequestid";
    headers
        .find(|it| is_key(&plain(it.name())))
        .map(|it| it.name().into())
}

fn sender(operation: &Operation<'_>) -> Option<Sender> {
    let parameters = operation.parameters();
    let has = |part: &str| {
        parameters
            .iter()
            .any(|it| it.place() == "header" && plain(it.name()).contains(part))
    };
    let path = operation.path().to_lowercase();
    let named = |name: &str| path.split(['/', '-', '_']).any(|it| it == name);
    if has("stripesignature") || named("stripe") {
        Some(Sender::Stripe)
    } else if has("xgithub") || has("xhubsignature256") || named("github") {
        Some(Sender::Github)
    } else if has("xshopify") || named("shopify") {
        Some(Sender::Shopify)
    } else if has("svix") || named("svix") {
        Some(Sender::Svix)
    } else if has("webhookid") && has("webhooksignature") {
        Some(Sender::StandardWebhooks)
    } else {
        None
    }
}

fn natural(operation: &Operation<'_>, is_monetary: bool) -> Vec<NaturalKey> {
    let schema = operation
        .body()
        .filter(|it| it.is_json())
        .and_then(|it| it.schema);
    let mut members = Vec::new();
    schema
        .into_iter()
        .for_each(|it| gather(it, "", 0, &mut members));
    propose(&members, is_monetary, Sent::Request)
}

/// Kind of input that a key is proposed for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sent {
    Request,
    Message,
}

/// Proposes natural keys from these members (JSON pointer and plain name).
pub(crate) fn propose(
    members: &[(String, String)],
    is_monetary: bool,
    sent: Sent,
) -> Vec<NaturalKey> {
    let (many, own, who) = match sent {
        Sent::Request => ("requests", "a client key", "clients"),
        Sent::Message => ("messages", "an id from the publisher", "publishers"),
    };
    let mut proposals = Vec::new();
    let reference = members
        .iter()
        .find(|(_, name)| lists::REFERENCE.contains(&name.as_str()));
    let shown = |pointer: &str| pointer.rsplit('/').next().unwrap_or_default().to_owned();
    if let Some((pointer, _)) = reference {
        let name = shown(pointer);
        proposals.push(NaturalKey {
            source: format!("body:{pointer}"),
            risk: format!("as good as {own} if {who} never use the same `{name}` for two different {many}; otherwise the second one is rejected or treated as a duplicate"),
        });
    }
    let is_named = |(pointer, name): &&(String, String)| {
        is_identifier(pointer, name) && Some(pointer) != reference.map(|it| &it.0)
    };
    let mut parts: Vec<_> = members.iter().filter(is_named).take(MEMBERS_MAX).collect();
    let find = |list: &[&str], end: &str| {
        members
            .iter()
            .find(|(_, name)| list.contains(&name.as_str()) || name.ends_with(end))
    };
    let amount = find(lists::AMOUNT, "amount").filter(|_| is_monetary && !parts.is_empty());
    let currency = find(&["currency"], "currency").filter(|_| amount.is_some());
    parts.extend(reference.filter(|_| !parts.is_empty()));
    parts.extend(amount);
    parts.extend(currency);
    parts.dedup();
    if parts.len() > 1 {
        let template: Vec<_> = parts
            .iter()
            .map(|(pointer, _)| format!("{{{pointer}}}"))
            .collect();
        let names: Vec<_> = parts.iter().map(|(pointer, _)| shown(pointer)).collect();
        let same = names.join(", ");
        let again = if amount.is_some() {
            "an intended second payment"
        } else {
            "an intended repetition"
        };
        proposals.push(NaturalKey {
            source: format!("natural:{}", template.join("-")),
            risk: format!("two {many} with the same {same} count as duplicates: {again} needs another value in one of them; {own} has no such collision"),
        });
    }
    proposals
}

/// Whether a member is an identifier that stays the same on a retry.
fn is_identifier(pointer: &str, name: &str) -> bool {
    let last = pointer
        .rsplit('/')
        .next()
        .map(last_word)
        .unwrap_or_default();
    let ends = [
        "id",
        "ref",
        "reference",
        "number",
        "no",
        "sku",
        "iban",
        "account",
        "sender",
        "receiver",
        "from",
        "to",
    ];
    let whole = [
        "from", "to", "sender", "receiver", "customer", "order", "cart", "invoice",
    ];
    whole.contains(&name) || ends.contains(&last.as_str())
}

/// Collects the members that a natural key may contain, as JSON pointer and plain name.
/// Lists, booleans, timestamps and members that differ on every attempt are left out.
pub(crate) fn gather(
    schema: Schema<'_>,
    above: &str,
    depth: usize,
    found: &mut Vec<(String, String)>,
) {
    for (name, member) in schema.properties() {
        if found.len() > GATHERED_MAX {
            return;
        }
        let is_moment = matches!(
            member.format(),
            Some("date" | "date-time" | "time" | "password" | "binary")
        );
        let is_fit = name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        if is_moment
            || !is_fit
            || member.is_read_only()
            || member.is("array")
            || member.is("boolean")
            || is_changing(name)
        {
            continue;
        }
        let pointer = format!("{above}/{}", escaped(name));
        match member.properties().is_empty() {
            true => found.push((pointer, plain(name))),
            false if depth + 1 < DEPTH_MAX => gather(member, &pointer, depth + 1, found),
            false => {}
        }
    }
}

/// Whether the member differs on every attempt.
fn is_changing(name: &str) -> bool {
    [plain(name), last_word(name)]
        .iter()
        .any(|it| lists::CHANGING.contains(&it.as_str()))
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
