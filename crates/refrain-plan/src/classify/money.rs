//! Evidence that an operation moves money, or something as valuable as money.

use refrain::policy::Class::{Create, Monetary, Transition};

use super::{
    Case,
    amounts::{
        money_answer, money_noun, named_payment, says_how_much, speaks_of_money, withdraws_money,
    },
};
use crate::{
    facts::Facts,
    members::first,
    text::{plain, singular, words as split},
    verbs::named,
    words,
};

pub(super) fn weigh(facts: &Facts<'_>, case: &mut Case) {
    match facts.method.as_str() {
        "POST" => {}
        // The client chooses the payment's id: `PUT /accounts/{id}/payments/{uid}`.
        "PUT" if named_payment(facts).is_some() => {}
        "PUT" | "PATCH" if facts.is_below_item && facts.has_verb() => {}
        "PUT" | "PATCH" => case.add(Monetary, -4, "it overwrites, so it can be repeated"),
        _ => return,
    }
    let mut signs = Case::default();
    verb(facts, &mut signs);
    noun(facts, &mut signs);
    body(facts, &mut signs);
    answer(facts, &mut signs);
    entry(facts, &mut signs);
    prose(facts, &mut signs);
    adjusting(facts, &mut signs);
    if facts.only_labels() {
        signs.add(Monetary, -6, "its body only sets labels");
    }
    if let Some(noun) = named_payment(facts) {
        let reason = format!("it creates the {noun}, with an id that the client chooses");
        signs.add(Monetary, 8, reason);
    } else if facts.is_item {
        signs.add(
            Monetary,
            -9,
            "its path is a single resource, which it changes",
        );
    }
    match signs.score(Monetary) {
        // Evidence for creating something must not outweigh evidence for money.
        7.. => signs.add(Create, -8, "it creates money or a payment"),
        5.. => signs.add(Create, -5, "it creates money or a payment"),
        3.. => signs.add(Create, -2, "it creates money or a payment"),
        _ => {}
    }
    case.evidence.extend(signs.evidence);
}

/// `adjust` and `correct` with an amount change a balance, so they do not overwrite.
fn adjusting(facts: &Facts<'_>, case: &mut Case) {
    let word = facts.verb(&["adjust", "correct"]);
    let word = word.filter(|_| facts.method == "POST" && says_how_much(facts).is_some());
    if let (Some(word), Some(balance)) = (word, facts.response.ending(&["balance"])) {
        let reason = format!("`{word}` increases or decreases `{balance}`");
        case.add(Monetary, 6, reason);
    }
}

fn verb(facts: &Facts<'_>, case: &mut Case) {
    let tail = split(facts.tail());
    // `spend-rules` are rules, and spend nothing.
    if tail.len() > 1 && facts.noun(facts.tail(), words::RULES).is_some() {
        return;
    }
    let is_unpaid = tail
        .iter()
        .find(|word| words::UNPAID.contains(&word.as_str()));
    if let Some(word) = facts.verb(words::PAYING) {
        match is_unpaid {
            Some(of) => case.add(Monetary, -2, format!("`{word}` is about {of} here")),
            None => case.add(Monetary, 8, format!("`{word}` in the path moves money")),
        }
        return;
    }
    if let Some(word) = facts.verb(words::SOMETIMES_PAYING) {
        let is_of_money = match word {
            "withdraw" => withdraws_money(facts),
            _ => speaks_of_money(facts),
        };
        let weight = if is_unpaid.is_none() && is_of_money {
            8
        } else {
            -1
        };
        case.add(
            Monetary,
            weight,
            format!("`{word}` in the path moves money in an operation about money"),
        );
        if weight < 0 {
            case.add(
                Transition,
                5,
                format!("`{word}` in the path changes the state"),
            );
        }
        return;
    }
    let voided = facts.noun(facts.parent(), words::VOIDED);
    if let (Some(word), Some(noun)) = (facts.verb(&["void"]), voided) {
        case.add(Monetary, 9, format!("`{word}` returns the {noun}"));
        return;
    }
    let Some(word) = facts.verb(words::LETTING_GO) else {
        return;
    };
    // In `releaseEscrow` the money is the object of the verb.
    let object = tail.get(1..).unwrap_or_default().join("-");
    let of = facts.noun(&object, words::MONEY);
    if let Some(noun) = of.or_else(|| facts.noun(&object, &["fund", "money"])) {
        case.add(Monetary, 9, format!("`{word}` releases the {noun}"));
        return;
    }
    let above = facts.parent();
    let of_money = || {
        let is_let_go = facts.noun(above, words::LET_GO).is_some();
        named(above, words::MONEY).filter(|_| is_let_go)
    };
    let noun = facts
        .noun(above, words::MONEY)
        .or_else(of_money)
        .or_else(|| facts.noun(above, words::OWED));
    let is_told = noun.is_some_and(|noun| {
        words::MONEY.contains(&noun)
            || words::DUE.contains(&noun) && word != "send" && money_answer(facts).is_some()
            || facts.says(words::PAID_PHRASES).is_some()
                && facts.says(words::UNPAID_PHRASES).is_none()
    });
    if let Some(noun) = noun.filter(|_| is_told && facts.is_below_item) {
        case.add(Monetary, 9, format!("`{word}` releases the {noun}"));
    }
}

