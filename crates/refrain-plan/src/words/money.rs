//! The words of money. Lower case; nouns in the singular.

/// Verbs that move money by themselves.
pub(crate) const PAYING: &[&str] = &[
    "pay", "charge", "refund", "payout", "deposit", "disburse",
    "topup", "burn", "checkout", "purchase", "buy", "donate", "debit",
    "recall", "repay", "chargeback", "reimburse", "spend", "cashout", "payin", "drawdown",
    "recharge", "prepay", "autopay", "remit", "payoff", "paynow", "buynow", "rebill",
];

/// Verbs that move money where something else speaks of money, too, and otherwise move something on.
pub(crate) const SOMETIMES_PAYING: &[&str] = &[
    "transfer", "exchange", "swap", "convert", "credit", "collect", "settle", "tip",
    "sell", "bet", "earn", "accrue", "reload", "capture", "redeem", "withdraw", "load", "fund", "present",
];

/// What such a verb is also used for, without money.
pub(crate) const UNPAID: &[&str] = &[
    "ownership", "owner", "domain", "number", "file", "call", "chat", "ticket", "repository", "project",
    "device", "screenshot", "image", "lead", "data", "custody", "student", "patient", "prescription",
    "property", "unit",
];

/// Nouns whose making moves money.
pub(crate) const MONEY: &[&str] = &[
    "payment", "charge", "refund", "transfer", "payout", "withdrawal", "deposit", "collection", "conversion",
    "disbursement", "repayment", "drawdown", "topup", "donation", "purchase", "standingorder", "directdebit",
    "remittance", "reversal", "capture", "giftcard", "credit", "debit", "trade", "bet", "wager", "settlement",
    "prepayment", "chargeback", "reimbursement", "payin", "sale", "tip", "cashout", "redemption", "recharge",
    "paymentintent", "paymentorder", "contribution", "advance", "bill", "premium", "fee", "fine", "cashback",
    "accrual", "gift", "payrun", "wire", "ach", "bid", "stake", "bonus", "coin", "escrow", "commission", "dividend", "airtime", "pledge", "salary",
    "wage", "copay", "writeoff", "cashadvance", "microdeposit", "debitnote", "creditnote", "creditmemo", "moneytransfer", "preauthorization", "preauthorisation",
    "claimpayment", "payable", "p2p", "tithe", "royalty", "surcharge", "encashment", "lodgement", "rebate", "levy", "gratuity", "stipend", "buyback", "overpayment", "goodwill",
];

/// Nouns that stand for money where something else says so, too.
pub(crate) const NEAR_MONEY: &[&str] = &[
    "order", "subscription", "booking", "reservation", "invoice", "batch", "checkout", "quote", "fx",
    "wallet", "point", "voucher", "reward", "billing", "claim", "loan", "ticket", "renewal", "authorization",
    "installment", "adjustment", "policy", "label", "ride", "trip", "delivery", "rental", "auction", "campaign", "upgrade", "addon", "pass", "transaction",
];

/// Nouns of things that only tell of money.
pub(crate) const PRICED: &[&str] = &[
    "product", "price", "pricelist", "coupon", "plan", "limit", "beneficiary", "account", "mandate",
    "paymentmethod", "card", "application", "quote", "budget", "discount", "promotion", "item", "line",
    "cart", "rate", "tariff", "payee", "recipient", "catalog", "catalogue", "listing", "offer", "customer",
    "report", "statement", "dispute", "evidence", "bankaccount", "externalaccount", "paymentlink", "note",
    "comment", "return", "shipment", "fulfillment", "fulfilment", "opportunity", "deal", "review", "taxrate",
    "shippingrate", "variant", "sku", "consent", "policy", "estimate", "project", "campaign", "rule",
    "schedule", "attachment", "document", "address", "paymentprofile", "paymentinstrument", "paymentmethod", "authorisation",
    "validation", "verification", "mandate", "beneficiaryaccount", "paymentpage", "template", "category", "budget", "forecast",
    "garnishment", "token", "paymentrequest", "moneyrequest", "enrollment", "enrolment", "wishlist", "link",
];

