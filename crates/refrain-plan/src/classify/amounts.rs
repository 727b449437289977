//! What speaks of money, and how much of it.

use crate::{
    facts::Facts,
    text::{last_word, plain, singular},
    verbs::named,
    words,
};

/// What a PUT makes that nothing else does, where it says how much.
pub(super) fn named_payment<'f>(facts: &'f Facts<'_>) -> Option<&'f str> {
    let is_named = facts.method == "PUT" && facts.is_item && facts.is_made_here;
    let noun = money_noun(facts).or_else(|| named(facts.tail(), &["money"]));
    noun.filter(|_| is_named && says_how_much(facts).is_some())
}

/// What the last segment says of money on its way: `payments`, but also `overpayments`.
pub(super) fn money_noun(facts: &Facts<'_>) -> Option<&'static str> {
    let last = last_word(facts.tail());
    let ends = ["payment", "transfer", "refund", "payout"];
    let ending = || ends.into_iter().find(|end| singular(&last).ends_with(end));
    facts.noun(facts.tail(), words::MONEY).or_else(ending)
}

/// An application is withdrawn as well as money is.
pub(super) fn withdraws_money(facts: &Facts<'_>) -> bool {
    facts.noun(facts.parent(), words::PURSES).is_some()
        || facts.request.find(words::AMOUNT).is_some()
        || facts.request.ending(words::AMOUNT_ENDS).is_some()
        || facts.parent().is_empty()
}

/// Whether anything but the verb speaks of money.
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

/// The member of the request that says how much.
pub(super) fn says_how_much<'f>(facts: &'f Facts<'_>) -> Option<&'f str> {
    let request = &facts.request;
    // A `value` may be one of anything.
    request
        .find(words::AMOUNT)
        .filter(|it| {
            let is_money = facts.is_of_money || request.ending(&["currency"]).is_some();
            plain(it) != "value" || is_money
        })
        .or_else(|| request.ending(words::AMOUNT_ENDS))
}

/// The member of the answer that says how much.
pub(super) fn money_answer<'f>(facts: &'f Facts<'_>) -> Option<&'f str> {
    let response = &facts.response;
    response
        .find(&["amount", "total", "controlsum", "balance"])
        .or_else(|| response.ending(&["amount", "amountdue", "balance", "sum"]))
}
