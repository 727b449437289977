//! Evidence that an external system delivers events to the operation.

use refrain::policy::Class::{Create, Event, Monetary, Read, Replace};

use super::Case;
use crate::{facts::Facts, members::first, text::singular, verbs::named, words};

pub(super) fn weigh(facts: &Facts<'_>, case: &mut Case) {
    if !matches!(facts.method.as_str(), "POST" | "PUT" | "PATCH") {
        return;
    }
    path(facts, case);
    sender(facts, case);
    headers(facts, case);
    body(facts, case);
    if let Some(phrase) = facts.says(words::DELIVERED_PHRASES) {
        case.add(Event, 3, format!("its text says “{}”", phrase.trim()));
    }
    if let Some(word) = sending(&facts.summary).filter(|_| facts.is_acknowledged) {
        case.add(
            Event,
            4,
            format!("its summary says that external senders {word}"),
        );
    }
    happened(facts, case);
    around(facts, case);
    if case.score(Event) >= 4 && facts.is_acknowledged {
        case.add(Event, 2, "its response is only a status");
        case.add(Replace, -3, "its text describes a delivery, not a change");
        case.add(
            Create,
            -1,
            "its text describes a delivery, not a new resource",
        );
    }
    let weight = match case.score(Event) {
        10.. => -12,
        6.. => -8,
        _ => return,
    };
    case.add(Monetary, weight, "it reports money that moved elsewhere");
}

fn around(facts: &Facts<'_>, case: &mut Case) {
    let mut entrance = facts.segments.iter();
    let is_entrance = entrance.any(|it| named(it, words::ENTRANCE).is_some());
    if facts.is_open && facts.is_acknowledged && !is_entrance {
        case.add(
            Event,
            3,
            "it requires no authentication, unlike other operations",
        );
    } else if facts.is_apart {
        case.add(
            Event,
            1,
            "it requires other authentication than most operations",
        );
    }
    if facts.is_among_events && facts.is_acknowledged {
        case.add(Event, 4, "most operations on sibling paths are events");
    }
}

/// Verb of an external sender in a summary: it follows a subject, while an instruction to the API has no subject.
fn sending(summary: &str) -> Option<&'static str> {
    let said: Vec<_> = summary
        .split(|char: char| !char.is_alphanumeric())
        .collect();
    let behind = said
        .windows(2)
        .filter(|pair| !["to", "or", "and", "a", "the", "will", ""].contains(&pair[0]));
    let told = behind
        .clone()
        .find_map(|pair| words::DELIVERS.iter().find(|it| **it == pair[1]));
    let verbs = behind.map(|pair| singular(pair[1]));
    let mut known = verbs.filter_map(|verb| words::SENDING.iter().find(|it| **it == verb));
    known.next().or(told).copied()
}

fn path(facts: &Facts<'_>, case: &mut Case) {
    // A list of webhooks whose items can be read and deleted one by one is an ordinary list.
    let is_list = facts.is_managed && facts.method == "POST" && !facts.is_item
        || facts.is_item && facts.is_readable
        || facts.is_below_managed
        || facts.noun(facts.tail(), words::MANAGED).is_some();
    let find = |list| {
        facts
            .segments
            .iter()
            .filter(|it| facts.noun(it, words::MANAGED).is_none())
            .find_map(|it| named(&singular(it), list).or_else(|| named(it, list)))
    };
    // A test event did not happen.
    let is_sample = named(facts.tail(), &["test", "sample", "example"]).is_some();
    match find(words::DELIVERED) {
        Some(word) if !is_list => case.add(
            Event,
            6,
            format!("`{word}` in the path receives deliveries"),
        ),
        Some(word) => case.add(
            Event,
            1,
            format!("`{word}` in the path is a resource that this API manages"),
        ),
        None => {}
    }
    if let Some(word) = facts
        .noun(facts.tail(), words::TOLD)
        .filter(|_| !facts.is_readable && !is_sample)
    {
        case.add(Event, 3, format!("`{word}` in the path is an event"));
    } else if let Some(word) = find(words::TOLD).filter(|_| {
        facts.is_acknowledged && !facts.is_below_item && facts.verb(words::MOVING).is_none()
    }) {
        case.add(Event, 2, format!("`{word}` in the path is an event"));
    }
}

