//! Verbs and nouns of an operation, from its path, its id and its summary.

use crate::{
    facts::Facts,
    text::{is_plural, last_word, plain, singular, words},
    words as lists,
};

impl Facts<'_> {
    /// Verb of the last segment, if `list` has it.
    pub(crate) fn verb(&self, list: &'static [&'static str]) -> Option<&'static str> {
        let find = |word: &String| list.iter().find(|it| *it == word).copied();
        self.verbs.iter().find_map(find)
    }

    /// Words of the last segment that may be its verb, the likeliest first.
    pub(crate) fn likely_verbs(&self) -> Vec<String> {
        if self.is_item {
            return Vec::new();
        }
        // The whole segment first: `checkin` does not mean `check`.
        let whole = plain(self.tail());
        let last = self.last();
        if lists::LOOKED_AT.contains(&last.as_str()) {
            return vec![last];
        }
        if lists::is_verb(&whole) {
            return vec![whole];
        }
        let mut said = words(head(self.tail()));
        said.retain(|it| !lists::MANY.contains(&it.as_str()));
        let Some(first) = said.first() else {
            return said;
        };
        let is_thing = !self.is_command && said.len() > 1 && self.is_thing(first, &last);
        // `payoutSchedule` is a resource; `open-slots` and `balance_transactions` are lists.
        let is_noun = is_plural(&last)
            || lists::PRICED.contains(&last.as_str()) && !lists::LOOKING.contains(&last.as_str());
        // `submitScore` submits, but `credit-check` checks: a first word that is also a noun may only qualify the next.
        let is_first = self.is_command || lists::is_plain_verb(first);
        match (is_thing, is_first) {
            (true, _) => said.clear(),
            (false, true) => said.truncate(1),
            (false, false) if is_noun => said.clear(),
            (false, false) => {}
        }
        said
    }

    /// Last word of the segment's main part: `release` of `release-of-funds`.
    pub(crate) fn last(&self) -> String {
        last_word(head(self.tail()))
    }

    /// Whether a segment that starts with a verb names a resource: `refund-result`, `retry-policy`, `pay-links`.
    fn is_thing(&self, first: &str, last: &str) -> bool {
        let makes = [
            lists::MAKING,
            lists::WRITING,
            lists::REMOVING,
            lists::LOOKING,
        ];
        let is_written = makes.iter().any(|list| list.contains(&first));
        let is_list = is_plural(last) && !self.is_call && (self.has_items || self.status == 201);
        let one = singular(last);
        let is_told = self.event_word().is_some() || lists::RULES.contains(&one.as_str());
        !is_written && (is_list || is_told)
    }

    /// Last word of a segment that reports a result or an event: `refund-result`, `dispute-opened`.
    pub(crate) fn event_word(&self) -> Option<String> {
        let said = words(self.tail());
        let last = singular(said.last()?);
        let is_past =
            last.len() > 4 && last.ends_with("ed") || lists::PAST.contains(&last.as_str());
        let is_done = said.len() > 1 && is_past && !lists::is_plain_verb(&said[0]);
        (is_done || lists::OUTCOMES.contains(&last.as_str())).then_some(last)
    }

    /// Verb that changes the state of a resource, because the response is that resource.
    pub(crate) fn handling(&self) -> Option<&'static str> {
        let is_of_thing = self.is_below_item && self.answers_parent && self.status != 201;
        // With PUT or PATCH and a body, the word names a resource: `PUT /jobs/{id}/schedule`.
        let is_written =
            |word: &str| self.method != "POST" && self.has_body && lists::PRICED.contains(&word);
        self.verb(lists::HANDLING)
            .filter(|word| is_of_thing && !is_written(word))
    }

    /// Whether the last segment has a verb of any list.
    pub(crate) fn has_verb(&self) -> bool {
        lists::VERBS.iter().any(|list| self.verb(list).is_some())
    }

    /// Verb at the start of the id or the summary, if `list` has it.
    pub(crate) fn leading_verb(&self, list: &'static [&'static str]) -> Option<&'static str> {
        let first = self.summary.split_whitespace().next().unwrap_or_default();
        let find = |word: &str| list.iter().find(|it| **it == word).copied();
        let of_summary = find(first)
            .or_else(|| find(first.strip_suffix('s')?))
            .or_else(|| find(first.strip_suffix("es")?));
        find(&self.id_verb).or(of_summary)
    }

    /// Noun of a segment, if `list` has the whole segment or its last word.
    pub(crate) fn noun(
        &self,
        segment: &str,
        list: &'static [&'static str],
    ) -> Option<&'static str> {
        let find = |word: &str| list.iter().find(|it| **it == word).copied();
        let known = self.segments.iter().position(|it| it == segment);
        if let Some((whole, last)) = known.and_then(|at| self.nouns.get(at)) {
            return find(whole).or_else(|| find(last));
        }
        let (whole, last) = noun_of(segment);
        find(&whole).or_else(|| find(&last))
    }
}

/// Noun of a segment, in the singular: the whole segment, and its last word.
pub(crate) fn noun_of(segment: &str) -> (String, String) {
    (singular(&plain(segment)), singular(&last_word(segment)))
}

/// Part of a segment before `of`: `release` of `release-of-funds`.
fn head(segment: &str) -> &str {
    let of = ["-of-", "_of_"]
        .iter()
        .find_map(|it| segment.split_once(it));
    of.map_or(segment, |(head, _)| head)
}

/// Entry of `list` that equals the whole segment or one of its words.
pub(crate) fn named(segment: &str, list: &'static [&'static str]) -> Option<&'static str> {
    let find = |word: &str| list.iter().find(|it| **it == word).copied();
    find(&plain(segment)).or_else(|| words(segment).iter().find_map(|word| find(word)))
}
