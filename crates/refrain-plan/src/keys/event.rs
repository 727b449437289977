//! Finds the id of an event or message: the header or member in which senders number their deliveries.
//!
//! It must be the id of the message, not of the resource that the message is about.
//! A payment that is reported twice, as pending and as paid, is two messages.

use refrain_openapi::{Operation, Schema};

use super::escaped;
use crate::{text::plain, words as lists};

/// Endings of headers that number deliveries, most reliable first: `webhook-id`, `X-GitHub-Delivery`, `ce-id`.
const HEADERS: &[&str] = &[
    "webhookid",
    "eventid",
    "deliveryid",
    "delivery",
    "messageid",
    "notificationid",
    "transmissionid",
    "svixid",
    "ceid",
    "msgid",
    "eventuuid",
    "messageuuid",
    "deliveryuuid",
    "requestuuid",
    "idempotencytoken",
];
/// Members that identify the message, most reliable first.
const MEMBERS: &[&str] = &["eventid", "messageid", "id"];
/// Words for a message, before `id`, `uuid` and similar endings.
const MESSAGES: &[&str] = &[
    "event",
    "message",
    "msg",
    "delivery",
    "notification",
    "notify",
    "callback",
    "alert",
    "alarm",
    "advice",
    "transmission",
    "envelope",
    "postback",
    "ipntrack",
    "deduplication",
    "dedup",
    "dedupe",
];
/// Endings of message ids, after a word of `MESSAGES`.
const ENDS: &[&str] = &[
    "id",
    "uuid",
    "guid",
    "sid",
    "no",
    "number",
    "ref",
    "reference",
    "key",
];
/// Words that make the name the id of another message.
const OTHERS: &[&str] = &[
    "parent",
    "original",
    "related",
    "previous",
    "correlat",
    "causation",
    "reply",
    "subscription",
];
/// Members in which some senders put metadata of the message.
const ABOUT: &[&str] = &["meta", "metadata", "header", "headers", "context"];
/// Members in which some senders put the message itself.
const WITHIN: &[&str] = &["event", "message", "notification", "envelope"];

/// Source of an event's id, in policy syntax: a header, or a member of the body.
pub(super) fn event_id(operation: &Operation<'_>) -> Option<String> {
    let parameters = operation.parameters().into_iter();
    let headers: Vec<_> = parameters.filter(|it| it.place() == "header").collect();
    let ending = |end: &&str| {
        let mut names = headers.iter().map(|it| it.name());
        names.find(|it| plain(it).ends_with(*end))
    };
    if let Some(header) = HEADERS.iter().find_map(ending) {
        return Some(format!("header:{header}"));
    }
    let body = operation.body().filter(|it| it.is_json())?;
    of_body(body.schema?)
}

fn of_body(schema: Schema<'_>) -> Option<String> {
    let members = schema.properties();
    let names = members.iter().map(|(name, _)| *name);
    let find = |wanted: &str| names.clone().find(|name| plain(name) == wanted);
    // CloudEvents are unique by source and id together.
    if let (Some(source), Some(id), Some(_)) = (find("source"), find("id"), find("specversion")) {
        return Some(format!("natural:{{/{source}}}-{{/{id}}}"));
    }
    // `{id, status}` is a resource and its state; the next state is reported with the same id.
    let has = |list: &[&str]| {
        names
            .clone()
            .any(|name| list.contains(&plain(name).as_str()))
    };
    let is_thing = has(&["status", "state"]) && !has(lists::EVENT_KIND);
    let own = best_id(names.clone()).filter(|name| !is_thing || plain(name) != "id");
    if let Some(name) = own {
        return Some(format!("body:/{}", escaped(name)));
    }
    members.iter().find_map(|(above, schema)| {
        let kind = plain(above);
        let inside = schema.properties();
        let inside = inside.iter().map(|(name, _)| *name);
        let id = match kind.as_str() {
            kind if WITHIN.contains(&kind) => best_id(inside),
            kind if ABOUT.contains(&kind) => best_id(inside).filter(|it| plain(it) != "id"),
            _ => None,
        };
        id.map(|id| format!("body:/{}/{}", escaped(above), escaped(id)))
    })
}

/// Member that is most likely the id of the message itself.
pub(crate) fn best_id<'n>(names: impl Iterator<Item = &'n str> + Clone) -> Option<&'n str> {
    let exact = |wanted: &str| names.clone().find(|name| plain(name) == wanted);
    let known = MEMBERS.iter().find_map(|wanted| exact(wanted));
    known
        .or_else(|| names.clone().find(|name| names_message(&plain(name))))
        .or_else(|| exact("uuid"))
}

/// Whether a name is the id of the message: `notification_id`, `webhookEventUuid`, but not `parentEventId`.
fn names_message(name: &str) -> bool {
    let stems = ENDS.iter().filter_map(|end| name.strip_suffix(end));
    let is_message = |stem: &str| MESSAGES.iter().any(|it| stem.ends_with(it));
    let is_other = OTHERS.iter().any(|it| name.contains(it));
    !is_other && stems.into_iter().any(is_message)
}

#[cfg(test)]
mod tests {
    use super::best_id;

    #[test]
    fn the_name_of_the_message_goes_before_names_of_things() {
        let check = |names: &[&'static str], wanted: Option<&str>| {
            assert_eq!(best_id(names.iter().copied()), wanted, "{names:?}");
        };
        check(&["id", "event_id"], Some("event_id"));
        check(&["paymentId", "notificationUuid"], Some("notificationUuid"));
        check(&["order_id", "webhookEventId"], Some("webhookEventId"));
        check(&["parentEventId", "deliveryNo"], Some("deliveryNo"));
        check(&["MessageDeduplicationId"], Some("MessageDeduplicationId"));
        check(&["uuid", "notify_id"], Some("notify_id"));
        check(&["MessageSid", "From"], Some("MessageSid"));
        // Ids of the endpoint and of the payment: the same in every message about the payment.
        check(&["webhook_id", "txn_id", "payment_id"], None);
        check(&["originalMessageId"], None);
    }
}