/// `refund-result`, `dispute-opened`: the path reports an event, and requests nothing.
fn happened(facts: &Facts<'_>, case: &mut Case) {
    let is_thing = facts.is_readable || facts.is_managed || facts.is_item || facts.is_in_item;
    let word = facts.event_word();
    if let Some(word) = word.filter(|_| facts.is_acknowledged && !is_thing) {
        let reason = format!("`{word}` at the end of the path reports an event");
        case.add(Event, 4, reason);
    }
    if facts.is_open && (300..400).contains(&facts.status) {
        let reason = "it requires no authentication and redirects the browser";
        case.add(Event, 3, reason);
    }
}

/// A path that ends with the name of a webhook sender, with a response that only acknowledges: that service calls it.
fn sender(facts: &Facts<'_>, case: &mut Case) {
    let is_list = facts.is_managed || facts.is_readable && facts.has_answer;
    let of = named(facts.tail(), words::SENDERS).or_else(|| {
        let above = named(facts.parent(), words::SENDERS);
        above.filter(|_| !facts.has_verb() && !facts.is_item)
    });
    if let Some(name) = of.filter(|_| facts.is_acknowledged && !is_list) {
        case.add(
            Event,
            3,
            format!("`{name}` is a service that sends webhooks"),
        );
    }
}

fn headers(facts: &Facts<'_>, case: &mut Case) {
    let is_signed = |name: &str| {
        words::SIGNED.iter().any(|end| name.contains(end)) && !name.contains("idempotency")
    };
    if let Some(name) = first(&facts.headers, is_signed) {
        case.add(Event, 5, format!("its header `{name}` is a webhook header"));
        let reason = "signed requests do not read data";
        case.add(Read, -5, reason);
    }
}

fn body(facts: &Facts<'_>, case: &mut Case) {
    let content = |part: &str| facts.content_types.iter().any(|it| it.contains(part));
    if content("cloudevents") {
        case.add(Event, 6, "it accepts CloudEvents");
    } else if content("event") {
        case.add(Event, 4, "the content type of its body is used for events");
    } else if content("edi") || content("ndjson") {
        case.add(Event, 3, "its body is a stream or a partner document");
    }
    if (content("xml") || content("text/") || content("*/*") || content("octet-stream"))
        && facts.is_acknowledged
        && facts.request.top.is_empty()
    {
        case.add(Event, 2, "its body is an undescribed document");
    }
    let kind = facts.request.find_top(words::EVENT_KIND);
    let is_number = facts.request.has_id();
    if let Some(kind) = kind.filter(|_| is_number || facts.request.times > 0) {
        let is_envelope = facts
            .request
            .find_top(&["data", "payload", "specversion"])
            .is_some();
        let weight = if is_envelope || facts.request.times > 0 {
            3
        } else {
            1
        };
        case.add(
            Event,
            weight,
            format!("its body contains an event type, in `{kind}`"),
        );
    }
    let told = |name: &str| {
        name.contains("webhook") && !name.ends_with("url")
            || name.contains("event") && name.ends_with("id")
            || name.starts_with("notification")
                && ["notification", "item", "items", "type"]
                    .iter()
                    .any(|it| name.ends_with(it))
    };
    if let Some(name) = first(&facts.request.top, told).filter(|_| kind.is_none()) {
        case.add(Event, 3, format!("`{name}` in its body describes an event"));
    }
    let past = |name: &str| words::HAPPENED.iter().any(|it| name.ends_with(it));
    // `decidedAt`: an action that is still to be done has no such time.
    let done = |name: &str| {
        let verb = name.strip_suffix("at").or_else(|| name.strip_suffix("on"));
        verb.is_some_and(|it| it.ends_with("ed") && !words::KEPT.contains(&it))
    };
    let found = first(&facts.request.all, past).map(|name| (name, 3));
    let found = found.or_else(|| Some((first(&facts.request.top, done)?, 2)));
    if let Some((name, weight)) = found.filter(|_| facts.is_acknowledged) {
        case.add(
            Event,
            weight,
            format!("`{name}` in its body is the time of the event"),
        );
    }
    let state = facts.request.find_top(words::EVENT_STATE);
    if let Some(state) = state.filter(|_| facts.request.times > 0 && facts.is_acknowledged) {
        case.add(
            Event,
            3,
            format!("its body reports a state, in `{state}`, and its time"),
        );
    }
}