/// Members of a request that say how much.
pub(crate) const AMOUNT: &[&str] = &[
    "amount", "value", "total", "sum", "minorunits", "cents", "gross", "principal", "points", "credits",
    "instructedamount", "grandtotal", "subtotal", "quantityofmoney", "stake", "price", "totalprice", "fee",
    "miles", "coins", "pence", "minor", "nominal", "notional", "tokens", "balance", "netamount", "grossamount", "budget", "fare",
    "euros", "dollars", "pounds", "usd", "eur", "denomination", "price",
];

/// How names of members end that say how much, the least coins of some countries among them.
pub(crate) const AMOUNT_ENDS: &[&str] = &[
    "amount", "units", "cents", "pence", "paise", "kobo", "centavos", "satoshi", "sats", "groszy", "rappen", "inminor", "minoramount",
];

/// What holds many payments that go together: `transfer_files`.
pub(crate) const BUNDLES: &[&str] = &["file", "batch", "run", "bundle"];

/// What only asks for money or its return, or says that it is wanted.
pub(crate) const ASKING: &[&str] = &["stop", "object", "contest", "dispute", "request", "enquiry", "inquiry", "application", "app", "apply", "ask", "proposal", "propose", "draft", "quote", "offer", "goal", "target", "budget", "limit"];

/// Members that say between whom, or with what it is paid.
pub(crate) const PARTIES: &[&str] = &[
    "iban", "bic", "creditor", "creditoraccount", "debtor", "debtoraccount", "fromaccount", "toaccount",
    "source", "destination", "paymenttoken", "paymentmethod", "paymentmethodid", "cardtoken", "cardnumber",
    "accountnumber", "from", "to", "payer", "payee", "beneficiary", "sourceaccount", "destinationaccount",
    "walletid", "cardid", "routingnumber", "sortcode", "sender", "receiver", "recipient", "paymentsource",
    "nonce", "payment",
    "card", "cvc", "cvv", "securitycode", "paymentdetails", "paymentinstrument", "bankaccount", "mandate",
    "mandateid", "walletaddress", "msisdn", "guaranteecard",
];

/// What summaries and descriptions say where money moves.
pub(crate) const PAID_PHRASES: &[&str] = &[
    "is charged", "are charged", "charged to", "charges the", "charge the", "is paid", "are paid", "pays ",
    "pay the", "money back", "the money", "payment is sent", "credit transfer", "all transfers", "billed",
    "debited", "credited", "deducted", "funds are", "moves funds", "charged at once", "paid out",
    "takes payment", "grant credits", "collects payment",
    "take payment", "and pay", "collected", "charged", "compensat",
    "paid from", "paid by", "paid with", "money", "taken from", "deduct", "is authorised on", "is authorized on", "authorises the card", "authorizes the card",
    "holds the", "is captured", "are captured", "captured when", "returned to the", "is refunded", "are refunded", "is withdrawn from", "added to the balance", "to the wallet", "player's wallet", "to the balance",
    "from the balance", "invoiced", "debit the", "debits", "credits the", "credit the", "settles", "moves funds", "binding bid", "transfers the", "disburse", "and charge ", "or charge ", "and refund", "or refund", "and debit", "and credit", "and capture", "place the order", "places the order", "place an order", "payment is made", "payment goes", "money goes", "goes out", "payments are made", "are executed",
];

/// Card data: whoever sends it wants to be charged.
pub(crate) const CARD: &[&str] = &["cvc", "cvv", "cvv2", "securitycode", "cardnumber", "pan", "paymenttoken", "paymentmethodid",
    "paymentsource", "paymentmethodnonce", "sourcetoken", "paymentinstrument", "cardtoken", "tokencard"];

/// Members that say what is paid for.
pub(crate) const BOUGHT: &[&str] = &[
    "items", "lineitems", "lines", "quantity", "offerid", "fareid", "rateid", "planid", "plan", "priceid", "productid", "sku",
    "cartid", "basketid", "orderid", "invoiceid", "quoteid", "seats", "tickets", "roomcode", "passengers", "bundle", "packageid",
];

