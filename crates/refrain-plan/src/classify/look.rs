//! Evidence that an operation only reads.

use refrain::policy::Class::{Create, Event, Monetary, Read, Transition};

use super::Case;
use crate::{
    facts::Facts,
    text::{last_word, plain, singular},
    words,
};

pub(super) fn weigh(facts: &Facts<'_>, case: &mut Case) {
    if matches!(facts.method.as_str(), "GET" | "HEAD") {
        acting_get(facts, case);
    }
    if facts.method != "POST" {
        return;
    }
    verb(facts, case);
    weigh_looked_up_value(facts, case);
    weigh_leading_verb(facts, case);
    answer(facts, case);
    let is_named = words::LOOKING.contains(&facts.id_verb.as_str()) && facts.handling().is_none();
    if is_named && (facts.verb(words::LOOKING).is_some() || !facts.has_verb()) {
        let weight = if facts.starts() { 2 } else { 5 };
        case.add(
            Read,
            weight,
            format!("its operationId starts with `{}`", facts.id_verb),
        );
    }
    if facts.is_call && !facts.has_verb() {
        case.add(
            Read,
            3,
            format!("`{}` has no verb: it is a query", facts.tail()),
        );
    }
    if let Some(phrase) = facts.says(words::HARMLESS_PHRASES) {
        case.add(Read, 5, format!("its text says “{phrase}”"));
        case.add(Monetary, -4, format!("its text says “{phrase}”"));
    }
    if facts.answers_list {
        case.add(Read, 4, "its response is the same list as that of GET");
        case.add(Create, -3, "its response is the same list as that of GET");
    }
    if let Some(name) = facts.request.find_top(words::PAGING) {
        case.add(
            Read,
            2,
            format!("`{name}` in its body selects a part of a list"),
        );
    }
    let starts = |phrase: &&&str| facts.summary.starts_with(**phrase);
    if let Some(phrase) = words::LOOKING_PHRASES.iter().find(starts) {
        let weight = if phrase.contains("whether") { 6 } else { 3 };
        case.add(
            Read,
            weight,
            format!("its summary starts with “{}”", phrase.trim()),
        );
    }
    if let Some(name) = facts.secret() {
        let reason = format!("its response contains a secret, in `{name}`");
        case.add(Read, -3, reason);
    }
    if facts.is_made() {
        case.add(
            Read,
            -4,
            "it returns 201 or a Location: it creates a resource",
        );
    }
    if facts.has_key() {
        case.add(Read, -3, "it already accepts an idempotency key");
    }
}

/// A summary or id such as `Screen a member`, with a response that is not the member.
fn weigh_leading_verb(facts: &Facts<'_>, case: &mut Case) {
    let is_answered = facts.status == 200 && facts.has_answer && !facts.answers_parent;
    let is_act = facts.has_verb() || facts.names_new() || facts.secret().is_some();
    if let Some(word) = facts
        .leading_verb(words::LOOKING)
        .filter(|_| is_answered && !is_act)
    {
        case.add(Read, 3, format!("its name starts with `{word}`"));
    }
}

fn verb(facts: &Facts<'_>, case: &mut Case) {
    let tail = plain(facts.tail());
    let is_command = facts.is_command && facts.verb(words::MOVING).is_some();
    let is_act = words::MOVING.contains(&tail.as_str()) || is_command || facts.handling().is_some();
    let find = |word: &str| words::LOOKING.iter().find(|it| **it == word).copied();
    let word = facts
        .verb(words::LOOKING)
        .or_else(|| find(&plain(&singular(facts.tail()))))
        .or_else(|| find(&singular(&last_word(facts.tail()))));
    // `/simulations/fees`: a path below a read-only noun is read-only, too.
    let above = facts.noun(facts.parent(), words::LOOKED_AT);
    let above = above.filter(|_| !facts.is_below_item && facts.status != 201);
    let Some(word) = word.or(above).filter(|_| !facts.is_item && !is_act) else {
        return;
    };
    // `convert-to-order` that creates an order is not a read.
    let weight = if facts.starts() { 2 } else { 5 };
    case.add(Read, weight, format!("`{word}` in the path only reads"));
    if facts.status != 201 {
        case.add(Monetary, -10, format!("`{word}` moves no money"));
        case.add(Event, -2, format!("`{word}` is a query, not a delivery"));
        case.add(Transition, -2, format!("`{word}` changes no state"));
    }
}

/// `/transfers/fee`: the response has a fee, the request has none.
fn weigh_looked_up_value(facts: &Facts<'_>, case: &mut Case) {
    let Some(word) = facts.looked_up_value() else {
        return;
    };
    let reason = format!("`{word}` is requested: only the response contains it");
    case.add(Read, 6, &reason);
    case.add(Monetary, -10, reason);
}

fn answer(facts: &Facts<'_>, case: &mut Case) {
    if facts.status != 200 || !facts.has_answer {
        return;
    }
    let has_id = facts.response.has_id();
    let is_judgement = facts.response.has_flag
        && facts.response.top.len() <= 3
        && !facts.has_verb()
        && !facts.is_acknowledged;
    if is_judgement && !has_id {
        case.add(Read, 5, "its response is yes or no");
        case.add(Monetary, -8, "its response is yes or no");
    }
    if let Some(word) = facts
        .verb(&["test", "try"])
        .filter(|_| !has_id && facts.has_body)
    {
        case.add(Read, 6, format!("`{word}` returns its result"));
    }
    if facts.is_list {
        case.add(Read, 3, "its response is a list");
    } else if facts.response.has_list
        && (facts.response.find_top(words::PAGED).is_some() || facts.response.top.len() <= 2)
        && !has_id
    {
        case.add(Read, 3, "its response is a page of a list");
    }
    if let Some(name) = facts
        .response
        .find_top(words::JUDGEMENT)
        .filter(|_| !has_id)
    {
        case.add(
            Read,
            3,
            format!("its response contains a judgement, in `{name}`"),
        );
    } else if facts.answers_values() {
        let reason = "its response contains values, and no resource or state";
        case.add(Read, 3, reason);
        if facts.response.ending(&["balance"]).is_none() {
            case.add(Monetary, -3, reason);
        }
    }
    if !has_id && facts.answer.is_none() && facts.has_body {
        case.add(Read, 1, "its response contains no id of a created resource");
        case.add(
            Create,
            -1,
            "its response contains no id of a created resource",
        );
    }
}

/// A GET with a side effect, such as a confirmation link in a mail.
fn acting_get(facts: &Facts<'_>, case: &mut Case) {
    let acts = [
        "confirm",
        "unsubscribe",
        "activate",
        "approve",
        "accept",
        "cancel",
        "logout",
        "verify",
        "reject",
    ];
    let word = acts
        .into_iter()
        .find(|word| crate::text::words(facts.tail()).iter().any(|it| it == word));
    if let Some(word) = word.filter(|_| !facts.is_item && !facts.has_answer) {
        case.add(
            Transition,
            6,
            format!(
                "`{word}` in the path is an action, although the method is {}",
                facts.method
            ),
        );
        case.add(Read, -4, "its response contains no data");
    }
}
