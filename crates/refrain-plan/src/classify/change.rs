//! Evidence that an operation creates, changes the state of, overwrites or deletes something.

use refrain::policy::Class::{Create, Delete, Replace, Transition};

use super::Case;
use crate::{
    facts::Facts,
    text::{is_plural, words as split},
    words,
};

pub(super) fn weigh(facts: &Facts<'_>, case: &mut Case) {
    match facts.method.as_str() {
        "POST" => {
            making(facts, case);
            writing(facts, case);
            moving(facts, case, 5);
        }
        // A verb in the path outweighs the usual meaning of the method.
        "PUT" | "PATCH" => {
            moving(facts, case, 6);
            if facts.only_labels() {
                case.add(Replace, 2, "its body only sets labels");
            }
        }
        _ => {}
    }
}

fn making(facts: &Facts<'_>, case: &mut Case) {
    if facts.is_made() {
        case.add(Create, 3, "it returns 201 or a Location");
    }
    if facts.has_items {
        case.add(
            Create,
            2,
            "there are paths below it for the created resource",
        );
    }
    if facts.answers_sibling {
        case.add(
            Create,
            2,
            "its response equals an item of the list on the same path",
        );
    }
    let last = facts.last();
    if !facts.is_item && !facts.is_call && !facts.is_command && is_plural(&last) {
        case.add(Create, 3, format!("it adds to the list `{}`", facts.tail()));
    }
    let uncounted = facts.noun(facts.tail(), words::UNCOUNTED);
    if let Some(word) = uncounted.filter(|_| facts.has_body && !facts.answers_parent) {
        case.add(Create, 3, format!("it adds to `{word}`"));
    }
    if matches!(
        facts.id_verb.as_str(),
        "create" | "add" | "register" | "new"
    ) {
        case.add(
            Create,
            2,
            format!("its operationId starts with `{}`", facts.id_verb),
        );
    } else if let Some(word) = facts
        .leading_verb(words::MAKING)
        .filter(|it| *it != "post" && !facts.is_item && !facts.has_verb())
    {
        case.add(Create, 2, format!("its name starts with `{word}`"));
    }
    if let Some(word) = facts
        .verb(words::MAKING)
        .filter(|_| facts.handling().is_none())
    {
        case.add(
            Create,
            4,
            format!("`{word}` in the path creates a resource"),
        );
    }
    if facts.response.has_id() && !facts.answers_parent {
        case.add(Create, 1, "its response contains an id");
    }
    // A rotated secret already existed.
    let is_moved = facts.is_in_item && facts.verb(words::MOVING).is_some();
    if let Some(name) = facts.secret().filter(|_| !is_moved) {
        case.add(
            Create,
            3,
            format!("its response contains a secret, in `{name}`"),
        );
    }
    if facts.status == 202 && !facts.is_below_item {
        case.add(Create, 1, "it returns 202: a resource will be created");
    }
}

fn writing(facts: &Facts<'_>, case: &mut Case) {
    if facts.is_item && facts.has_body {
        case.add(Replace, 3, "its path is a single resource, not a list");
        case.add(Create, -2, "its path is a single resource, not a list");
    }
    if facts.is_item && words::WRITING.contains(&facts.id_verb.as_str()) {
        let reason = format!("its operationId starts with `{}`", facts.id_verb);
        case.add(Replace, 3, reason);
    }
    let first = facts.summary.split_whitespace().next().unwrap_or_default();
    let word = words::WRITING
        .iter()
        .find(|word| first.trim_end_matches('s') == **word && **word != "put");
    let is_made = facts.is_made();
    if let Some(word) = word.filter(|_| !is_made) {
        case.add(Replace, 3, format!("its summary starts with “{word}”"));
    }
    if let Some(word) = facts.verb(words::WRITING) {
        let is_act = facts.is_below_item && facts.answers_parent && !facts.has_body;
        let (class, weight) = match is_made {
            _ if is_act => (Transition, 4),
            true => (Replace, 1),
            false => (Replace, 4),
        };
        case.add(class, weight, format!("`{word}` in the path overwrites"));
    }
    if let Some(word) = facts.verb(words::REMOVING) {
        case.add(Delete, 6, format!("`{word}` in the path deletes"));
    }
    let single = facts
        .noun(facts.tail(), words::SINGLE)
        .filter(|_| !facts.is_item && facts.status != 201)
        .filter(|_| {
            facts.looked_up_value().is_none() && (facts.is_below_item || !facts.answers_values())
        });
    let is_one = !is_plural(&facts.last());
    if let Some(word) = single.filter(|_| is_one) {
        case.add(Replace, 4, format!("`{word}` exists once, and is replaced"));
    }
    if facts.only_labels() && facts.is_item {
        case.add(Replace, 2, "its body only sets labels");
    }
}