/// Members by which a thing is paid for, behind `payment`.
pub(crate) const PAID_WITH: &[&str] = &[
    "method", "methodid", "profile", "profileid", "token", "source", "sourceid", "nonce", "instrumentid", "accountid",
    "card", "cardid", "details",
];

/// What texts say where the money moves at another time, or not at all.
pub(crate) const UNPAID_PHRASES: &[&str] = &[
    "not charged", "nothing is charged", "without charging", "no charge", "no money", "not billed", "only moves when",
    "not paid", "no amount", "no payment is", "later payroll", "does not move", "before it is paid", "without paying", "no funds", "not yet charged", "is not moved",
    "draft", "request money", "for money", "charged when it", "charged later", "charged once", "charged afterwards", "charged at the end",
];

/// Of the nouns near money, those whose acceptance is a payment.
pub(crate) const OWED: &[&str] = &["order", "quote", "fx", "batch", "invoice", "authorization", "checkout", "installment", "basket", "cart", "bill", "payroll", "run", "escrow", "claim", "booking", "reservation", "auction", "trip", "ride", "rental", "delivery", "loan", "subscription"];

/// Nouns whose acceptance is a payment, where the answer says how much.
pub(crate) const DUE: &[&str] = &["quote", "fx", "batch", "authorization", "checkout", "basket", "cart", "bill", "escrow", "installment", "payroll"];

/// Nouns behind the money that they let go: `payment-drafts`.
pub(crate) const LET_GO: &[&str] = &["draft", "request", "batch", "run", "proposal", "instruction", "order"];

/// Of these, verbs that let money go where the thing they act on is money.
pub(crate) const LETTING_GO: &[&str] = &[
    "authorise", "authorize", "confirm", "accept", "release", "execute", "submit", "process", "send",
    "finalize", "finalise", "complete", "settle", "retry", "approve", "recall", "return", "reverse",
    "resubmit",
    "bind", "clear", "post", "claim", "grant", "place", "settle", "issue", "initiate", "disperse", "fund", "launch", "run", "close", "deal", "trade", "book", "exercise", "waive",
];

/// Nouns that are money where the body says how much.
pub(crate) const MEASURED: &[&str] = &[
    "hold", "sweep", "authorization", "authorisation", "movement", "posting", "entry", "journal", "earmark", "deal",
    "transaction", "lien", "adjustment", "reservation", "instruction", "allocation",
];

/// Of the nouns of money, those that are used of other things as well.
pub(crate) const OF_MUCH: &[&str] = &["transfer", "collection", "conversion", "capture", "trade", "gift", "advance", "contribution", "charge", "deposit"];

/// What holds money: from these one withdraws it, and elsewhere one withdraws what one has said.
pub(crate) const PURSES: &[&str] = &[
    "account", "wallet", "balance", "pot", "vault", "purse", "fund", "goal", "saving", "point", "portfolio", "pocket", "space", "deposit",
];

/// What is held or taken from a payer, and goes back to him when it is made void.
pub(crate) const VOIDED: &[&str] = &[
    "payment", "charge", "authorization", "authorisation", "preauthorization", "preauthorisation", "hold", "capture", "transaction",
    "sale", "paymentintent", "payout", "transfer",
];

/// Verbs that make something of money, and move none: files, mails, copies.
pub(crate) const TELLING: &[&str] = &["export", "import", "print", "email", "mail", "share", "copy", "duplicate", "notify", "remind", "upload", "log", "comment"];

/// Where money is kept: making one moves none.
pub(crate) const POTS: &[&str] = &["wallet", "pot", "vault", "purse", "goal", "pocket", "space", "portfolio"];

/// What says how money may move: behind a verb, it moves none.
pub(crate) const RULES: &[&str] = &["rule", "limit", "setting", "policy", "schedule", "preference", "template", "reason", "config", "configuration", "control"];
