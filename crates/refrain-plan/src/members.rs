//! The names that requests and answers are made of.

use refrain_openapi::Schema;

use crate::{
    text::{plain, words},
    tongue::english,
    words as lists,
};

/// How deep and how far schemas are looked through.
const DEPTH_MAX: usize = 4;
const MEMBERS_MAX: usize = 300;

/// A name, to be compared and to be shown.
#[derive(Debug, Clone)]
pub(crate) struct Name {
    /// In English and lower case, without what stands between words.
    pub(crate) plain: String,
    /// As the document writes it.
    pub(crate) own: String,
}

impl Name {
    pub(crate) fn of(own: &str) -> Self {
        Self {
            plain: plain(&english(own)),
            own: own.into(),
        }
    }

    /// Whether it names a thing: `paymentId`, `otpReference`, but not `paid`.
    pub(crate) fn is_id(&self) -> bool {
        let last = words(&self.own).pop().unwrap_or_default();
        self.plain.ends_with("id") && !lists::NO_IDS.contains(&last.as_str()) || last == "reference"
    }
}

/// The names of a schema's members.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// All of them, however deep.
    pub(crate) all: Vec<Name>,
    /// Those at the top.
    pub(crate) top: Vec<Name>,
    /// How many at the top are dates and times.
    pub(crate) times: usize,
    /// Whether a member at the top is yes or no.
    pub(crate) has_flag: bool,
    /// Whether a member at the top is a list of objects.
    pub(crate) has_list: bool,
}

impl Members {
    pub(crate) fn of(schema: Option<Schema<'_>>) -> Self {
        let mut members = Self::default();
        let Some(schema) = schema else { return members };
        schema.walk(DEPTH_MAX, MEMBERS_MAX, |member| {
            let name = Name::of(member.name);
            let ends = words(member.name).pop().unwrap_or_default();
            let is_time = matches!(member.schema.format(), Some("date-time"))
                || ["at", "time", "timestamp", "created"].contains(&ends.as_str());
            if member.path.len() == 1 {
                members.times += usize::from(is_time);
                members.has_flag |= member.schema.is("boolean");
                let items = member.schema.items();
                members.has_list |=
                    items.is_some_and(|items| items.is("object") || !items.properties().is_empty());
                members.top.push(name.clone());
            }
            members.all.push(name);
        });
        members
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
        self.top.iter().any(Name::is_id)
    }

    /// The first member whose name ends as one of the list.
    pub(crate) fn ending(&self, list: &[&str]) -> Option<&str> {
        first(&self.all, |name| list.iter().any(|end| name.ends_with(end)))
    }
}

/// The first name that is wanted, as the document writes it.
pub(crate) fn first(names: &[Name], is_wanted: impl Fn(&str) -> bool) -> Option<&str> {
    let found = names.iter().find(|it| is_wanted(&it.plain));
    found.map(|it| it.own.as_str())
}
