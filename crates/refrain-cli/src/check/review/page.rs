//! Whether the API's clients have a current page about retries.

use std::fs;

use refrain_plan::render::{self, Owner, owner};

use super::{Facts, Line};

/// The name that `refrain plan` gives the page.
const PAGE: &str = "retrying-safely.md";

pub(super) fn documented(facts: &Facts) -> Vec<Line> {
    if facts.guarded().all(|it| facts.is_catch_all(it)) {
        let why = "no operation is named that clients could be told of";
        return vec![Line::not_applicable(facts.whole(), why)];
    }
    let path = facts.file.with_file_name(PAGE);
    let place = path.display().to_string();
    let api = facts.described.api();
    let fix = match api {
        Some(api) => format!("run refrain plan {}", api.name),
        None => "tell them which operations take keys, and what each answer wants of them; refrain plan writes such a page from a description".into(),
    };
    let Ok(page) = fs::read_to_string(&path) else {
        let why = format!("there is no {PAGE} beside the file; a page elsewhere is not seen");
        return vec![Line::advice(facts.whole(), why, fix)];
    };
    let is_stale = api.is_some_and(|api| {
        let fresh = render::markdown(&api.plan, &facts.settings);
        owner(&page) == Owner::Ours && page != fresh
    });
    match is_stale {
        true => {
            let why = "the page says something else than the policy that is in force";
            vec![Line::advice(place, why, fix)]
        }
        false => vec![Line::done(place, "a page for clients is there")],
    }
}
