//! Word lists about money. Lower case; nouns in the singular.

/// Verbs that always move money.
pub(crate) const PAYING: &[&str] = &[
    "pay", "charge", "refund", "payout", "deposit", "disburse",
    "topup", "burn", "checkout", "purchase", "buy", "donate", "debit",
    "recall", "repay", "chargeback", "reimburse", "spend", "cashout", "payin", "drawdown",
    "recharge", "prepay", "autopay", "remit", "payoff", "paynow", "buynow", "rebill",
];

/// Verbs that move money if other evidence is about money, and otherwise change a state.
pub(crate) const SOMETIMES_PAYING: &[&str] = &[
    "transfer", "exchange", "swap", "convert", "credit", "collect", "settle", "tip",
    "sell", "bet", "earn", "accrue", "reload", "capture", "redeem", "withdraw", "load", "fund", "present",
];

/// Objects that make a paying verb move no money: `transfer-ownership`.
pub(crate) const UNPAID: &[&str] = &[
    "ownership", "owner", "domain", "number", "file", "call", "chat", "ticket", "repository", "project",
    "device", "screenshot", "image", "lead", "data", "custody", "student", "patient", "prescription",
    "property", "unit",
];

/// Nouns whose creation moves money.
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

/// Nouns whose creation moves money if there is other evidence.
pub(crate) const NEAR_MONEY: &[&str] = &[
    "order", "subscription", "booking", "reservation", "invoice", "batch", "checkout", "quote", "fx",
    "wallet", "point", "voucher", "reward", "billing", "claim", "loan", "ticket", "renewal", "authorization",
    "installment", "adjustment", "policy", "label", "ride", "trip", "delivery", "rental", "auction", "campaign", "upgrade", "addon", "pass", "transaction",
];

/// Nouns of resources that have a price or describe a payment, and whose creation moves no money.
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

/// Request members that hold an amount.
pub(crate) const AMOUNT: &[&str] = &[
    "amount", "value", "total", "sum", "minorunits", "cents", "gross", "principal", "points", "credits",
    "instructedamount", "grandtotal", "subtotal", "quantityofmoney", "stake", "price", "totalprice", "fee",
    "miles", "coins", "pence", "minor", "nominal", "notional", "tokens", "balance", "netamount", "grossamount", "budget", "fare",
    "euros", "dollars", "pounds", "usd", "eur", "denomination", "price",
];

/// Endings of member names that hold an amount, including minor units of some currencies.
pub(crate) const AMOUNT_ENDS: &[&str] = &[
    "amount", "units", "cents", "pence", "paise", "kobo", "centavos", "satoshi", "sats", "groszy", "rappen", "inminor", "minoramount",
];

/// Nouns of collections of payments: `transfer_files`.
pub(crate) const BUNDLES: &[&str] = &["file", "batch", "run", "bundle"];

/// Words for requests, objections and plans about money, which move no money.
pub(crate) const ASKING: &[&str] = &["stop", "object", "contest", "dispute", "request", "enquiry", "inquiry", "application", "app", "apply", "ask", "proposal", "propose", "draft", "quote", "offer", "goal", "target", "budget", "limit"];

/// Members that identify the payer, the payee or the means of payment.
pub(crate) const PARTIES: &[&str] = &[
    "iban", "bic", "creditor", "creditoraccount", "debtor", "debtoraccount", "fromaccount", "toaccount",
    "source", "destination", "paymenttoken", "paymentmethod", "paymentmethodid", "cardtoken", "cardnumber",
    "accountnumber", "from", "to", "payer", "payee", "beneficiary", "sourceaccount", "destinationaccount",
    "walletid", "cardid", "routingnumber", "sortcode", "sender", "receiver", "recipient", "paymentsource",
    "nonce", "payment",
    "card", "cvc", "cvv", "securitycode", "paymentdetails", "paymentinstrument", "bankaccount", "mandate",
    "mandateid", "walletaddress", "msisdn", "guaranteecard",
];

/// Phrases in summaries and descriptions of operations that move money.
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

/// Card data and payment tokens: a request with one usually charges it.
pub(crate) const CARD: &[&str] = &["cvc", "cvv", "cvv2", "securitycode", "cardnumber", "pan", "paymenttoken", "paymentmethodid",
    "paymentsource", "paymentmethodnonce", "sourcetoken", "paymentinstrument", "cardtoken", "tokencard"];

