//! Money nouns and amounts of an operation.

use crate::{
    facts::Facts,
    text::{last_word, plain, singular},
    verbs::named,
    words,
};

/// Noun of a payment that only this PUT creates, if the request has an amount.
pub(super) fn named_payment<'f>(facts: &'f Facts<'_>) -> Option<&'f str> {
    let is_named = facts.method == "PUT" && facts.is_item && facts.is_made_here;
    let noun = money_noun(facts).or_else(|| named(facts.tail(), &["money"]));
    noun.filter(|_| is_named && says_how_much(facts).is_some())
}

/// Noun of the last segment that means moving money: `payments`, but also `overpayments`.
pub(super) fn money_noun(facts: &Facts<'_>) -> Option<&'static str> {
    let last = last_word(facts.tail());
    let ends = ["payment", "transfer", "refund", "payout"];
    let ending = || ends.into_iter().find(|end| singular(&last).ends_with(end));
    facts.noun(facts.tail(), words::MONEY).or_else(ending)
}

/// Whether `withdraw` is about money; an application can be withdrawn, too.
pub(super) fn withdraws_money(facts: &Facts<'_>) -> bool {
    facts.noun(facts.parent(), words::PURSES).is_some()
        || facts.request.find(words::AMOUNT).is_some()
        || facts.request.ending(words::AMOUNT_ENDS).is_some()
        || facts.parent().is_empty()
}

/// Whether anything besides the verb is about money.
pub(super) fn speaks_of_money(facts: &Facts<'_>) -> bool {
    let above = &facts.segments[..facts.segments.len().saturating_sub(1)];
    let is_money = |it: &String| {
        facts
            .noun(it, words::MONEY)
            .or_else(|| facts.noun(it, words::NEAR_MONEY))
            .is_some()
    };
    above.iter().any(is_money)
        || facts.request.find(words::AMOUNT).is_some()
        || facts.request.ending(&["currency"]).is_some()
        || facts.request.ending(words::AMOUNT_ENDS).is_some()
        || facts.request.top.is_empty() && money_answer(facts).is_some()
        || facts.says(words::PAID_PHRASES).is_some()
}

/// Request member that holds the amount.
pub(super) fn says_how_much<'f>(facts: &'f Facts<'_>) -> Option<&'f str> {
    let request = &facts.request;
    // A member `value` alone does not have to be an amount.
    request
        .find(words::AMOUNT)
        .filter(|it| {
            let is_money = facts.is_of_money || request.ending(&["currency"]).is_some();
            plain(it) != "value" || is_money
        })
        .or_else(|| request.ending(words::AMOUNT_ENDS))
}

/// Response member that holds the amount.
pub(super) fn money_answer<'f>(facts: &'f Facts<'_>) -> Option<&'f str> {
    let response = &facts.response;
    response
        .find(&["amount", "total", "controlsum", "balance"])
        .or_else(|| response.ending(&["amount", "amountdue", "balance", "sum"]))
}
