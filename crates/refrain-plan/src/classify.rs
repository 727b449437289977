//! Classifies an operation: collects evidence for and against each class, and sums the weights.

use std::collections::HashMap;

use refrain::policy::Class;
use refrain_openapi::Kind;
use serde::Serialize;

use crate::facts::Facts;

mod amounts;
mod change;
mod event;
mod look;
mod money;

/// One reason for or against a class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// The class that the evidence is for or against.
    pub class: Class,
    /// Weight: 1 is a hint, 3 is solid, 6 is strong. A negative weight counts against the class.
    pub weight: i32,
    /// The reason, as a short text.
    pub text: String,
}

/// Class of an operation, with the evidence.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Classification {
    /// The class with the highest score.
    pub class: Class,
    /// Confidence, from 0 to 1.
    pub confidence: f64,
    /// The class with the second highest score, if that is positive and the confidence is below 0.9.
    pub runner_up: Option<Class>,
    /// Evidence for and against the class and the runner-up; the class first, then by weight, heaviest first.
    pub evidence: Vec<Evidence>,
}

impl Classification {
    /// Confidence below which a person should review the class.
    pub const SURE: f64 = 0.75;

    /// Whether the class needs no review.
    #[must_use]
    pub fn is_sure(&self) -> bool {
        self.confidence >= Self::SURE
    }
}

/// All classes, in the order in which ties are decided: the class with more protection first.
const CLASSES: [Class; 7] = [
    Class::Monetary,
    Class::Create,
    Class::Transition,
    Class::Event,
    Class::Replace,
    Class::Delete,
    Class::Read,
];

/// Minimum number of requests below a path, or with a tag, before they count as evidence for each other.
const GROUP_MIN: usize = 3;

/// Minimum number of creating operations before the API can count as a financial one.
const MADE_MIN: usize = 6;

/// Classifies all operations. Operations among mostly events are classified a second time with that evidence.
pub(crate) fn all(facts: &mut [Facts<'_>]) -> Vec<Classification> {
    if is_of_money(facts) {
        facts.iter_mut().for_each(|it| it.is_of_money = true);
    }
    let mut verdicts: Vec<_> = facts.iter().map(classify).collect();
    let mut groups: HashMap<&str, (usize, usize)> = HashMap::new();
    for (facts, verdict) in facts.iter().zip(&verdicts) {
        for group in facts.groups.iter().filter(|_| facts.is_sent()) {
            let (events, all) = groups.entry(group).or_default();
            *events += usize::from(verdict.class == Class::Event);
            *all += 1;
        }
    }
    let is_for_events = |group: &String| {
        let found = groups.get(group.as_str());
        found.is_some_and(|(events, all)| *all >= GROUP_MIN && 5 * events >= 3 * all)
    };
    let among: Vec<_> = facts
        .iter()
        .map(|facts| facts.is_sent() && facts.groups.iter().any(is_for_events))
        .collect();
    for (at, _) in among.iter().enumerate().filter(|(_, is_among)| **is_among) {
        facts[at].is_among_events = true;
        verdicts[at] = classify(&facts[at]);
    }
    verdicts
}

/// Whether the API is a financial one: at least a third of the operations that create something have an amount.
fn is_of_money(facts: &[Facts<'_>]) -> bool {
    let is_making = |it: &&Facts<'_>| (it.is_made() || it.status == 202) && !it.is_acknowledged;
    let made = facts.iter().filter(|it| it.method == "POST" && it.has_body);
    let made: Vec<_> = made.filter(is_making).collect();
    let of_money = made
        .iter()
        .filter(|it| amounts::says_how_much(it).is_some());
    made.len() >= MADE_MIN && 3 * of_money.count() >= made.len()
}

fn classify(facts: &Facts<'_>) -> Classification {
    let mut case = Case::default();
    method(facts, &mut case);
    event::weigh(facts, &mut case);
    look::weigh(facts, &mut case);
    change::weigh(facts, &mut case);
    money::weigh(facts, &mut case);
    case.verdict(facts.method == "POST")
}

fn method(facts: &Facts<'_>, case: &mut Case) {
    let (class, weight) = match facts.method.as_str() {
        "GET" | "HEAD" | "OPTIONS" | "TRACE" | "QUERY" => (Class::Read, 8),
        "DELETE" => (Class::Delete, 8),
        "PUT" | "PATCH" => (Class::Replace, 4),
        _ => (Class::Create, 1),
    };
    case.add(class, weight, format!("the method is {}", facts.method));
    match facts.kind {
        Kind::Path => {}
        Kind::Webhook => case.add(Class::Event, 20, "the document lists it as a webhook"),
        Kind::Callback => case.add(Class::Event, 20, "it is a callback of another operation"),
    }
}

/// Evidence collected so far for one operation.
#[derive(Debug, Default)]
pub(crate) struct Case {
    evidence: Vec<Evidence>,
}

impl Case {
    pub(crate) fn add(&mut self, class: Class, weight: i32, text: impl Into<String>) {
        let text = text.into();
        self.evidence.push(Evidence {
            class,
            weight,
            text,
        });
    }

    pub(crate) fn score(&self, class: Class) -> i32 {
        let of_class = self.evidence.iter().filter(|it| it.class == class);
        of_class.map(|it| it.weight).sum()
    }

    fn verdict(mut self, is_post: bool) -> Classification {
        let mut scores = CLASSES.map(|class| (class, self.score(class)));
        // A stable sort, so that ties keep the order of `CLASSES`.
        scores.sort_by_key(|(_, score)| -score);
        let [(class, best), (second, next), ..] = scores;
        let margin = f64::from(best - next.max(0));
        // The class of a POST is a guess, so it needs a larger margin; other methods state their class.
        let pace = if is_post { 3.0 } else { 2.0 };
        let confidence = 1.0 / (1.0 + (-margin / pace).exp());
        let weak = f64::from(best) / 4.0;
        let confidence = (confidence * weak.clamp(0.6, 1.0) * 100.0).round() / 100.0;
        let runner_up = (next > 0 && confidence < 0.9).then_some(second);
        self.evidence
            .retain(|it| it.class == class || Some(it.class) == runner_up);
        self.evidence
            .sort_by_key(|it| (it.class != class, -it.weight.abs()));
        Classification {
            class,
            confidence,
            runner_up,
            evidence: self.evidence,
        }
    }
}
