//! The six stages: what each detects, and what it asks.

use std::path::{Path, PathBuf};

use refrain::policy::Class;
use serde::Serialize;

use super::{
    ask::{Interview, NoAnswer},
    existing::Existing,
    source::Source,
};
use crate::{find::FoundFiles, plan::Described};

mod operations;
mod settings;

/// The inputs of the guide.
pub(crate) struct Ground<'g> {
    pub(crate) folder: &'g Path,
    pub(crate) found: FoundFiles,
    pub(crate) given: Given,
    pub(crate) existing: Existing,
    pub(crate) source: Source,
}

/// Settings given on the command line.
#[derive(Debug, Default)]
pub(crate) struct Given {
    pub(crate) openapi: Option<PathBuf>,
    pub(crate) upstream: Option<String>,
    pub(crate) store: Option<String>,
}

/// The result of the stages.
#[derive(Debug, Serialize)]
pub(crate) struct Choices {
    /// The description of requests from which the policy is generated.
    #[serde(serialize_with = "named")]
    pub(crate) requests: Option<Described>,
    /// The description of messages from which workers are generated.
    #[serde(serialize_with = "named")]
    pub(crate) messages: Option<Described>,
    /// The user's decisions about operations whose class the plan is unsure of.
    pub(crate) decisions: Vec<Decision>,
    /// Operations whose class is still unsure.
    pub(crate) unsure: Vec<String>,
    pub(crate) upstream: String,
    pub(crate) key_header: String,
    /// Whether requests without a key get a natural key.
    pub(crate) natural_keys: bool,
    pub(crate) store: Vec<String>,
    pub(crate) retention: String,
    pub(crate) scope: String,
    pub(crate) wait: String,
}

fn named<S: serde::Serializer>(
    described: &Option<Described>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let file = described.as_ref().map(|it| &it.file);
    file.serialize(serializer)
}

/// A class that the user chose.
#[derive(Debug, Serialize)]
pub(crate) struct Decision {
    pub(crate) pattern: String,
    /// The class that the description suggests.
    pub(crate) read: Class,
    pub(crate) chosen: Class,
}

/// Prints what a stage is about; silent with `--json`.
pub(crate) trait Tell {
    fn stage(&self, number: usize, title: &str);
    fn say(&self, line: &str);
}

/// Goes through the stages.
///
/// # Errors
/// When the user stops, or a description cannot be read.
pub(crate) fn walk(
    ground: &Ground<'_>,
    interview: &mut Interview,
    tell: &dyn Tell,
) -> Result<Choices, NoAnswer> {
    let found = |number: usize| {
        let lines = ground.source.describe_stage(number);
        lines.iter().for_each(|line| tell.say(line));
    };
    tell.stage(1, "Side effects: which operations change data");
    let (requests, decisions) = operations::requests(ground, interview, tell)?;
    tell.stage(2, "Keys: how a retry is distinguished from a new request");
    found(2);
    let (key_header, natural_keys) = settings::keys(ground, requests.as_ref(), interview, tell)?;
    tell.stage(
        3,
        "Storage and scope: where outcomes are kept, for how long, and for whom",
    );
    found(3);
    let store = settings::store(ground, interview, tell)?;
    let retention = settings::retention(ground, interview, tell)?;
    let scope = settings::scope(ground, interview, tell)?;
    tell.stage(4, "API: what a duplicate gets");
    found(4);
    let upstream = settings::upstream(ground, interview, tell)?;
    let wait = settings::wait(ground, interview, tell)?;
    tell.stage(5, "Consumers: messages that are delivered more than once");
    found(5);
    let messages = operations::messages(ground, interview, tell)?;
    tell.stage(6, "Testing: duplicates sent from outside");
    tell.say(match (&requests, &messages) {
        (Some(_), _) => "`refrain verify` sends the requests of verify.toml; `refrain check --report` reads its result.",
        (None, Some(_)) => "`refrain verify --worker` publishes every kind of duplicate to a queue; `refrain check --report` reads its result.",
        (None, None) => "`refrain verify` sends every kind of duplicate, with --op and --body; `refrain check --report` reads its result.",
    });
    Ok(Choices {
        unsure: operations::unsure(requests.as_ref(), &ground.existing),
        requests,
        messages,
        decisions,
        upstream,
        key_header,
        natural_keys,
        store,
        retention,
        scope,
        wait,
    })
}
