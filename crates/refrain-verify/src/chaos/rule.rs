//! Rules: which requests are hit, by which fault, how often.

use std::{fmt, str::FromStr, time::Duration};

use refrain::policy::{Operation, Policy, units};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The share 100 %, in millionths.
pub(super) const ALWAYS: u32 = 1_000_000;
/// Maximum delay.
const DELAY_MAX: Duration = Duration::from_hours(1);

/// A fault injected into a request or its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The upstream gets the request and responds; the client's connection is closed instead.
    DropAnswer,
    /// The upstream gets the request twice: at once, or again after this delay. The client gets the first response.
    Twice(Duration),
    /// The request is delayed.
    Delay(Duration),
    /// The response is delayed.
    DelayAnswer(Duration),
    /// The response body is cut after this many bytes, and the connection is closed.
    Cut(u64),
    /// The client's connection is reset; the upstream gets nothing.
    ResetBefore,
    /// The client's connection is reset after the request is sent to the upstream, which executes it.
    ResetAfter,
    /// The request is held back until another one of the same rule has overtaken it, or until this timeout.
    Reorder(Duration),
    /// The response body is slowed to about this many bytes per second, at least 20.
    Slow(u64),
}

/// A rule: which requests are hit, by which fault, how often.
///
/// As text: `ROUTE FAULT [SHARE] [xTIMES]`, such as `POST /v1/payments drop-answer 30% x5`.
#[derive(Clone)]
pub struct Rule {
    route: String,
    matcher: Policy,
    /// The fault.
    pub fault: Fault,
    /// Share of matching requests that are hit, in millionths.
    pub share: u32,
    /// Maximum number of hits; `None` for no limit.
    pub times: Option<u64>,
}

/// Why a rule or setting is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadRule(String);

impl BadRule {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl Rule {
    /// Returns a rule that applies this fault to every request of the route, which is written as in a policy.
    ///
    /// # Errors
    /// [`BadRule`] when the route is invalid.
    pub fn new(route: &str, fault: Fault) -> Result<Self, BadRule> {
        let bad = |error| BadRule::new(format!("invalid route `{route}`: {error}"));
        let operation = Operation::new(route).map_err(bad)?;
        let matcher = Policy::new(vec![operation]).map_err(bad)?;
        Ok(Self {
            route: route.into(),
            matcher,
            fault,
            share: ALWAYS,
            times: None,
        })
    }

    /// Returns the route.
    #[must_use]
    pub fn route(&self) -> &str {
        &self.route
    }

    pub(super) fn matches(&self, method: &str, path: &str) -> bool {
        self.matcher.find(method, path).is_some()
    }
}

impl FromStr for Rule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, BadRule> {
        let words: Vec<_> = text.split_whitespace().collect();
        let [method, path, fault, rest @ ..] = &words[..] else {
            return Err(BadRule::new(format!(
                "invalid rule `{text}`; write ROUTE FAULT [SHARE] [xTIMES], such as \"POST /v1/payments drop-answer 30%\""
            )));
        };
        let mut rule = Self::new(&format!("{method} {path}"), fault.parse()?)?;
        for word in rest {
            if let Some(times) = word.strip_prefix('x') {
                rule.times = Some(times.parse().map_err(|_| {
                    BadRule::new(format!("invalid count `{word}`; write x5 for five times"))
                })?);
            } else {
                rule.share = share(word)?;
            }
        }
        Ok(rule)
    }
}

fn share(text: &str) -> Result<u32, BadRule> {
    let bad = || BadRule::new(format!("invalid share `{text}`; write 0.01% to 100%"));
    let percent: f64 = text
        .strip_suffix('%')
        .ok_or_else(bad)?
        .parse()
        .map_err(|_| bad())?;
    if !(0.01..=100.0).contains(&percent) {
        return Err(bad());
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range is checked above"
    )]
    Ok((percent * 10_000.0).round() as u32)
}

