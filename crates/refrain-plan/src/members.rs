//! The names that requests and answers are made of.

use std::{collections::HashMap, rc::Rc};

use refrain_openapi::{Member, Node, Schema};

use crate::{
    text::{last_word, plain},
    tongue::english,
    words as lists,
};

/// How deep and how far schemas are looked through.
const DEPTH_MAX: usize = 4;
const MEMBERS_MAX: usize = 300;

/// A name, to be compared and to be shown.
#[derive(Debug)]
pub(crate) struct Name {
    /// In English and lower case, without what stands between words.
    pub(crate) plain: String,
    /// As the document writes it.
    pub(crate) own: String,
    /// Its last word as the document has it, in lower case.
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

    /// Whether it names a thing: `paymentId`, `otpReference`, `entryNo`, but not `paid`.
    pub(crate) fn is_id(&self) -> bool {
        let last = self.last.as_str();
        let is_number = self.plain != last && ["no", "nr", "uuid", "guid"].contains(&last);
        let is_id = self.plain.ends_with("id") && !lists::NO_IDS.contains(&last);
        let is_of_call = ["requestid", "traceid", "correlationid"].contains(&self.plain.as_str());
        !is_of_call && (is_id || is_number || last == "reference")
    }
}

/// What was found out already: operations share their schemas, and schemas the names of their members.
#[derive(Debug, Default)]
pub(crate) struct Known<'d> {
    names: HashMap<&'d str, Rc<Name>>,
    /// By the place of the schema in its document.
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

/// The names of a schema's members.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// All of them, however deep.
    pub(crate) all: Vec<Rc<Name>>,
    /// Those at the top.
    pub(crate) top: Vec<Rc<Name>>,
    /// How many at the top are dates and times.
    pub(crate) times: usize,
    /// Whether a member at the top is yes or no.
    pub(crate) has_flag: bool,
    /// Whether a member at the top is a list of objects.
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

    /// The first member that a list names.
    pub(crate) fn find(&self, list: &[&str]) -> Option<&str> {
        first(&self.all, |name| list.contains(&name))
    }

    pub(crate) fn find_top(&self, list: &[&str]) -> Option<&str> {
        first(&self.top, |name| list.contains(&name))
    }

    /// Whether a member at the top names a thing.
    pub(crate) fn has_id(&self) -> bool {
        self.top.iter().any(|it| it.is_id())
    }

    /// Whether a member at the top names a thing, or several.
    pub(crate) fn names(&self) -> bool {
        self.has_id() || self.top.iter().any(|it| it.plain.ends_with("ids"))
    }

    /// The first member whose name ends as one of the list.
    pub(crate) fn ending(&self, list: &[&str]) -> Option<&str> {
        first(&self.all, |name| list.iter().any(|end| name.ends_with(end)))
    }
}

/// The first name that is wanted, as the document writes it.
pub(crate) fn first(names: &[Rc<Name>], is_wanted: impl Fn(&str) -> bool) -> Option<&str> {
    let found = names.iter().find(|it| is_wanted(&it.plain));
    found.map(|it| it.own.as_str())
}
