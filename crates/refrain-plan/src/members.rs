//! Member names of request and response bodies.

use std::{collections::HashMap, rc::Rc};

use refrain_openapi::{Member, Node, Schema};

use crate::{
    text::{last_word, plain},
    tongue::english,
    words as lists,
};

/// Limits of the walk through a schema: its depth, and the number of members.
const DEPTH_MAX: usize = 4;
const MEMBERS_MAX: usize = 300;

/// A member or header name, in a form to compare and in a form to display.
#[derive(Debug)]
pub(crate) struct Name {
    /// Translated to English, in lower case, without separators.
    pub(crate) plain: String,
    /// Original spelling in the document.
    pub(crate) own: String,
    /// Last word of the original name, in lower case.
    last: String,
}

impl Name {
    pub(crate) fn of(own: &str) -> Self {
        Self {
            plain: plain(&english(own)),
            own: own.into(),
            last: last_word(own),
        }
    }

    /// Whether the name is an identifier: `paymentId`, `otpReference`, `entryNo`, but not `paid`.
    /// Ids of a single call, such as `requestId`, do not count.
    pub(crate) fn is_id(&self) -> bool {
        let last = self.last.as_str();
        let is_number = self.plain != last && ["no", "nr", "uuid", "guid"].contains(&last);
        let is_id = self.plain.ends_with("id") && !lists::NO_IDS.contains(&last);
        let is_of_call = ["requestid", "traceid", "correlationid"].contains(&self.plain.as_str());
        !is_of_call && (is_id || is_number || last == "reference")
    }
}

/// Cache of names and schema members: operations share schemas, and schemas share member names.
#[derive(Debug, Default)]
pub(crate) struct Known<'d> {
    names: HashMap<&'d str, Rc<Name>>,
    /// Keyed by the address of the schema's node in the document.
    members: HashMap<*const Node, Rc<Members>>,
}

impl<'d> Known<'d> {
    pub(crate) fn name(&mut self, own: &'d str) -> Rc<Name> {
        let name = self.names.entry(own);
        name.or_insert_with(|| Rc::new(Name::of(own))).clone()
    }

    pub(crate) fn members(&mut self, schema: Option<Schema<'d>>) -> Rc<Members> {
        let Some(schema) = schema else {
            return Rc::default();
        };
        let place: *const Node = schema.view().node();
        if let Some(known) = self.members.get(&place) {
            return known.clone();
        }
        let mut members = Members::default();
        schema.walk(DEPTH_MAX, MEMBERS_MAX, |member| {
            members.add(self.name(member.name), member);
        });
        let members = Rc::new(members);
        self.members.insert(place, members.clone());
        members
    }
}

/// Member names of one schema.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// Names at every depth, up to `DEPTH_MAX`.
    pub(crate) all: Vec<Rc<Name>>,
    /// Names at the top level.
    pub(crate) top: Vec<Rc<Name>>,
    /// Number of top-level members that are timestamps.
    pub(crate) times: usize,
    /// Whether a top-level member is a boolean.
    pub(crate) has_flag: bool,
    /// Whether a top-level member is a list of objects.
    pub(crate) has_list: bool,
}

impl Members {
    fn add(&mut self, name: Rc<Name>, member: Member<'_, '_>) {
        if member.path.len() == 1 {
            let is_time = matches!(member.schema.format(), Some("date-time"))
                || ["at", "time", "timestamp", "created"].contains(&name.last.as_str());
            self.times += usize::from(is_time);
            self.has_flag |= member.schema.is("boolean");
            let items = member.schema.items();
            self.has_list |=
                items.is_some_and(|items| items.is("object") || !items.properties().is_empty());
            self.top.push(name.clone());
        }
        self.all.push(name);
    }

    /// First member, at any depth, whose name is in `list`.
    pub(crate) fn find(&self, list: &[&str]) -> Option<&str> {
        first(&self.all, |name| list.contains(&name))
    }

    pub(crate) fn find_top(&self, list: &[&str]) -> Option<&str> {
        first(&self.top, |name| list.contains(&name))
    }

    /// Whether a top-level member is an identifier.
    pub(crate) fn has_id(&self) -> bool {
        self.top.iter().any(|it| it.is_id())
    }

    /// Whether a top-level member is an identifier or a list of identifiers.
    pub(crate) fn names(&self) -> bool {
        self.has_id() || self.top.iter().any(|it| it.plain.ends_with("ids"))
    }

    /// First member, at any depth, whose name ends with an entry of `list`.
    pub(crate) fn ending(&self, list: &[&str]) -> Option<&str> {
        first(&self.all, |name| list.iter().any(|end| name.ends_with(end)))
    }
}

/// Original spelling of the first name that satisfies `is_wanted`.
pub(crate) fn first(names: &[Rc<Name>], is_wanted: impl Fn(&str) -> bool) -> Option<&str> {
    let found = names.iter().find(|it| is_wanted(&it.plain));
    found.map(|it| it.own.as_str())
}
