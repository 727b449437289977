//! What a description says about one operation, brought into a form that can be weighed.

use refrain_openapi::{Kind, Operation, Schema};

use crate::{
    surroundings::Surroundings,
    text::{plain, singular, words},
    words as lists,
};

/// How deep and how far schemas are looked through.
const DEPTH_MAX: usize = 4;
const MEMBERS_MAX: usize = 300;

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
    /// Whether a path with this one and a name in braces exists.
    pub(crate) has_items: bool,
    /// Whether the path can also be read with GET.
    pub(crate) is_readable: bool,
    pub(crate) is_managed: bool,
    /// Summary, description and id, in lower case.
    pub(crate) prose: String,
    pub(crate) summary: String,
    /// The first word of the id: `search` of `searchFlightOffers`.
    pub(crate) id_verb: String,
    pub(crate) tags: Vec<String>,
    pub(crate) headers: Vec<String>,
    pub(crate) content_types: Vec<String>,
    pub(crate) has_body: bool,
    pub(crate) request: Members,
    pub(crate) response: Members,
    pub(crate) status: u16,
    pub(crate) has_location: bool,
    pub(crate) is_list: bool,
    /// Whether there is an answer with a schema.
    pub(crate) has_answer: bool,
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

/// The names of a schema's members, without what stands between words.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// All of them, however deep.
    pub(crate) all: Vec<String>,
    /// Those at the top.
    pub(crate) top: Vec<String>,
    /// Words that dates and times have.
    pub(crate) times: usize,
    /// Whether a member at the top is a list of objects.
    pub(crate) has_list: bool,
}

impl Members {
    fn of(schema: Option<Schema<'_>>) -> Self {
        let mut members = Self::default();
        let Some(schema) = schema else { return members };
        schema.walk(DEPTH_MAX, MEMBERS_MAX, |member| {
            let name = plain(member.name);
            let ends = words(member.name).pop().unwrap_or_default();
            let is_time = matches!(member.schema.format(), Some("date-time"))
                || ["at", "time", "timestamp", "created"].contains(&ends.as_str());
            if member.path.len() == 1 {
                members.times += usize::from(is_time);
                let items = member.schema.items();
                members.has_list |=
                    items.is_some_and(|items| items.is("object") || !items.properties().is_empty());
                members.top.push(name.clone());
            }
            members.all.push(name);
        });
        members
    }

    /// The first member that a list names, in full or in its last word.
    pub(crate) fn find(&self, list: &[&str]) -> Option<&str> {
        let found = self.all.iter().find(|name| list.contains(&name.as_str()));
        found.map(String::as_str)
    }

    pub(crate) fn find_top(&self, list: &[&str]) -> Option<&str> {
        let found = self.top.iter().find(|name| list.contains(&name.as_str()));
        found.map(String::as_str)
    }

    /// The first member whose name ends as one of the list.
    pub(crate) fn ending(&self, list: &[&str]) -> Option<&str> {
        let ends = |name: &&String| list.iter().any(|end| name.ends_with(end));
        self.all.iter().find(ends).map(String::as_str)
    }
}

impl<'d> Facts<'d> {
    pub(crate) fn of(operation: &Operation<'d>, around: &Surroundings<'d>) -> Self {
        let (segments, is_item, is_below_item) = segments(operation.path());
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
        let prose = [operation.id(), operation.summary(), operation.description()];
        let prose: Vec<_> = prose.into_iter().flatten().map(str::to_lowercase).collect();
        let item = |schema: Schema<'d>| schema.items().unwrap_or(schema);
        Self {
            method: operation.method().into(),
            kind: operation.kind(),
            id_verb: operation
                .id()
                .and_then(|id| words(id).into_iter().next())
                .unwrap_or_default(),
            is_item,
            is_below_item,
            has_items: around.has_items(operation.path()),
            is_readable: around.is_readable(operation.path()),
            is_managed: around.is_managed(operation.path()),
            prose: prose.join(". "),
            summary: operation.summary().unwrap_or_default().to_lowercase(),
            tags: operation
                .tags()
                .iter()
                .map(|tag| singular(&plain(tag)))
                .collect(),
            headers: headers.map(|it| plain(it.name())).collect(),
            content_types: operation
                .bodies()
                .iter()
                .map(|it| it.content_type.to_lowercase())
                .collect(),
            has_body: body.is_some(),
            request: Members::of(body.and_then(|it| it.schema)),
            response: Members::of(answer),
            status: success
                .as_ref()
                .and_then(|it| it.status.parse().ok())
                .unwrap_or(200),
            has_location: has_headers("location"),
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
            segments,
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

    /// The first word of the last segment that a list names; whole segments count, too.
    pub(crate) fn verb(&self, list: &'static [&'static str]) -> Option<&'static str> {
        let whole = plain(self.tail());
        // `checkin` is no `check`.
        let is_other = |other: &&[&str]| other.contains(&whole.as_str());
        let is_elsewhere = [
            lists::LOOKING,
            lists::MOVING,
            lists::PAYING,
            lists::SOMETIMES_PAYING,
        ]
        .iter()
        .any(is_other);
        match self.is_item {
            true => None,
            false if is_elsewhere => list.iter().find(|it| **it == whole).copied(),
            false => named(self.tail(), list),
        }
    }

    /// Whether a list names the thing, as a whole or by its last word.
    pub(crate) fn noun(
        &self,
        segment: &str,
        list: &'static [&'static str],
    ) -> Option<&'static str> {
        let whole = singular(&plain(segment));
        let last = words(segment)
            .pop()
            .map(|word| singular(&word))
            .unwrap_or_default();
        let find = |word: &str| list.iter().find(|it| **it == word).copied();
        find(&whole).or_else(|| find(&last))
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
            .any(|name| name.contains("idempotency") || name == "paypalrequestid")
            || self.request.find_top(&["idempotencykey"]).is_some()
    }

    /// Whether the body only labels a thing.
    pub(crate) fn only_labels(&self) -> bool {
        let top = &self.request.top;
        !top.is_empty()
            && top
                .iter()
                .all(|name| lists::LABELS.contains(&name.as_str()))
    }
}

/// Whether a segment says one of the words: as a whole, in one of its words, or in the singular.
pub(crate) fn named(segment: &str, list: &'static [&'static str]) -> Option<&'static str> {
    let find = |word: &str| list.iter().find(|it| **it == word).copied();
    find(&plain(segment)).or_else(|| words(segment).iter().find_map(|word| find(word)))
}

/// The literal segments; whether the last is a name in braces, and whether one stands before the last literal.
fn segments(path: &str) -> (Vec<String>, bool, bool) {
    let mut found: Vec<(String, bool)> = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        let (thing, verb) = match part.rsplit_once(':') {
            Some((thing, verb)) if !thing.is_empty() && !verb.contains('}') => (thing, Some(verb)),
            _ => (part, None),
        };
        found.push((thing.into(), thing.starts_with('{')));
        found.extend(verb.map(|verb| (verb.into(), false)));
    }
    let is_item = found.last().is_some_and(|(_, is_name)| *is_name);
    let last = found.iter().rposition(|(_, is_name)| !is_name);
    let is_below = last.is_some_and(|at| at > 0 && found[at - 1].1);
    let literal = found.into_iter().filter(|(_, is_name)| !is_name);
    (literal.map(|(text, _)| text).collect(), is_item, is_below)
}
