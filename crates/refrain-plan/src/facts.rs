//! What a description says about one operation, brought into a form that can be weighed.

use std::rc::Rc;

use refrain_openapi::{Kind, Operation, Schema};

use crate::{
    members::{Known, Members, Name, first},
    segments::{Segments, id_verb},
    surroundings::Surroundings,
    text::{is_plural, last_word, plain, singular, words},
    words as lists,
};

/// What is known about one operation.
#[derive(Debug)]
pub(crate) struct Facts<'d> {
    pub(crate) method: String,
    pub(crate) kind: Kind,
    /// The literal segments of the path, with `:verb` as a segment of its own.
    pub(crate) segments: Vec<String>,
    /// Whether the path ends with a name in braces.
    pub(crate) is_item: bool,
    /// Whether a name in braces stands before the last segment.
    pub(crate) is_below_item: bool,
    /// Whether a name in braces stands anywhere before the last segment.
    pub(crate) is_in_item: bool,
    /// Whether the last segment is called like a function: `/tasks:query`, `/tasks.query`.
    pub(crate) is_call: bool,
    /// Whether most of what is sent to the paths beside it are events.
    pub(crate) is_among_events: bool,
    /// Whether the very path can be read or removed, too: it is a thing, not an act.
    pub(crate) has_siblings: bool,
    /// Whether it belongs to webhooks, callbacks or the like that are managed here.
    pub(crate) is_below_managed: bool,
    /// Whether it asks for no security, where others do.
    pub(crate) is_open: bool,
    /// The paths above it, and its tags: what stands there with it may be of its kind.
    pub(crate) groups: Vec<String>,
    /// Whether a path with this one and a name in braces exists.
    pub(crate) has_items: bool,
    /// Whether it is one of a list that nothing is sent to.
    pub(crate) is_made_here: bool,
    /// Whether the path can also be read with GET.
    pub(crate) is_readable: bool,
    pub(crate) is_managed: bool,
    /// Summary and description, in lower case.
    pub(crate) prose: String,
    pub(crate) summary: String,
    /// The verb of the id: `search` of `searchFlightOffers`, `create` of `Payouts_Create`.
    pub(crate) id_verb: String,
    pub(crate) tags: Vec<String>,
    pub(crate) headers: Vec<Rc<Name>>,
    pub(crate) content_types: Vec<String>,
    pub(crate) has_body: bool,
    pub(crate) request: Rc<Members>,
    pub(crate) response: Rc<Members>,
    pub(crate) status: u16,
    pub(crate) has_location: bool,
    pub(crate) is_list: bool,
    /// Whether there is an answer with a schema.
    pub(crate) has_answer: bool,
    /// Whether the answer is none, or only says that something was received.
    pub(crate) is_acknowledged: bool,
    /// What the answer is, by name.
    pub(crate) answer: Option<String>,
    /// Whether the answer is what a GET of the thing above gives.
    pub(crate) answers_parent: bool,
    /// Whether the answer is the very list that the path reads with GET.
    pub(crate) answers_list: bool,
    /// Whether the answer is what the list holds that the path reads with GET.
    pub(crate) answers_sibling: bool,
    /// Whether security is less than, or other than, that of the rest.
    pub(crate) is_apart: bool,
    pub(crate) extensions: Vec<(&'d str, bool)>,
}

