//! The project's own API descriptions: which of their operations change something, as `refrain plan` classifies them,
//! and whether the file names them.

use std::path::Path;

use refrain::{
    Policy,
    policy::{Class, Operation, Settings},
};
use refrain_openapi::Document;
use refrain_plan::{Consumer, Options, Plan, Planned, render::class_name};

use super::{Line, ReviewInput, or_done};
use crate::find::FoundFiles;

/// The most missing operations that are listed one by one.
const TOLD_MAX: usize = 50;
/// The most reasons that are given for a class.
const REASONS_MAX: usize = 2;

/// The search for the API's description.
pub(super) enum Described {
    Api(Box<Api>),
    /// No description was found.
    Nowhere,
    /// Several descriptions were found, and it is unclear which one applies.
    Several(Vec<String>),
    /// The only description found is unusable, with the reason.
    Unusable(String),
}

/// A description, and the plan of its operations.
pub(super) struct Api {
    pub(super) name: String,
    pub(super) plan: Plan,
    /// Whether `--openapi` named it.
    is_named: bool,
}

impl Described {
    /// Reads the description that `--openapi` named, or the only one found; of several, the only one whose operations the file names.
    ///
    /// # Errors
    /// When the named description cannot be used.
    pub(super) fn find(
        named: Option<&Path>,
        found: &FoundFiles,
        settings: &Settings,
    ) -> Result<Self, String> {
        if let Some(file) = named {
            return Api::read(file, true).map(|it| Self::Api(Box::new(it)));
        }
        let several = match found.descriptions.as_slice() {
            [] => return Ok(Self::Nowhere),
            [only] => {
                let read = Api::read(only, false);
                return Ok(read.map_or_else(Self::Unusable, |it| Self::Api(Box::new(it))));
            }
            several => several,
        };
        let readable = several.iter().filter_map(|it| Api::read(it, false).ok());
        let mut fitting = readable.filter(|it| it.fits(settings));
        match (fitting.next(), fitting.next()) {
            (Some(api), None) => Ok(Self::Api(Box::new(api))),
            _ => {
                let names = several.iter().map(|it| it.display().to_string());
                Ok(Self::Several(names.collect()))
            }
        }
    }

    pub(super) fn api(&self) -> Option<&Api> {
        match self {
            Self::Api(api) => Some(api),
            _ => None,
        }
    }
}

impl Api {
    fn read(file: &Path, is_named: bool) -> Result<Self, String> {
        // Paths in the current folder are shown without `./`.
        let file = file.strip_prefix("./").unwrap_or(file);
        let name = file.display().to_string();
        let document = Document::read(file).map_err(|error| error.to_string())?;
        if document.is_async() {
            return Err(format!(
                "{name}: describes messages, not requests; name an OpenAPI or Swagger document"
            ));
        }
        Ok(Self {
            plan: refrain_plan::plan(&document, &Options::default()),
            name,
            is_named,
        })
    }

    /// Whether the file names one of its operations, as the plan would write it.
    fn fits(&self, settings: &Settings) -> bool {
        let mut patterns = self
            .plan
            .operations
            .iter()
            .filter_map(|it| it.pattern.as_deref());
        patterns.any(|it| settings.policy.operations().any(|rule| rule.name == it))
    }

    /// Every operation that the API serves, with the name of the file's operation for it, if there is one.
    pub(super) fn match_operations(&self, facts: &ReviewInput) -> Result<Vec<Pair<'_>>, String> {
        let named = everything(facts)?;
        let served = self.plan.operations.iter().filter(|it| it.is_served);
        let pairs = served.map(|planned| {
            let Planned { method, path, .. } = planned;
            let found = named.find(method, &format!("{}{path}", self.plan.base));
            let found = found.filter(|it| !facts.is_catch_all(&it.operation));
            let operation = found.map(|it| it.operation.name.clone());
            (planned, operation)
        });
        Ok(pairs.collect())
    }
}

/// A described operation, and the name of the file's operation for it.
type Pair<'a> = (&'a Planned, Option<String>);

/// The consumers in AsyncAPI descriptions, each with the name of its description; unreadable ones are skipped.
pub(super) fn consumers(found: &FoundFiles) -> Vec<(String, Consumer)> {
    let read = found.messages.iter().filter_map(|file| {
        let file = file.strip_prefix("./").unwrap_or(file);
        let document = Document::read(file).ok()?;
        let plan = refrain_plan::plan(&document, &Options::default());
        let name = file.display().to_string();
        Some(plan.consumers.into_iter().map(move |it| (name.clone(), it)))
    });
    read.flatten().collect()
}