/// Members that identify what is paid for.
pub(crate) const BOUGHT: &[&str] = &[
    "items", "lineitems", "lines", "quantity", "offerid", "fareid", "rateid", "planid", "plan", "priceid", "productid", "sku",
    "cartid", "basketid", "orderid", "invoiceid", "quoteid", "seats", "tickets", "roomcode", "passengers", "bundle", "packageid",
];

/// Endings of members that hold a means of payment, after `payment`: `paymentToken`.
pub(crate) const PAID_WITH: &[&str] = &[
    "method", "methodid", "profile", "profileid", "token", "source", "sourceid", "nonce", "instrumentid", "accountid",
    "card", "cardid", "details",
];

/// Phrases in descriptions of operations that move money later or not at all.
pub(crate) const UNPAID_PHRASES: &[&str] = &[
    "not charged", "nothing is charged", "without charging", "no charge", "no money", "not billed", "only moves when",
    "not paid", "no amount", "no payment is", "later payroll", "does not move", "before it is paid", "without paying", "no funds", "not yet charged", "is not moved",
    "draft", "request money", "for money", "charged when it", "charged later", "charged once", "charged afterwards", "charged at the end",
];

/// Nouns whose approval is a payment if the description says so.
pub(crate) const OWED: &[&str] = &["order", "quote", "fx", "batch", "invoice", "authorization", "checkout", "installment", "basket", "cart", "bill", "payroll", "run", "escrow", "claim", "booking", "reservation", "auction", "trip", "ride", "rental", "delivery", "loan", "subscription"];

/// Nouns whose approval is a payment if the response has an amount.
pub(crate) const DUE: &[&str] = &["quote", "fx", "batch", "authorization", "checkout", "basket", "cart", "bill", "escrow", "installment", "payroll"];

/// Nouns after a money noun, for money that is not released yet: `payment-drafts`.
pub(crate) const LET_GO: &[&str] = &["draft", "request", "batch", "run", "proposal", "instruction", "order"];

/// Verbs that release money if they act on money.
pub(crate) const LETTING_GO: &[&str] = &[
    "authorise", "authorize", "confirm", "accept", "release", "execute", "submit", "process", "send",
    "finalize", "finalise", "complete", "settle", "retry", "approve", "recall", "return", "reverse",
    "resubmit",
    "bind", "clear", "post", "claim", "grant", "place", "settle", "issue", "initiate", "disperse", "fund", "launch", "run", "close", "deal", "trade", "book", "exercise", "waive",
];

/// Nouns whose creation moves money if the request has an amount.
pub(crate) const MEASURED: &[&str] = &[
    "hold", "sweep", "authorization", "authorisation", "movement", "posting", "entry", "journal", "earmark", "deal",
    "transaction", "lien", "adjustment", "reservation", "instruction", "allocation",
];

/// Nouns of `MONEY` that are also used for other things.
pub(crate) const OF_MUCH: &[&str] = &["transfer", "collection", "conversion", "capture", "trade", "gift", "advance", "contribution", "charge", "deposit"];

/// Nouns of things that hold money. To `withdraw` from one moves money; to withdraw anything else does not.
pub(crate) const PURSES: &[&str] = &[
    "account", "wallet", "balance", "pot", "vault", "purse", "fund", "goal", "saving", "point", "portfolio", "pocket", "space", "deposit",
];

/// Nouns of money that is held or taken from a payer; `void` returns it.
pub(crate) const VOIDED: &[&str] = &[
    "payment", "charge", "authorization", "authorisation", "preauthorization", "preauthorisation", "hold", "capture", "transaction",
    "sale", "paymentintent", "payout", "transfer",
];

/// Verbs that make files, mails or copies about money, and move none.
pub(crate) const TELLING: &[&str] = &["export", "import", "print", "email", "mail", "share", "copy", "duplicate", "notify", "remind", "upload", "log", "comment"];

/// Nouns of things that hold money; creating one moves no money.
pub(crate) const POTS: &[&str] = &["wallet", "pot", "vault", "purse", "goal", "pocket", "space", "portfolio"];

/// Nouns of rules about how money moves; after a verb, they move none.
pub(crate) const RULES: &[&str] = &["rule", "limit", "setting", "policy", "schedule", "preference", "template", "reason", "config", "configuration", "control"];