impl FromStr for Fault {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, BadRule> {
        let (name, value) = match text.split_once(':') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let time = |otherwise: Option<Duration>| match (value, otherwise) {
            (Some(value), _) => units::duration(value)
                .ok()
                .filter(|time| *time <= DELAY_MAX)
                .ok_or_else(|| {
                    BadRule::new(format!(
                        "`{text}` needs a time up to 1h, such as {name}:500ms"
                    ))
                }),
            (None, Some(otherwise)) => Ok(otherwise),
            (None, None) => Err(BadRule::new(format!(
                "`{text}` needs a time, such as {name}:500ms"
            ))),
        };
        let bytes = |example: &str| {
            let value = value.and_then(|value| units::size(value).ok());
            value.map(|bytes| bytes as u64).ok_or_else(|| {
                BadRule::new(format!("`{text}` needs a size, such as {name}:{example}"))
            })
        };
        let bare = |fault| match value {
            None => Ok(fault),
            Some(_) => Err(BadRule::new(format!(
                "`{name}` takes no value; remove the part after the colon"
            ))),
        };
        match name {
            "drop-answer" => bare(Self::DropAnswer),
            "twice" => time(Some(Duration::ZERO)).map(Self::Twice),
            "delay" => time(None).map(Self::Delay),
            "delay-answer" => time(None).map(Self::DelayAnswer),
            "cut" => bytes("100").map(Self::Cut),
            "reset-before" => bare(Self::ResetBefore),
            "reset-after" => bare(Self::ResetAfter),
            "reorder" => time(Some(Duration::from_secs(1))).map(Self::Reorder),
            "slow" => match bytes("1KiB")? {
                0 => Err(BadRule::new(
                    "`slow:0` would never end; write at least 1 byte per second",
                )),
                bytes => Ok(Self::Slow(bytes)),
            },
            _ => Err(BadRule::new(format!(
                "unknown fault `{text}`; write drop-answer, twice, twice:2s, delay:500ms, delay-answer:500ms, cut:100, reset-before, reset-after, reorder or slow:1KiB"
            ))),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = units::Span;
        match *self {
            Self::DropAnswer => f.write_str("drop-answer"),
            Self::Twice(Duration::ZERO) => f.write_str("twice"),
            Self::Twice(later) => write!(f, "twice:{}", span(later)),
            Self::Delay(time) => write!(f, "delay:{}", span(time)),
            Self::DelayAnswer(time) => write!(f, "delay-answer:{}", span(time)),
            Self::Cut(at) => write!(f, "cut:{at}"),
            Self::ResetBefore => f.write_str("reset-before"),
            Self::ResetAfter => f.write_str("reset-after"),
            Self::Reorder(time) => write!(f, "reorder:{}", span(time)),
            Self::Slow(bytes) => write!(f, "slow:{bytes}"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.route, self.fault)?;
        if self.share != ALWAYS {
            write!(f, " {}%", f64::from(self.share) / 10_000.0)?;
        }
        match self.times {
            Some(times) => write!(f, " x{times}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rule({self})")
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::Rule;

    #[test]
    fn a_rule_is_written_as_it_is_read() {
        for text in [
            "POST /v1/payments drop-answer",
            "POST /v1/payments/{id}/capture twice 50%",
            "POST|PUT /hooks/* twice:2s",
            "* * delay:500ms 0.5%",
            "GET / cut:100 x3",
            "POST /a reset-before 25% x5",
            "POST /a reset-after",
            "POST /a slow:1024",
        ] {
            assert_eq!(
                text.parse::<Rule>().map(|rule| rule.to_string()).as_deref(),
                Ok(text)
            );
        }
    }

    #[test]
    fn invalid_rule_is_rejected_with_the_fix() {
        for (text, said) in [
            ("", "write ROUTE FAULT"),
            ("POST /a", "write ROUTE FAULT"),
            ("POST /a explode", "unknown fault"),
            ("POST /a delay", "needs a time"),
            ("POST /a delay:2h", "up to 1h"),
            ("POST /a cut", "needs a size"),
            ("POST /a slow:0", "never end"),
            ("POST /a drop-answer 130%", "0.01% to 100%"),
            ("POST /a drop-answer xmany", "invalid count"),
            ("POST a drop-answer", "invalid route"),
        ] {
            let error = text.parse::<Rule>().map_err(|error| error.to_string());
            assert!(
                error.as_ref().is_err_and(|error| error.contains(said)),
                "{text}: {error:?}"
            );
        }
    }
}