fn noun(facts: &Facts<'_>, case: &mut Case) {
    let tail = facts.tail();
    if facts.is_item
        || facts
            .verb(words::MOVING)
            .is_some_and(|_| facts.is_below_item)
    {
        return;
    }
    if facts
        .verb(words::TELLING)
        .is_some_and(|it| it == plain(tail))
    {
        return;
    }
    let made = facts.verb(words::MAKING).filter(|it| *it == plain(tail));
    let of = facts.noun(facts.parent(), words::MONEY);
    let is_paid = says_how_much(facts).is_some()
        && facts.says(words::PAID_PHRASES).is_some()
        && facts.says(words::UNPAID_PHRASES).is_none();
    // `loads` of a purse.
    let paying = facts.noun(tail, words::PAYING);
    let paying = paying.or_else(|| facts.noun(tail, words::SOMETIMES_PAYING));
    // In a financial API, an `item` or `line` with an amount is money, not a description of it.
    let is_plain = facts.is_of_money && says_how_much(facts).is_some();
    if let (Some(word), Some(noun)) = (made, of) {
        case.add(
            Monetary,
            7,
            format!("`{word}` creates a new `{noun}`, which transfers money"),
        );
    } else if let Some(noun) = facts.noun(tail, words::POTS).filter(|_| !is_paid) {
        case.add(Monetary, -5, format!("`{noun}` holds money"));
    } else if let (Some(noun), Some(many)) = (
        named(tail, words::MONEY).or_else(|| named(&singular(tail), words::MONEY)),
        facts
            .noun(tail, words::BUNDLES)
            .filter(|_| split(tail).len() > 1),
    ) {
        case.add(
            Monetary,
            6,
            format!("`{noun}` transfers money, by the {many}"),
        );
    } else if let Some(noun) = money_noun(facts) {
        // A known body that has nothing about money moves something else: stock, files.
        let is_other = words::OF_MUCH.contains(&noun)
            && !facts.request.top.is_empty()
            && !speaks_of_money(facts)
            && !facts.has_key();
        let weight = if is_other { 1 } else { 6 };
        case.add(Monetary, weight, format!("`{noun}` transfers money"));
    } else if let Some(noun) = facts
        .noun(tail, words::MEASURED)
        .or_else(|| paying.filter(|_| split(tail).len() == 1))
        .filter(|_| says_how_much(facts).is_some())
    {
        case.add(
            Monetary,
            6,
            format!("`{noun}` with an amount transfers money"),
        );
    } else if let Some(noun) = facts
        .noun(tail, words::PRICED)
        .filter(|it| !is_plain || !["item", "line"].contains(it))
        .filter(|_| facts.verb(words::WRITING).is_none() && !is_paid)
    {
        case.add(Monetary, -6, format!("`{noun}` only describes money"));
    } else if let Some(noun) = facts.noun(tail, words::NEAR_MONEY) {
        case.add(Monetary, 2, format!("`{noun}` often costs money"));
    } else if let Some(noun) =
        named(facts.parent(), words::MONEY).or_else(|| facts.noun(facts.parent(), words::MONEY))
    {
        let weight = if facts.is_below_item { 0 } else { 4 };
        case.add(Monetary, weight, format!("it is one of the {noun}s"));
    }
}

/// Whether the operation only requests money, or can precede the payment by a long time.
fn is_asking(facts: &Facts<'_>) -> bool {
    let is_noun = |list| facts.noun(facts.tail(), list).is_some();
    is_noun(words::ASKING)
        || is_noun(words::NEAR_MONEY)
        || facts.leading_verb(words::ASKING).is_some()
        || facts.verb(words::ASKING).is_some()
}

