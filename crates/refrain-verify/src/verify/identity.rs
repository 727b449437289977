//! Identifies the run that a response belongs to, and compares the responses to duplicates.

use serde_json::Value;

use super::wire::ReceivedResponse;

/// The part of a response that identifies its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Identity {
    /// A member of the JSON body, by its JSON pointer.
    Member(String),
    Location,
    Body,
    /// None: responses of different runs look alike.
    None,
}

/// Whether two responses belong to the same run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Likeness {
    Same,
    Other,
    /// Unknown: one of them has no identity.
    Silent,
}

impl Identity {
    /// Finds what differs between the responses of two runs.
    /// Each response comes with its key and unique word, which it may echo.
    ///
    /// If the requests differed, echoed content may differ as well, so only an id member or a `Location` counts.
    pub(super) fn find(
        one: (&ReceivedResponse, &[String]),
        other: (&ReceivedResponse, &[String]),
        is_same_request: bool,
    ) -> Self {
        let (a, b) = (plain(one), plain(other));
        let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
        let mut members = Vec::new();
        differing("", &parsed(&a), &parsed(&b), &mut members);
        if let Some(member) = members.iter().find(|member| is_id(member)) {
            return Self::Member(member.clone());
        }
        let location = |(answer, names): (&ReceivedResponse, &[String])| {
            answer.header("location").map(|it| nameless(it, names))
        };
        match (location(one), location(other)) {
            (Some(a), Some(b)) if a != b => return Self::Location,
            _ => {}
        }
        match members.into_iter().next() {
            _ if !is_same_request => Self::None,
            Some(member) => Self::Member(member),
            None if lasting(a.as_bytes()) != lasting(b.as_bytes()) => Self::Body,
            None => Self::None,
        }
    }

    /// Whether the identity is an id or a `Location`, not a part that happened to differ.
    pub(super) fn is_by_name(&self) -> bool {
        match self {
            Self::Member(member) => is_id(member),
            Self::Location => true,
            Self::Body | Self::None => false,
        }
    }

    /// The identity of the run in this response.
    pub(super) fn of(&self, answer: &ReceivedResponse) -> Option<String> {
        match self {
            Self::Member(pointer) => {
                let json: Value = serde_json::from_slice(&answer.body).ok()?;
                json.pointer(pointer).map(Value::to_string)
            }
            Self::Location => answer.header("location").map(str::to_owned),
            Self::Body => Some(lasting(&answer.body)),
            Self::None => None,
        }
    }

    /// Compares the runs of two responses.
    pub(super) fn compare(&self, one: &ReceivedResponse, other: &ReceivedResponse) -> Likeness {
        let decided = |is_same| match is_same {
            true => Likeness::Same,
            false => Likeness::Other,
        };
        if let (Some(one), Some(other)) = (self.of(one), self.of(other)) {
            return decided(one == other);
        }
        if is_alike(one, other) {
            return Likeness::Same;
        }
        // A 303 shows only its `Location`. Any other response without an identity is inconclusive.
        let leads = one.status == 303 || other.status == 303;
        match (one.header("location"), other.header("location")) {
            (Some(one), Some(other)) if leads => decided(one == other),
            _ => Likeness::Silent,
        }
    }
}

/// Whether both bodies are equal, except for members that change in every response, and for JSON formatting.
pub(super) fn is_alike(one: &ReceivedResponse, other: &ReceivedResponse) -> bool {
    one.body == other.body || lasting(&one.body) == lasting(&other.body)
}

/// The body without members that change in every response; JSON with sorted members.
fn lasting(body: &[u8]) -> String {
    match serde_json::from_slice::<Value>(body) {
        Ok(mut json) => {
            strip(&mut json);
            json.to_string()
        }
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    }
}

fn strip(json: &mut Value) {
    match json {
        Value::Object(members) => {
            members.retain(|name, _| !is_passing(name));
            members.sort_keys();
            members.values_mut().for_each(strip);
        }
        Value::Array(list) => list.iter_mut().for_each(strip),
        _ => {}
    }
}

fn plain((answer, names): (&ReceivedResponse, &[String])) -> String {
    nameless(&String::from_utf8_lossy(&answer.body), names)
}

/// The text without these names.
pub(super) fn nameless(text: &str, names: &[String]) -> String {
    let all = names.iter().filter(|name| !name.is_empty());
    all.fold(text.to_owned(), |text, name| text.replace(&**name, ""))
}

/// Pointers to all scalar members that both have, that differ, and that replays do not change; shallow ones first.
fn differing(place: &str, one: &Value, other: &Value, found: &mut Vec<String>) {
    let (Value::Object(one), Value::Object(other)) = (one, other) else {
        return;
    };
    let both = || {
        let both = one.iter().filter(|(name, _)| !is_passing(name));
        both.filter_map(|(name, value)| Some((name, value, other.get(name)?)))
    };
    let at = |name: &str| format!("{place}/{}", name.replace('~', "~0").replace('/', "~1"));
    for (name, value, second) in both() {
        let is_plain = value.is_string() || value.is_number();
        if is_plain && value != second {
            found.push(at(name));
        }
    }
    for (name, value, second) in both() {
        differing(&at(name), value, second, found);
    }
}

