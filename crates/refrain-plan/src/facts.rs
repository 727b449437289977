//! Facts about one operation, extracted from the description for classification.

use std::rc::Rc;

use refrain_openapi::{Kind, Operation, Schema};

use crate::{
    envelope::opened,
    members::{Known, Members, Name, first},
    segments::{Segments, id_verb},
    surroundings::Surroundings,
    text::{plain, singular, words},
    verbs::noun_of,
    words as lists,
};

/// Facts about one operation.
#[derive(Debug)]
pub(crate) struct Facts<'d> {
    pub(crate) method: String,
    pub(crate) kind: Kind,
    /// Literal segments of the path, with `:verb` as a segment of its own.
    pub(crate) segments: Vec<String>,
    /// Noun of each literal segment, in the singular: the whole segment, and its last word.
    pub(crate) nouns: Vec<(String, String)>,
    /// Words of the last literal segment that may be its verb.
    pub(crate) verbs: Vec<String>,
    /// Whether the path ends with a path parameter.
    pub(crate) is_item: bool,
    /// Whether a path parameter stands directly before the last literal segment.
    pub(crate) is_below_item: bool,
    /// Whether a path parameter stands anywhere before the last literal segment.
    pub(crate) is_in_item: bool,
    /// Whether the last segment is a function call: `/tasks:query`, `/tasks.query`.
    pub(crate) is_call: bool,
    /// Whether the last segment is a command, in an RPC-style API: `ArchiveProject`.
    pub(crate) is_command: bool,
    /// Whether the API is a financial one: at least a third of the operations that create something have an amount.
    pub(crate) is_of_money: bool,
    /// Whether most requests to neighbouring paths, or with the same tag, are events.
    pub(crate) is_among_events: bool,
    /// Whether the same path also has GET or DELETE: then it is a resource, not an action.
    pub(crate) has_siblings: bool,
    /// Whether the path is below a managed list of webhooks, callbacks or similar.
    pub(crate) is_below_managed: bool,
    /// Whether the operation requires no authentication, although others do.
    pub(crate) is_open: bool,
    /// Parent paths and tags: operations that share one may be of the same class.
    pub(crate) groups: Vec<String>,
    /// Whether the document has a path that appends one path parameter to this one.
    pub(crate) has_items: bool,
    /// Whether the path is an item of a list that has no POST.
    pub(crate) is_made_here: bool,
    /// Whether the same path has a GET.
    pub(crate) is_readable: bool,
    pub(crate) is_managed: bool,
    /// Summary and description, in lower case.
    pub(crate) prose: String,
    pub(crate) summary: String,
    /// Words of the `operationId`.
    pub(crate) id: Vec<String>,
    /// Verb of the `operationId`: `search` of `searchFlightOffers`, `create` of `Payouts_Create`.
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
    /// Whether the response has a schema.
    pub(crate) has_answer: bool,
    /// Whether the response has no schema, or only acknowledges receipt.
    pub(crate) is_acknowledged: bool,
    /// Name of the response schema; for a list, of its items.
    pub(crate) answer: Option<String>,
    /// Whether the response is the parent resource, as GET returns it.
    pub(crate) answers_parent: bool,
    /// Whether the response is the same list that GET on this path returns.
    pub(crate) answers_list: bool,
    /// Whether the response is an item of the list that GET on this path returns.
    pub(crate) answers_sibling: bool,
    /// Whether the security requirements differ from those of most operations.
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
        let answer = success.as_ref().and_then(|it| it.schema()).map(opened);
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
        let request = known.members(body.and_then(|it| it.schema));
        let tags = operation.tags();
        let tags = tags.iter().map(|tag| format!("tag {tag}"));
        let has_location = has_headers("location");
        let has_items = around.has_items(operation.path());
        // `POST /payments/{product}` that creates something: each product has a list of its own.
        let is_list_of_kind =
            operation.method() == "POST" && (has_items || status == 201 || has_location);
        let first = path.literal.last().map(|it| words(it));
        let first = first.and_then(|it| it.into_iter().next());
        let is_command = around.is_of_calls && first.is_some_and(|it| lists::is_verb(&it));
        let mut facts = Self {
            method: operation.method().into(),
            kind: operation.kind(),
            id: operation.id().map(words).unwrap_or_default(),
            id_verb: operation.id().map(id_verb).unwrap_or_default(),
            is_item: path.is_item && !is_list_of_kind,
            is_below_item: path.is_below_item,
            is_in_item: path.is_in_item || is_command && request.names(),
            is_call: path.is_call,
            is_command,
            is_of_money: false,
            is_among_events: false,
            has_items,
            has_siblings: around.has_siblings(operation.path()),
            is_below_managed: around.is_below_managed(operation.path(), lists::DELIVERED),
            is_open: around.is_open(operation),
            groups: path.folders.into_iter().chain(tags).collect(),
            is_made_here: around.is_made_here(operation.path(), answer),
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
            request,
            is_acknowledged: answer.is_none() || is_receipt(&response),
            status,
            has_location,
            is_list: answer.is_some_and(|it| it.is("array")),
            has_answer: answer.is_some(),
            answer: answer.map(item).and_then(|it| it.name()).map(plain),
            answers_parent: answer.is_some_and(|it| around.is_parent(operation.path(), it))
                || answers_named(operation.path(), &response),
            answers_list: answer.is_some_and(|it| around.is_list(operation.path(), it)),
            answers_sibling: answer.is_some_and(|it| around.is_sibling(operation.path(), it)),
            response,
            is_apart: around.is_apart(operation),
            extensions: operation
                .extensions()
                .map(|(name, node)| (name, node.as_bool() != Some(false)))
                .collect(),
            nouns: path.literal.iter().map(|it| noun_of(it)).collect(),
            verbs: Vec::new(),
            segments: path.literal,
        };
        facts.verbs = facts.likely_verbs();
        facts
    }

    /// Last literal segment: the action, or the kind of resource.
    pub(crate) fn tail(&self) -> &str {
        self.segments.last().map_or("", String::as_str)
    }

    /// Literal segment before the last one.
    pub(crate) fn parent(&self) -> &str {
        let at = self.segments.len().checked_sub(2);
        at.and_then(|at| self.segments.get(at))
            .map_or("", String::as_str)
    }

    /// Whether the response says that something was created. A redirect with a `Location` does not count.
    pub(crate) fn is_made(&self) -> bool {
        self.status == 201 || self.has_location && self.status < 300
    }

    /// Whether the operation creates something, now or later, whose id is in the response.
    pub(crate) fn starts(&self) -> bool {
        (self.is_made() || self.status == 202) && self.names_new()
    }

    /// Whether the response has only values, with no sign of a resource or an action.
    pub(crate) fn answers_values(&self) -> bool {
        let answer = &self.response;
        let is_state = |name: &str| lists::EVENT_STATE.iter().any(|it| name.ends_with(it));
        let is_thing = answer.has_id()
            || self.answers_parent
            || self.is_acknowledged
            || first(&answer.all, is_state).is_some()
            || self.secret().is_some()
            || self.leading_verb(lists::WRITING).is_some();
        let is_list = self.is_list || answer.has_list || answer.has_flag;
        let is_told = self.status == 200 && self.has_body && !answer.top.is_empty();
        is_told && !self.has_verb() && !is_thing && !is_list
    }

    /// Whether the response has an id that the request does not have.
    pub(crate) fn names_new(&self) -> bool {
        let is_sent = |it: &Name| self.request.all.iter().any(|sent| sent.plain == it.plain);
        let mut ids = self.response.top.iter().filter(|it| it.is_id());
        ids.any(|it| !is_sent(it)) && !self.answers_parent
    }

    /// Member of the response that holds a secret or token; page tokens do not count.
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

    /// Value named by the last segment, if only the response has it: a lookup such as `/transfers/fee`.
    pub(crate) fn looked_up_value(&self) -> Option<&'static str> {
        let word = self.noun(self.tail(), lists::ASKED)?;
        let is_there = |it: &Members| first(&it.top, |name| name.ends_with(word)).is_some();
        let is_asked = self.status == 200 && !self.is_in_item && !self.is_item;
        (is_asked && is_there(&self.response) && !is_there(&self.request)).then_some(word)
    }

    /// Whether it is a POST, PUT or PATCH that clients send to the API.
    pub(crate) fn is_sent(&self) -> bool {
        self.kind == Kind::Path && matches!(self.method.as_str(), "POST" | "PUT" | "PATCH")
    }

    pub(crate) fn says(&self, phrases: &'static [&'static str]) -> Option<&'static str> {
        phrases
            .iter()
            .find(|phrase| self.prose.contains(**phrase))
            .copied()
    }

    /// Whether clients can already send an idempotency key.
    pub(crate) fn has_key(&self) -> bool {
        self.headers
            .iter()
            .any(|it| it.plain.contains("idempotency") || it.plain == "paypalrequestid")
            || self.request.find_top(&["idempotencykey"]).is_some()
    }

    /// Whether the body only has descriptive members, such as notes and tags.
    pub(crate) fn only_labels(&self) -> bool {
        let top = &self.request.top;
        !top.is_empty()
            && top
                .iter()
                .all(|name| lists::LABELS.contains(&name.plain.as_str()))
    }
}

/// Whether a response is about the resource of the last path parameter, such as `{billId}`:
/// the first id of the response has the same name.
fn answers_named(path: &str, answer: &Members) -> bool {
    let name = path
        .rsplit_once('}')
        .and_then(|(above, _)| above.rsplit_once('{'));
    let Some(name) = name.map(|(_, name)| plain(name)) else {
        return false;
    };
    let id = answer.top.iter().find(|it| it.is_id());
    name != "id" && id.is_some_and(|it| plain(&it.own) == name)
}

/// Whether a response only acknowledges receipt.
fn is_receipt(answer: &Members) -> bool {
    let is_known = |it: &Rc<Name>| lists::RECEIPT.contains(&it.plain.as_str());
    (1..=3).contains(&answer.top.len()) && answer.top.iter().all(is_known)
}