/// An action whose verb is in no list: it is sent to a resource, takes little input, and creates nothing.
fn acting(facts: &Facts<'_>, case: &mut Case) {
    let last = facts.last();
    let is_made = facts.is_made();
    let is_one = facts.noun(facts.tail(), words::SINGLE).is_some();
    let is_of_thing = facts.is_below_item || facts.answers_parent && !is_one;
    let is_act = is_of_thing && !facts.is_item && !is_plural(&last) && !is_made;
    if is_act && facts.has_siblings && !facts.is_readable && facts.answers_parent {
        let reason = format!(
            "`{}` is an action on a resource, and DELETE undoes it",
            facts.tail()
        );
        case.add(Transition, 5, reason);
    }
    if !is_act || facts.has_siblings || facts.has_items {
        return;
    }
    if facts.method == "POST" && !facts.has_verb() && !facts.is_call {
        let weight = 2 + 2 * i32::from(facts.answers_parent) + 2 * i32::from(!facts.has_body);
        case.add(
            Transition,
            weight,
            format!("`{}` is an action on a resource", facts.tail()),
        );
    }
    if facts.method != "POST" && !facts.has_body && facts.verb(words::MOVING).is_none() {
        let reason = "it has no body, so it writes no content";
        case.add(Transition, 5, reason);
        case.add(Replace, -2, reason);
    }
}

/// Verb at the start of the id or the summary, if the path has no verb.
fn weigh_leading_verb(facts: &Facts<'_>, case: &mut Case) {
    let is_one = facts.noun(facts.tail(), words::SINGLE).is_some();
    if facts.has_verb() || facts.is_made() || is_one {
        return;
    }
    let is_post = facts.method == "POST";
    // A path that also has GET or DELETE is a resource to write: `PUT /members/{id}/nominee`.
    if facts.method == "PUT" && facts.has_body && facts.has_siblings {
        return;
    }
    let is_list = is_plural(&facts.last()) && !facts.is_item;
    // `Confirm the two amounts` adds nothing to a list if the response is the parent resource.
    let is_added = is_list && is_post && !facts.answers_parent;
    if let Some(word) = facts.leading_verb(words::MOVING).filter(|_| !is_added) {
        let weight = if is_post && !is_list { 4 } else { 5 };
        let class = match words::STARTING.contains(&word) && facts.names_new() {
            true => Create,
            false => Transition,
        };
        case.add(class, weight, format!("its name starts with `{word}`"));
    }
    if let Some(word) = facts.leading_verb(words::REMOVING).filter(|_| is_post) {
        case.add(Delete, 5, format!("its name starts with `{word}`"));
    }
}

/// `PUT /machines/{id}/relocate` with the id `Machines_Relocate`: the last segment is the verb of the id.
fn called(facts: &Facts<'_>, case: &mut Case) {
    let is_written = facts.method != "POST" && !facts.has_siblings && facts.is_below_item;
    let is_one = facts.noun(facts.tail(), words::SINGLE).is_some();
    let said = split(facts.tail());
    let is_verb = said.first() == Some(&facts.id_verb) && facts.id.ends_with(&said);
    let is_verb = is_verb && !is_plural(&facts.last());
    if is_written && is_verb && !is_one && !facts.is_item && !facts.has_verb() {
        let reason = format!("the verb of its operationId is `{}`", facts.id_verb);
        case.add(Transition, 5, reason);
        case.add(Replace, -1, "its operationId has another verb");
    }
}

fn moving(facts: &Facts<'_>, case: &mut Case, weight: i32) {
    acting(facts, case);
    weigh_leading_verb(facts, case);
    called(facts, case);
    let Some(word) = facts.verb(words::MOVING).or_else(|| facts.handling()) else {
        return;
    };
    if words::STARTING.contains(&word) && facts.names_new() && !facts.is_below_item {
        let reason =
            format!("`{word}` in the path starts a process, and the response contains its id");
        case.add(Create, 4, reason);
        return;
    }
    // `/orders/{id}/cancel` changes a resource. Without a path parameter before it, the verb may be a noun.
    let weight = if facts.is_in_item { weight } else { weight - 2 };
    case.add(
        Transition,
        weight,
        format!("`{word}` in the path changes the state"),
    );
    if facts.is_call && facts.is_made() {
        let reason = "its response describes the action, not a new resource";
        case.add(Create, -3, reason);
    }
    if facts.answers_parent {
        case.add(Transition, 2, "its response is the parent resource");
    }
    if !facts.has_body {
        case.add(Transition, 1, "it has no body");
    }
    if facts.method == "PUT" {
        case.add(
            Replace,
            -2,
            format!("`{word}` is an action, not content to write"),
        );
    }
}