fn is_id(pointer: &str) -> bool {
    let name = pointer.rsplit('/').next().unwrap_or_default();
    let small = name.to_ascii_lowercase();
    let is_ending = name.ends_with("Id") || name.ends_with("ID") || small.ends_with("_id");
    matches!(&*small, "id" | "uuid" | "guid" | "reference" | "number") || is_ending
}

/// Whether a member of this name changes in every response: timestamps, and request or trace ids.
fn is_passing(name: &str) -> bool {
    let small = name.to_ascii_lowercase();
    let small = small.trim_start_matches("x-").trim_start_matches("x_");
    let is_trace = ["request", "trace", "span", "correlation"]
        .iter()
        .any(|word| {
            let rest = small.strip_prefix(word);
            rest.is_some_and(|it| matches!(it.trim_start_matches(['_', '-']), "" | "id" | "parent"))
        });
    let is_time = ["at", "time", "date", "now", "ts", "timestamp", "nonce"].contains(&small)
        || ["_at", "_time", "_date", "_ts", "_ms", "timestamp"]
            .iter()
            .any(|end| small.ends_with(end))
        || ["At", "Time", "Date"].iter().any(|end| name.ends_with(end))
        || ["duration", "elapsed", "took", "latency"]
            .iter()
            .any(|word| small.starts_with(word));
    is_trace || is_time
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
    fn finds_ids_that_distinguish_executions_and_ignores_echoes() {
        let member = |pointer: &str| Identity::Member(pointer.into());
        for (one, other, found) in [
            (
                r#"{"id":1,"ok":true}"#,
                r#"{"id":2,"ok":true}"#,
                member("/id"),
            ),
            (
                r#"{"data":{"payment_id":"a"}}"#,
                r#"{"data":{"payment_id":"b"}}"#,
                member("/data/payment_id"),
            ),
            (
                r#"{"at":1,"confirmation":"a"}"#,
                r#"{"at":2,"confirmation":"b"}"#,
                member("/confirmation"),
            ),
            // Every response has new values of these, a replay too.
            (
                r#"{"request_id":1,"at":1,"createdAt":5}"#,
                r#"{"request_id":2,"at":2,"createdAt":6}"#,
                Identity::None,
            ),
            (
                r#"{"items":[{"id":1}]}"#,
                r#"{"items":[{"id":2}]}"#,
                Identity::Body,
            ),
            (r#"{"id":"U1"}"#, r#"{"id":"U2"}"#, Identity::None),
            (r#"{"key":"K1"}"#, r#"{"key":"K2"}"#, Identity::None),
            ("ok", "ok", Identity::None),
            ("1", "2", Identity::Body),
        ] {
            let (one, other) = (answer(one), answer(other));
            let names = |number: u8| [format!("U{number}"), format!("K{number}")];
            let (mine, theirs) = (names(1), names(2));
            let find = |is_same| Identity::find((&one, &mine), (&other, &theirs), is_same);
            assert_eq!(find(true), found);
            let is_id = found == member("/id") || found == member("/data/payment_id");
            let believed = if is_id { found } else { Identity::None };
            assert_eq!(find(false), believed);
        }
    }

    #[test]
    fn a_replay_may_be_written_anew() {
        let by_id = Identity::Member("/id".into());
        for (identity, one, other, likeness) in [
            (
                &by_id,
                r#"{"id":1,"a":2}"#,
                r#"{"a":3,"id":1}"#,
                Likeness::Same,
            ),
            (&by_id, r#"{"id":1}"#, r#"{"id":2}"#, Likeness::Other),
            (&by_id, r#"{"id":1}"#, "{}", Likeness::Silent),
            (
                &Identity::Body,
                r#"{"items":[{"id":1}],"at":1}"#,
                r#"{"at":2,"items":[{"id":1}]}"#,
                Likeness::Same,
            ),
            (
                &Identity::None,
                r#"{"ok":true,"at":1}"#,
                r#"{"at":2,"ok":true}"#,
                Likeness::Same,
            ),
            (&Identity::None, "paid", "known", Likeness::Silent),
        ] {
            let found = identity.compare(&answer(one), &answer(other));
            assert_eq!(found, likeness, "{one} {other}");
        }
        let moved = |to: &str| ReceivedResponse {
            status: 303,
            headers: vec![("location".into(), to.into())],
            body: "".into(),
        };
        assert_eq!(by_id.compare(&moved("/7"), &moved("/7")), Likeness::Same);
        let first = ReceivedResponse {
            status: 201,
            body: r#"{"id":7}"#.into(),
            ..moved("/7")
        };
        assert_eq!(by_id.compare(&first, &moved("/7")), Likeness::Same);
        assert_eq!(by_id.compare(&first, &moved("/8")), Likeness::Other);
        let cut = ReceivedResponse {
            status: 201,
            body: r#"{"id":"#.into(),
            ..moved("/7")
        };
        assert_eq!(by_id.compare(&first, &cut), Likeness::Silent);
    }
}