impl<'d> Facts<'d> {
    pub(crate) fn of(
        operation: &Operation<'d>,
        around: &Surroundings<'d>,
        known: &mut Known<'d>,
    ) -> Self {
        let path = Segments::of(operation.path());
        let body = operation.body();
        let success = operation.success().or_else(|| {
            let responses = operation.responses();
            responses.into_iter().find(|it| it.status.starts_with('3'))
        });
        let answer = success.as_ref().and_then(|it| it.schema());
        let has_headers = |name: &str| {
            success
                .iter()
                .flat_map(|it| it.headers())
                .any(|(it, _)| it.eq_ignore_ascii_case(name))
        };
        let headers = operation
            .parameters()
            .into_iter()
            .filter(|it| it.place() == "header");
        let prose = [operation.summary(), operation.description()];
        let prose: Vec<_> = prose.into_iter().flatten().map(str::to_lowercase).collect();
        let item = |schema: Schema<'d>| schema.items().unwrap_or(schema);
        let status = success
            .as_ref()
            .and_then(|it| it.status.parse().ok())
            .unwrap_or(200);
        let response = known.members(answer);
        let tags = operation.tags();
        let tags = tags.iter().map(|tag| format!("tag {tag}"));
        let has_location = has_headers("location");
        let has_items = around.has_items(operation.path());
        // `POST /payments/{product}` that makes something is a list of its own for each product.
        let is_list_of_kind =
            operation.method() == "POST" && (has_items || status == 201 || has_location);
        Self {
            method: operation.method().into(),
            kind: operation.kind(),
            id_verb: operation.id().map(id_verb).unwrap_or_default(),
            is_item: path.is_item && !is_list_of_kind,
            is_below_item: path.is_below_item,
            is_in_item: path.is_in_item,
            is_call: path.is_call,
            is_among_events: false,
            has_items,
            has_siblings: around.has_siblings(operation.path()),
            is_below_managed: around.is_below_managed(operation.path(), lists::DELIVERED),
            is_open: around.is_open(operation),
            groups: path.folders.into_iter().chain(tags).collect(),
            is_made_here: around.is_made_here(operation.path()),
            is_readable: around.is_readable(operation.path()),
            is_managed: around.is_managed(operation.path()),
            prose: prose.join(". "),
            summary: operation
                .summary()
                .or_else(|| operation.description()?.split(". ").next())
                .unwrap_or_default()
                .to_lowercase(),
            tags: operation
                .tags()
                .iter()
                .map(|tag| singular(&plain(tag)))
                .collect(),
            headers: headers.map(|it| known.name(it.name())).collect(),
            content_types: operation
                .bodies()
                .iter()
                .map(|it| it.content_type.to_lowercase())
                .collect(),
            has_body: body.is_some(),
            request: known.members(body.and_then(|it| it.schema)),
            is_acknowledged: answer.is_none() || is_receipt(&response),
            response,
            status,
            has_location,
            is_list: answer.is_some_and(|it| it.is("array")),
            has_answer: answer.is_some(),
            answer: answer.map(item).and_then(|it| it.name()).map(plain),
            answers_parent: answer.is_some_and(|it| around.is_parent(operation.path(), it)),
            answers_list: answer.is_some_and(|it| around.is_list(operation.path(), it)),
            answers_sibling: answer.is_some_and(|it| around.is_sibling(operation.path(), it)),
            is_apart: around.is_apart(operation),
            extensions: operation
                .extensions()
                .map(|(name, node)| (name, node.as_bool() != Some(false)))
                .collect(),
            segments: path.literal,
        }
    }

    /// The last literal segment: what is done, or to which kind of thing.
    pub(crate) fn tail(&self) -> &str {
        self.segments.last().map_or("", String::as_str)
    }

    /// The segment before it.
    pub(crate) fn parent(&self) -> &str {
        let at = self.segments.len().checked_sub(2);
        at.and_then(|at| self.segments.get(at))
            .map_or("", String::as_str)
    }

