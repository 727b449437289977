//! Counts how often an operation took effect.

use std::time::Duration;

use serde_json::Value;

use super::{
    plan::{Counting, Plan, Target, TlsSetup},
    wire::{ReceivedResponse, Request, send},
};

/// Timeout for reading the count.
const COUNT_MAX: Duration = Duration::from_secs(10);

/// Effects of a case so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Effects {
    pub(super) count: u64,
    /// Whether effects are counted at the source; a count by responses misses effects without a response.
    pub(super) is_exact: bool,
}

impl Effects {
    pub(super) fn over(self, most: u64) -> bool {
        self.count > most
    }

    /// Always `false` unless effects are counted at the source, because otherwise some may be unseen.
    pub(super) fn under(self, least: u64) -> bool {
        self.is_exact && self.count < least
    }
}

/// Counts effects at the source.
#[derive(Debug, Clone)]
pub(super) struct Counter {
    counting: Counting,
    /// The operation's headers, sent with the count request if it goes to the service itself.
    headers: Vec<(String, String)>,
    way: TlsSetup,
}

impl Counter {
    pub(super) fn new(plan: &Plan, headers: &[(String, String)], way: &TlsSetup) -> Self {
        let is_same_place = match &plan.counting {
            Counting::Url { url, .. } => {
                let place = plan.target.origin();
                let rest = url.as_str().strip_prefix(&place);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
            }
            Counting::Sql { .. } | Counting::Answers => false,
        };
        Self {
            counting: plan.counting.clone(),
            headers: if is_same_place {
                headers.to_vec()
            } else {
                Vec::new()
            },
            way: way.clone(),
        }
    }

    /// Returns a counter at an address unrelated to the system under test.
    pub(super) fn without_headers(counting: Counting, way: &TlsSetup) -> Self {
        Self {
            counting,
            headers: Vec::new(),
            way: way.clone(),
        }
    }

    /// Whether effects are counted at the source.
    pub(super) fn is_exact(&self) -> bool {
        self.counting != Counting::Answers
    }

    /// Whether the count is per key or per unique word.
    pub(super) fn is_keyed(&self) -> bool {
        let text = match &self.counting {
            Counting::Sql { statement, .. } => statement,
            Counting::Url { url, .. } => url.as_str(),
            Counting::Answers => return false,
        };
        text.contains("{key}") || text.contains("{unique}")
    }

    /// Reads the count now, for this key and unique word if the count is keyed.
    pub(super) async fn read(&self, key: &str, unique: &str) -> Result<u64, String> {
        match &self.counting {
            Counting::Answers => Ok(0),
            Counting::Url { url, pointer } => {
                let filled = url
                    .as_str()
                    .replace("{key}", &escaped(key))
                    .replace("{unique}", unique);
                let count = self.request_count(&filled, pointer.as_deref()).await;
                count.map_err(|why| format!("cannot count effects at {url}: {why}"))
            }
            Counting::Sql {
                database,
                statement,
            } => {
                let quoted = key.replace('\'', "''");
                let statement = statement
                    .replace("{key}", &quoted)
                    .replace("{unique}", unique);
                sql(database.as_str(), &statement).await
            }
        }
    }

    async fn request_count(&self, url: &str, pointer: Option<&str>) -> Result<u64, String> {
        let split = url.find("://").map(|end| {
            let rest = &url[end + 3..];
            let path = rest.find(['/', '?']).unwrap_or(rest.len());
            url.split_at(end + 3 + path)
        });
        let place = split.and_then(|(place, path)| Some((place.parse::<Target>().ok()?, path)));
        let Some((target, path)) = place else {
            return Err("invalid URL; write http://HOST:PORT/PATH".into());
        };
        let (place, authority) = (self.way.to(&target)?, target.authority);
        let target = match path {
            "" => "/".to_owned(),
            path if path.starts_with('?') => format!("/{path}"),
            path => path.to_owned(),
        };
        let headers = self.headers.iter();
        let request = Request {
            method: "GET".into(),
            target,
            headers: headers
                .map(|(name, value)| (name.clone(), value.clone().into_bytes()))
                .collect(),
            body: bytes::Bytes::new(),
        };
        let answer = send(&place, &authority, &request, COUNT_MAX).await;
        counted(&answer.map_err(|lost| lost.to_string())?, pointer)
    }
}

fn counted(answer: &ReceivedResponse, pointer: Option<&str>) -> Result<u64, String> {
    if !answer.is_success() {
        return Err(format!("the response status is {}", answer.status));
    }
    let value: Value = serde_json::from_slice(answer.body.trim_ascii())
        .map_err(|_| "the response is neither a number nor JSON".to_owned())?;
    let found = match pointer {
        Some(pointer) => value
            .pointer(pointer)
            .ok_or_else(|| format!("the JSON response has no value at {pointer}"))?,
        None => &value,
    };
    let number = match found {
        Value::Number(number) => number.as_u64(),
        Value::Array(list) => Some(list.len() as u64),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    let help =
        "the value is neither a number nor a list; set a JSON pointer to the count, such as /count";
    number.ok_or_else(|| help.to_owned())
}

/// Percent-encodes a key for a URL.
pub(super) fn escaped(key: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let each = key.bytes().map(|byte| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    each.collect()
}

#[cfg(feature = "postgres")]
async fn sql(database: &str, statement: &str) -> Result<u64, String> {
    let bad = |why: &dyn std::fmt::Display| format!("cannot count effects with SQL: {why}");
    let asked = async {
        let dial = refrain_stores::postgres::Dial::new(database).map_err(|error| bad(&error))?;
        let wire = dial.look().await.map_err(|error| bad(&error))?;
        let rows = wire.client().simple_query(statement).await;
        rows.map_err(|error| match error.as_db_error() {
            Some(error) => bad(error),
            None => bad(&error),
        })
    };
    let rows = tokio::time::timeout(COUNT_MAX, asked).await;
    let rows = rows.map_err(|_| bad(&"no response within 10 s"))??;
    let first = rows.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let number = first.and_then(|text| text.parse().ok());
    number.ok_or_else(|| bad(&"the first column is not a number; write SELECT count(*) FROM …"))
}

#[cfg(not(feature = "postgres"))]
async fn sql(_: &str, _: &str) -> Result<u64, String> {
    Err("cannot count effects with SQL: built without PostgreSQL support; use --effects-url".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: &str) -> ReceivedResponse {
        ReceivedResponse {
            status: 201,
            headers: vec![],
            body: body.to_owned().into(),
        }
    }

    #[test]
    fn counts_are_numbers_or_lists() {
        for (body, pointer, count) in [
            ("7", None, Some(7)),
            (" 7\n", None, Some(7)),
            ("[1,2]", None, Some(2)),
            (r#"{"count":3}"#, Some("/count"), Some(3)),
            (r#"{"data":{"all":["a"]}}"#, Some("/data/all"), Some(1)),
            (r#"{"count":"4"}"#, Some("/count"), Some(4)),
            (r#"{"count":3}"#, None, None),
            (r#"{"count":3}"#, Some("/other"), None),
            ("many", None, None),
            ("-1", None, None),
        ] {
            let counted = counted(&answer(body), pointer);
            assert_eq!(counted.as_ref().ok(), count.as_ref(), "{body}: {counted:?}");
        }
    }
}
