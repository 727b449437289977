//! Whether the API's clients have a current page about retries.

use std::fs;

use refrain_plan::render::{self, Owner, owner};

use super::{Line, ReviewInput};

/// The name that `refrain plan` gives the page.
const PAGE: &str = "retrying-safely.md";

pub(super) fn documented(facts: &ReviewInput) -> Vec<Line> {
    if facts.guarded().all(|it| facts.is_catch_all(it)) {
        let why = "the file names no operation that a page for clients could describe";
        return vec![Line::not_applicable(facts.whole(), why)];
    }
    let path = facts.file.with_file_name(PAGE);
    let place = path.display().to_string();
    let api = facts.described.api();
    let fix = match api {
        Some(api) => format!("run refrain plan {}", api.name),
        None => "document which operations take keys, and what each response asks of the client; refrain plan FILE writes such a page from an API description".into(),
    };
    let Ok(page) = fs::read_to_string(&path) else {
        let why = format!("no {PAGE} beside the file; pages in other places are not checked");
        return vec![Line::advice(facts.whole(), why, fix)];
    };
    let is_stale = api.is_some_and(|api| {
        let fresh = render::markdown(&api.plan, &facts.settings);
        owner(&page) == Owner::Ours && page != fresh
    });
    match is_stale {
        true => {
            let why = "the page does not match the current policy";
            vec![Line::advice(place, why, fix)]
        }
        false => vec![Line::done(place, "the page for clients exists")],
    }
}