fn body(facts: &Facts<'_>, case: &mut Case) {
    let request = &facts.request;
    let currency = request.ending(&["currency"]);
    let amount = says_how_much(facts);
    let party = request
        .find(words::PARTIES)
        .or_else(|| request.ending(&["account", "iban"]));
    if let Some(amount) = amount {
        let is_made = facts.is_made() || facts.status == 202;
        let (weight, more) = match facts.is_of_money && is_made && !is_asking(facts) {
            true => (5, ", in an API that moves money"),
            false => (2, ""),
        };
        let reason = format!("`{amount}` in its body is an amount{more}");
        case.add(Monetary, weight, reason);
        if let Some(currency) = currency {
            case.add(
                Monetary,
                1,
                format!("`{currency}` in its body is a currency"),
            );
        }
        if let Some(party) = party {
            case.add(
                Monetary,
                3,
                format!("`{party}` in its body is the payer or the payee"),
            );
        }
    }
    // Storing a card does not charge it.
    let is_stored = facts.noun(facts.tail(), words::PRICED).is_some();
    let pays = |name: &str| {
        let behind = name.strip_prefix("payment");
        behind.is_some_and(|it| words::PAID_WITH.contains(&it))
    };
    let with = first(&request.all, pays);
    let token = request.find(words::CARD).or(with);
    if let Some(token) = token.filter(|_| !is_stored) {
        // Without anything to pay for, the operation may only store the token.
        let is_for = amount.is_some()
            || facts.noun(facts.tail(), words::NEAR_MONEY).is_some()
            || facts.noun(facts.tail(), words::MONEY).is_some()
            || request.find(words::BOUGHT).is_some()
            || facts.says(words::PAID_PHRASES).is_some();
        let weight = if is_for { 5 } else { 1 };
        case.add(
            Monetary,
            weight,
            format!("`{token}` in its body is a payment method"),
        );
    }
    if facts.has_key() {
        case.add(Monetary, 2, "it already accepts an idempotency key");
        case.add(Create, 1, "it already accepts an idempotency key");
    }
    let marked = |(name, is): &&(&str, bool)| *is && name.contains("idempoten");
    if let Some((name, _)) = facts.extensions.iter().find(marked) {
        case.add(Monetary, 1, format!("it is marked with `{name}`"));
    }
}

/// `{entryNo, amount, balance}`: a ledger entry, and the balance after it.
fn entry(facts: &Facts<'_>, case: &mut Case) {
    let top = &facts.response.top;
    let balance = first(top, |name| name.contains("balance"));
    let amount = first(top, |name| {
        let is_amount = words::AMOUNT_ENDS.iter().any(|end| name.ends_with(end));
        is_amount && !name.contains("balance")
    });
    let is_new = facts.method == "POST" && facts.response.has_id() && !facts.answers_parent;
    if let (Some(amount), Some(balance)) = (amount, balance.filter(|_| is_new)) {
        let reason =
            format!("its response is a ledger entry: `{amount}`, and `{balance}` after it");
        case.add(Monetary, 5, reason);
    }
}

fn answer(facts: &Facts<'_>, case: &mut Case) {
    let Some(amount) = money_answer(facts) else {
        return;
    };
    let is_of_request = facts.request.find(words::AMOUNT).is_some();
    if !is_of_request && !facts.answers_parent {
        case.add(
            Monetary,
            1,
            format!("`{amount}` in its response is an amount"),
        );
    }
    if let Some(balance) = facts
        .response
        .ending(&["balance"])
        .filter(|_| facts.has_body && (is_of_request || facts.has_verb() && !facts.answers_parent))
    {
        case.add(
            Monetary,
            2,
            format!("`{balance}` in its response is the remaining balance"),
        );
        // `/pots/{id}/drain`, with any verb: the request has the amount, and the response has the new balance.
        let purse = facts.noun(facts.parent(), words::PURSES);
        let is_rule = facts.noun(facts.tail(), words::RULES).is_some();
        if let Some(purse) = purse.filter(|_| is_of_request && facts.is_below_item && !is_rule) {
            let reason = format!("an amount is added to or taken from the {purse}");
            case.add(Monetary, 5, reason);
        }
    }
}

fn prose(facts: &Facts<'_>, case: &mut Case) {
    if let Some(phrase) = facts.says(words::UNPAID_PHRASES) {
        case.add(Monetary, -3, format!("its text says “{phrase}”"));
    } else if let Some(phrase) = words::PAID_PHRASES
        .iter()
        .find(|it| facts.summary.contains(**it))
    {
        case.add(Monetary, 6, format!("its summary says “{}”", phrase.trim()));
        case.add(Transition, -2, "it changes more than a state");
    } else if let Some(phrase) = facts.says(words::PAID_PHRASES) {
        case.add(Monetary, 5, format!("its text says “{}”", phrase.trim()));
    }
    let first = facts.summary.split_whitespace().next().unwrap_or_default();
    let named = [first, facts.id_verb.as_str()].into_iter().find(|word| {
        words::PAYING.contains(word)
            || words::SOMETIMES_PAYING.contains(word)
                && facts.request.ending(words::AMOUNT_ENDS).is_some()
    });
    if let Some(word) = named
        .filter(|_| facts.verb(words::PAYING).is_none() && facts.verb(words::LOOKING).is_none())
    {
        case.add(Monetary, 6, format!("its name starts with `{word}`"));
    }
    let tag = facts
        .tags
        .iter()
        .find(|tag| words::MONEY.contains(&tag.as_str()) || *tag == "billing");
    if let Some(tag) = tag {
        case.add(Monetary, 1, format!("it is tagged `{tag}`"));
    }
    if facts.segments.iter().any(|it| it == "billing") {
        case.add(Monetary, 1, "`billing` is in its path");
    }
}
