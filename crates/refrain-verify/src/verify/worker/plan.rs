//! The test plan for a consumer: what is tested, and how.

use std::time::Duration;

use refrain::{
    Guarantee,
    consume::Message,
    policy::{Address, schemes::Backend},
};

use super::CASES;
use crate::verify::plan::{CONCURRENT_MAX, Counting, Process, Trust};

/// Maximum number of consumers that each receive every message.
pub const CONSUMERS_MAX: u64 = 100;

/// Placeholder for the message id.
const ID: &str = "{id}";
/// Placeholder for the publication number, which differs on every publish.
const NUMBER: &str = "{n}";

/// A test plan for a consumer.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Plan {
    /// Address of the broker.
    pub broker: Address,
    /// The queue, stream or subject that the consumer reads.
    pub queue: String,
    /// Random seed of ids.
    pub seed: u64,
    /// How effects are counted; `{id}` is replaced.
    pub counting: Counting,
    /// Which TLS certificates to trust when counting effects.
    pub trust: Trust,
    /// The consumer's process, if it may be killed.
    pub process: Process,
    /// Guarantee of the consumer.
    pub guarantee: Guarantee,
    /// Number of consumers that each receive every message and whose effects are counted.
    pub consumers: u64,
    /// Timeout for a message to have its effect, including a redelivery.
    pub patience: Duration,
    /// Delay of the late duplicate.
    pub late: Duration,
    /// How long the count of effects must stay unchanged.
    pub settle: Duration,
    /// Number of concurrent duplicates.
    pub concurrent: usize,
    /// Command that redrives dead letters; without one the message is published again.
    pub redrive: Option<String>,
    /// Ids of the cases to run; empty for all.
    pub only: Vec<String>,
    /// The messages under test.
    pub messages: Vec<Template>,
}

/// A message template with placeholders: `{id}` for its id, `{n}` for the publication number.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Template {
    /// Name in the report.
    pub name: String,
    /// A body that the consumer handles.
    pub body: Vec<u8>,
    /// Headers of each message.
    pub headers: Vec<(String, String)>,
    /// Content type of the body.
    pub content_type: Option<String>,
    /// Message id in the transport.
    pub message_id: Option<String>,
    /// A body that takes the consumer longer to process.
    pub slow_body: Option<Vec<u8>>,
    /// A body that fails on its first delivery and succeeds on redelivery.
    pub failing_body: Option<Vec<u8>>,
    /// A body that fails until the consumer dead-letters it, and succeeds after that.
    pub poison_body: Option<Vec<u8>>,
}

impl Plan {
    /// Returns a plan with default times and no messages.
    #[must_use]
    pub fn new(broker: impl Into<Address>, queue: &str, seed: u64) -> Self {
        Self {
            broker: broker.into(),
            queue: queue.into(),
            seed,
            counting: Counting::Answers,
            trust: Trust::default(),
            process: Process::default(),
            guarantee: Guarantee::AtLeastOnce,
            consumers: 1,
            patience: Duration::from_secs(15),
            late: Duration::from_secs(2),
            settle: Duration::from_millis(300),
            concurrent: 10,
            redrive: None,
            only: Vec::new(),
            messages: Vec::new(),
        }
    }

    /// Checks that the plan can be run.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.counting == Counting::Answers {
            return Err("a consumer returns no response, so its effects must be counted: set --effects-url or --effects-sql".into());
        }
        if !(2..=CONCURRENT_MAX).contains(&self.concurrent) {
            return Err(format!(
                "the number of concurrent duplicates must be 2 to {CONCURRENT_MAX}"
            ));
        }
        if !(1..=CONSUMERS_MAX).contains(&self.consumers) {
            return Err(format!("--consumers must be 1 to {CONSUMERS_MAX}"));
        }
        if self.messages.is_empty() {
            return Err("no message to publish; set --body '{\"id\":\"{id}\"}', or --config FILE with [[message]]".into());
        }
        let known = |id: &&String| !CASES.iter().any(|case| case.id == **id);
        if let Some(id) = self.only.iter().find(known) {
            let all: Vec<_> = CASES.iter().map(|case| case.id).collect();
            return Err(format!(
                "unknown consumer case `{id}`; the cases are {}",
                all.join(", ")
            ));
        }
        self.messages.iter().try_for_each(|it| self.check_id(it))
    }

    /// Checks that the message contains an id, and that its duplicates reach the consumer.
    fn check_id(&self, template: &Template) -> Result<(), String> {
        if !template.has_id() {
            return Err(format!(
                "message `{}` has no {ID}: put {ID} into the body, a header or --message-id, where the consumer reads the id",
                template.name
            ));
        }
        let broker = Backend::named(self.broker.scheme()).and_then(|it| it.broker);
        let drops = broker.is_some_and(|it| it.drops_duplicates);
        let id = template.message_id.as_deref().unwrap_or(NUMBER);
        match drops && !id.contains(NUMBER) {
            true => Err(format!(
                "this broker drops a second message with the same id, so no duplicate reaches the consumer: set --message-id '{ID}-{NUMBER}', and put {ID} into a header or the body, where the consumer reads it"
            )),
            false => Ok(()),
        }
    }

    pub(super) fn is_asked_for(&self, id: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|it| it == id)
    }

    /// Describes for the report how effects are counted.
    pub(super) fn describe_counting(&self) -> String {
        match &self.counting {
            Counting::Url { url, .. } => format!("at {url}"),
            Counting::Sql { database, .. } => format!("with SQL at {database}"),
            Counting::Answers => "not at all".into(),
        }
    }

    /// Replaces `{id}` with the placeholder of the counter.
    pub(super) fn keyed(&self) -> Counting {
        let keyed = |text: &str| text.replace(ID, "{key}");
        match &self.counting {
            Counting::Url { url, pointer } => Counting::Url {
                url: keyed(url.as_str()).into(),
                pointer: pointer.clone(),
            },
            Counting::Sql {
                database,
                statement,
            } => Counting::Sql {
                database: database.clone(),
                statement: keyed(statement),
            },
            Counting::Answers => Counting::Answers,
        }
    }
}