pub(super) fn covered(facts: &ReviewInput) -> Vec<Line> {
    let unseen = |why: String, fix: &str| vec![Line::advice(facts.whole(), why, fix)];
    let fix = "pass the API description with --openapi FILE";
    let api = match &facts.described {
        Described::Api(api) => api,
        Described::Nowhere => {
            let why = "no API description was passed, and none is beside the file: paths that the file does not name are not checked";
            return unseen(why.into(), fix);
        }
        Described::Several(names) => {
            let why = format!("found several descriptions: {}", names.join(", "));
            return unseen(why, fix);
        }
        Described::Unusable(why) => return unseen(why.clone(), fix),
    };
    let pairs = match api.match_operations(facts) {
        Ok(pairs) => pairs,
        Err(why) => return unseen(why, "compare by hand"),
    };
    if !api.is_named && !pairs.is_empty() && pairs.iter().all(|(_, named)| named.is_none()) {
        let why = "the file has none of its paths: it may describe another API";
        return vec![Line::advice(&api.name, why, fix)];
    }
    let mutating = pairs
        .iter()
        .filter(|(planned, _)| planned.verdict.class != Class::Read);
    let count = mutating.clone().count();
    let missing: Vec<_> = mutating.filter(|(_, named)| named.is_none()).collect();
    let mut open: Vec<_> = missing
        .iter()
        .take(TOLD_MAX)
        .map(|(planned, _)| uncovered(api, planned))
        .collect();
    if missing.len() > TOLD_MAX {
        let why = format!("{} more operations are missing", missing.len() - TOLD_MAX);
        open.push(Line::open(&api.name, why, "add them, too"));
    }
    let why = format!("the file has every mutating operation ({count})");
    or_done(open, api.name.clone(), why)
}

fn uncovered(api: &Api, planned: &Planned) -> Line {
    let (class, name) = (class_name(planned.verdict.class), planned.name());
    let is = match planned.verdict.is_sure() {
        true => "is",
        false => "may be",
    };
    let why = format!(
        "{name} {is} {class} ({}), but the file has no operation for it",
        reasons(planned)
    );
    let pattern = planned.pattern.as_deref().unwrap_or(&name);
    let fix = format!(
        "add [[operation]] match = \"{pattern}\" with its class, or run refrain plan {}",
        api.name
    );
    Line::open(&api.name, why, fix)
}

/// Lines for operations whose class differs between the file and the description.
pub(super) fn differing(facts: &ReviewInput) -> Vec<Line> {
    let Some(api) = facts.described.api() else {
        return Vec::new();
    };
    // `covered` already reports an error here.
    let pairs = api.match_operations(facts).unwrap_or_default();
    let lines = pairs.into_iter().filter_map(|(planned, named)| {
        let operations = facts.settings.policy.operations();
        let mut operations = operations.filter(|it| Some(&it.name) == named.as_ref());
        let written = operations.next()?;
        let class = written.class?;
        let verdict = &planned.verdict;
        (verdict.is_sure() && verdict.class != class)
            .then(|| differs(facts, api, planned, written, class))
    });
    lines.collect()
}

fn differs(
    facts: &ReviewInput,
    api: &Api,
    planned: &Planned,
    written: &Operation,
    class: Class,
) -> Line {
    let (name, place) = (&written.name, facts.location(&written.name));
    let (is, reads) = (class_name(class), class_name(planned.verdict.class));
    let reasons = reasons(planned);
    let mark = facts.marks.of_operation(name);
    match mark.is_some_and(|it| it.class == is) {
        // Nobody chose this class: the plan set it from an older description.
        true => Line::open(
            place,
            format!(
                "{name} was planned as {is}, but the description now suggests {reads} ({reasons})"
            ),
            format!("run refrain plan {}", api.name),
        ),
        false => Line::advice(
            place,
            format!("{name} is {is} in the file, but the description suggests {reads} ({reasons})"),
            "make sure that this is intended",
        ),
    }
}

fn reasons(planned: &Planned) -> String {
    let verdict = &planned.verdict;
    let speaking = verdict
        .evidence
        .iter()
        .filter(|it| it.class == verdict.class && it.weight > 0);
    let texts: Vec<_> = speaking
        .take(REASONS_MAX)
        .map(|it| it.text.as_str())
        .collect();
    texts.join("; ")
}

/// The same policy with every operation guarded, so that unguarded ones are found, too.
fn everything(facts: &ReviewInput) -> Result<Policy, String> {
    let operations = facts.settings.policy.operations().cloned();
    let operations = operations.map(|operation| Operation {
        guarded: true,
        ..operation
    });
    Policy::new(operations.collect()).map_err(|error| error.to_string())
}