    /// The verb of the last segment, where a list names it.
    pub(crate) fn verb(&self, list: &'static [&'static str]) -> Option<&'static str> {
        if self.is_item {
            return None;
        }
        let find = |word: &str| list.iter().find(|it| **it == word).copied();
        let last = last_word(self.tail());
        if lists::LOOKED_AT.contains(&last.as_str()) {
            return find(&last);
        }
        // `checkin` is no `check`.
        let whole = plain(self.tail());
        if lists::is_verb(&whole) {
            return find(&whole);
        }
        let words = words(self.tail());
        let said: Vec<_> = words
            .iter()
            .filter(|it| !lists::MANY.contains(&it.as_str()))
            .collect();
        // `submitScore` submits, but `credit-check` checks: a word that is also a noun may only describe the next.
        match said.first().filter(|it| lists::is_plain_verb(it)) {
            Some(first) => find(first),
            // `open-slots` and `balance_transactions` are lists.
            None if is_plural(&last) => None,
            // So is `payoutSchedule` a thing.
            None if lists::PRICED.contains(&last.as_str())
                && !lists::LOOKING.contains(&last.as_str()) =>
            {
                None
            }
            None => said.iter().find_map(|word| find(word)),
        }
    }

    /// The verb that moves the thing on, since that thing is what it answers with.
    pub(crate) fn handling(&self) -> Option<&'static str> {
        let is_of_thing = self.is_below_item && self.answers_parent && self.status != 201;
        self.verb(lists::HANDLING).filter(|_| is_of_thing)
    }

    /// The secret that the answer hands out.
    pub(crate) fn secret(&self) -> Option<&str> {
        let is_page = |name: &str| {
            ["page", "next", "continu", "sync", "cursor"]
                .iter()
                .any(|it| name.contains(it))
        };
        first(&self.response.all, |name| {
            (name.ends_with("token") || name.ends_with("secret")) && !is_page(name)
        })
    }

    /// The value that the last segment names, where only the answer has it.
    pub(crate) fn asked(&self) -> Option<&'static str> {
        let word = self.noun(self.tail(), lists::ASKED)?;
        let is_there = |it: &Members| first(&it.top, |name| name.ends_with(word)).is_some();
        let is_asked = self.status == 200 && !self.is_in_item && !self.is_item;
        (is_asked && is_there(&self.response) && !is_there(&self.request)).then_some(word)
    }

    /// Whether the last segment says a verb of any list.
    pub(crate) fn has_verb(&self) -> bool {
        lists::VERBS.iter().any(|list| self.verb(list).is_some())
    }

    /// The verb that the id or the summary starts with, where a list names it.
    pub(crate) fn told_verb(&self, list: &'static [&'static str]) -> Option<&'static str> {
        let first = self.summary.split_whitespace().next().unwrap_or_default();
        let find = |word: &str| list.iter().find(|it| **it == word).copied();
        let of_summary = find(first)
            .or_else(|| find(first.strip_suffix('s')?))
            .or_else(|| find(first.strip_suffix("es")?));
        find(&self.id_verb).or(of_summary)
    }

    /// Whether a list names the thing, as a whole or by its last word.
    pub(crate) fn noun(
        &self,
        segment: &str,
        list: &'static [&'static str],
    ) -> Option<&'static str> {
        let whole = singular(&plain(segment));
        let last = singular(&last_word(segment));
        let find = |word: &str| list.iter().find(|it| **it == word).copied();
        find(&whole).or_else(|| find(&last))
    }

    /// Whether it is a request that changes something, sent to the API.
    pub(crate) fn is_sent(&self) -> bool {
        self.kind == Kind::Path && matches!(self.method.as_str(), "POST" | "PUT" | "PATCH")
    }

    pub(crate) fn says(&self, phrases: &'static [&'static str]) -> Option<&'static str> {
        phrases
            .iter()
            .find(|phrase| self.prose.contains(**phrase))
            .copied()
    }

    /// Whether a client can send a key already.
    pub(crate) fn has_key(&self) -> bool {
        self.headers
            .iter()
            .any(|it| it.plain.contains("idempotency") || it.plain == "paypalrequestid")
            || self.request.find_top(&["idempotencykey"]).is_some()
    }

    /// Whether the body only labels a thing.
    pub(crate) fn only_labels(&self) -> bool {
        let top = &self.request.top;
        !top.is_empty()
            && top
                .iter()
                .all(|name| lists::LABELS.contains(&name.plain.as_str()))
    }
}

/// Whether an answer only says that something was received.
fn is_receipt(answer: &Members) -> bool {
    let is_known = |it: &Rc<Name>| lists::RECEIPT.contains(&it.plain.as_str());
    (1..=3).contains(&answer.top.len()) && answer.top.iter().all(is_known)
}

/// Whether a segment says one of the words: as a whole, in one of its words, or in the singular.
pub(crate) fn named(segment: &str, list: &'static [&'static str]) -> Option<&'static str> {
    let find = |word: &str| list.iter().find(|it| **it == word).copied();
    find(&plain(segment)).or_else(|| words(segment).iter().find_map(|word| find(word)))
}