impl Template {
    /// Returns a message with this body.
    #[must_use]
    pub fn new(name: impl Into<String>, body: Vec<u8>) -> Self {
        Self {
            name: name.into(),
            body,
            ..Self::default()
        }
    }

    /// Sets the content type: the given one, or JSON if the body looks like JSON.
    pub fn set_content_type(&mut self, given: Option<&str>) {
        let start = self.body.trim_ascii_start().first();
        let guessed = matches!(start, Some(b'{' | b'[')).then_some("application/json");
        self.content_type = given.or(guessed).map(str::to_owned);
    }

    fn has_id(&self) -> bool {
        let in_body = String::from_utf8_lossy(&self.body).contains(ID);
        let in_header = self.headers.iter().any(|(_, value)| value.contains(ID));
        let in_id = self.message_id.as_ref().is_some_and(|id| id.contains(ID));
        in_body || in_header || in_id
    }

    /// Returns the message with this id and publication number.
    pub(super) fn filled(&self, body: &[u8], id: &str, number: u64) -> Message {
        let fill = |text: &str| text.replace(ID, id).replace(NUMBER, &number.to_string());
        let payload = match std::str::from_utf8(body) {
            Ok(text) => fill(text).into_bytes(),
            Err(_) => body.to_owned(),
        };
        let mut message = Message::new(payload);
        for (name, value) in &self.headers {
            message = message.with_header(name, fill(value));
        }
        message.id = self.message_id.as_deref().map(fill);
        message.content_type = self.content_type.clone();
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(broker: &str, template: Template) -> Plan {
        let mut plan = Plan::new(broker, "orders", 7);
        plan.counting = Counting::Url {
            url: "http://127.0.0.1:1/{id}".into(),
            pointer: None,
        };
        plan.messages.push(template);
        plan
    }

    #[test]
    fn rejects_plans_that_prove_nothing_with_the_fix() {
        let body = Template::new("order", b"{id}".to_vec());
        let named = |id: &str| Template {
            message_id: Some(id.into()),
            ..body.clone()
        };
        assert_eq!(plan("redis://h", named("{id}")).check(), Ok(()));
        assert_eq!(plan("nats://h", body.clone()).check(), Ok(()));
        assert_eq!(plan("nats://h", named("{id}-{n}")).check(), Ok(()));
        let no_id = Template::new("order", b"{}".to_vec());
        let mut uncounted = plan("redis://h", body.clone());
        uncounted.counting = Counting::Answers;
        let mut odd = plan("redis://h", body.clone());
        odd.only.push("lost-answer".into());
        for (plan, said) in [
            (plan("nats://h", named("{id}")), "--message-id '{id}-{n}'"),
            (plan("nats+tls://h", named("{id}")), "'{id}-{n}'"),
            (plan("redis://h", no_id), "has no {id}"),
            (uncounted, "--effects-url"),
            (
                odd,
                "unknown consumer case `lost-answer`; the cases are duplicate-message",
            ),
            (Plan::new("redis://h", "q", 1), "--effects-url"),
        ] {
            let error = plan.check().unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn prints_no_secret_of_an_address() {
        let mut plan = Plan::new("amqp://app:canary@h/", "orders", 7);
        plan.counting = Counting::Sql {
            database: "postgres://app:canary@h/app".into(),
            statement: "SELECT 1".into(),
        };
        assert!(!format!("{plan:?}{}", plan.describe_counting()).contains("canary"));
        plan.counting = Counting::Url {
            url: "http://h/count?token=canary".into(),
            pointer: None,
        };
        assert!(!format!("{plan:?}{}", plan.describe_counting()).contains("canary"));
    }

    #[test]
    fn templates_are_filled_in() {
        let mut template = Template::new("order", b"{\"id\":\"{id}\"}".to_vec());
        template.headers.push(("x-id".into(), "{id}".into()));
        template.message_id = Some("{id}-{n}".into());
        template.set_content_type(None);
        let message = template.filled(&template.body, "a", 3);
        assert_eq!(message.payload, "{\"id\":\"a\"}");
        assert_eq!(message.header("X-Id").unwrap(), "a");
        assert_eq!(message.id.as_deref(), Some("a-3"));
        assert_eq!(message.content_type.as_deref(), Some("application/json"));
    }
}
