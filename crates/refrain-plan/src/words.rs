//! Word lists for classification. Lower case; nouns in the singular.

mod money;

pub(crate) use money::*;

/// All lists of verbs.
pub(crate) const VERBS: &[&[&str]] = &[
    LOOKING, MOVING, MAKING, WRITING, REMOVING, PAYING, SOMETIMES_PAYING, LETTING_GO,
];

/// Whether any list of verbs has the word.
pub(crate) fn is_verb(word: &str) -> bool {
    VERBS.iter().any(|list| list.contains(&word))
}

/// Whether the word is a verb and not also a noun.
pub(crate) fn is_plain_verb(word: &str) -> bool {
    let nouns = [MONEY, NEAR_MONEY, PRICED, SINGLE, TOLD, BOTH];
    is_verb(word) && !nouns.iter().any(|list| list.contains(&word))
}

/// Words that are nouns as often as verbs.
const BOTH: &[&str] = &[
    "share", "test", "post", "mail", "message", "request", "print", "hold", "review", "match", "rate", "score",
    "balance", "route", "distance", "return", "open", "lead", "import", "export", "process", "sign",
    "issue", "link", "report", "scan", "release", "port", "access", "search", "scale",
];

/// Nouns of read-only operations, whichever verb precedes them: `create_preview`.
pub(crate) const LOOKED_AT: &[&str] = &["preview", "estimate", "estimation", "simulation", "calculation", "forecast"];

/// Path segments that contain actions.
pub(crate) const ACTS: &[&str] = &["actions", "action", "commands", "command"];

/// Words before a verb that only say how many, or how.
pub(crate) const MANY: &[&str] = &["batch", "bulk", "mass", "multi", "async", "do", "force", "auto", "self"];

/// File extensions, which are not verbs.
pub(crate) const ENDINGS: &[&str] = &[
    "json", "xml", "yaml", "csv", "pdf", "html", "php", "aspx", "asmx", "ashx", "jsp", "cgi", "do", "txt", "zip", "ics", "well", "known",
];

/// Verbs of operations that only read, although they use POST.
pub(crate) const LOOKING: &[&str] = &[
    "search", "query", "find", "lookup", "filter", "list", "count", "validate", "validation", "check",
    "estimate", "estimation", "preview", "quote", "calculate", "calculation", "compute", "simulate",
    "simulation", "evaluate", "evaluation", "translate", "compare", "batchget", "bulkget", "multiget", "mget",
    "get", "fetch", "resolve", "suggest", "suggestion", "autocomplete", "rate", "availability", "balance",
    "introspect", "introspection", "decode", "parse", "render", "lint", "diff", "explain", "predict",
    "prediction", "classify", "analyze", "analyse", "score", "scan", "detect", "dryrun", "simulator",
    "forecast", "recommend", "recommendation", "aggregate", "statistics", "stats", "match", "geocode",
    "convert", "inspect", "browse", "eligibility", "confirmationofpayee", "convertcurrency",
    "nearby",
    "pricing", "seatmap", "lookups", "retrieve", "describe", "scoring", "verification",
    "typeahead", "histogram", "itemize", "reverse_geocode", "distance", "route",
    "directions", "availabilities", "normalize", "normalise", "standardize", "standardise", "info", "history",
    "projection", "eligible", "view", "show", "inquiry", "enquiry", "inquire", "testiampermissions",
    "testpermissions", "calculator", "interpolate", "similar", "discover", "indicative",
    "feasibility", "serviceability", "coverage", "screen", "screening", "identify", "extract", "summarize", "summarise",
    "tokeninfo", "userinfo", "whoami", "peek", "poll", "embed", "embedding", "rank", "rerank", "graphql",
    "exists", "trace", "download", "nearest", "proofread", "transcribe", "stream", "figure", "quotation", "illustration", "diagnose", "troubleshoot", "benchmark",
];

/// Values to look up: an operation whose response has one, and whose request does not, only reads.
pub(crate) const ASKED: &[&str] = &[
    "status", "fee", "balance", "rate", "price", "tax", "cost", "total", "quota", "duty", "premium", "interest", "commission", "surcharge",
    "discount", "limit", "state",
];

/// Beginnings of summaries of read-only operations.
pub(crate) const LOOKING_PHRASES: &[&str] = &[
    "find ", "search", "look up", "looks up", "lookup", "check whether", "checks whether", "check if",
    "how many", "the ways", "list ", "lists ", "get ", "gets ", "retrieve", "returns ", "fetch", "query",
    "estimate", "calculate", "calculates", "preview", "simulate", "validate", "determine", "show ", "compare",
    "asks whether", "ask whether", "tells whether", "whether ", "test whether", "tests whether", "view ", "available ", "verify whether", "obtain ",
    "ways to", "which ", "indicative", "compute ", "computes", "work out", "works out", "requery", "re-query", "tell whether", "see whether",
    "see if", "see where", "find out", "what ", "how ", "where ", "who ", "ask where", "asks where", "ask what", "ask how",
];

/// Phrases in descriptions of operations without side effects.
pub(crate) const HARMLESS_PHRASES: &[&str] = &[
    "without storing", "nothing is stored", "does not store", "without saving", "nothing is saved", "not saved",
    "without creating", "does not create", "nothing is created", "without executing", "without sending", "without initiating",
    "without booking", "without charging", "nothing is charged", "no side effect", "dry run", "dry-run", "read-only", "read only",
    "changes nothing", "nothing is changed", "no amount is", "without placing", "nothing is reserved", "non-binding",
    "not persisted", "without committing", "no charge is made", "no money", "would cost", "would be charged", "would come to", "would happen", "it would", "would be refunded",
    "would apply",
];

/// Request members that select a part of a list.
pub(crate) const PAGING: &[&str] = &[
    "page", "limit", "offset", "cursor", "filter", "filters", "facets", "orderby", "sort", "sortby",
    "pagetoken", "pagesize", "perpage", "query", "q", "skus", "ids", "searchterm", "keyword", "keywords",
    "after", "before",
];

/// Response members of a page of a list.
pub(crate) const PAGED: &[&str] = &[
    "total", "next", "nextpage", "nextpagetoken", "cursor", "nextcursor", "hasmore", "page", "hits",
    "totalcount", "count", "results", "facets",
];

/// Response members that hold the result of a check.
pub(crate) const JUDGEMENT: &[&str] = &[
    "valid", "isvalid", "allowed", "deliverable", "match", "matches", "eligible", "available", "approved",
    "result", "errors", "violations", "warnings", "suggestions", "matched", "exists", "serviceable",
];

/// Verbs that change the state of a resource.
pub(crate) const MOVING: &[&str] = &[
    "cancel", "approve", "reject", "activate", "deactivate", "enable", "disable", "freeze", "unfreeze",
    "block", "unblock", "lock", "unlock", "suspend", "resume", "pause", "unpause", "start", "stop", "restart",
    "archive", "unarchive", "restore", "publish", "unpublish", "submit", "accept", "decline", "confirm",
    "complete", "close", "reopen", "open", "void", "expire", "revoke", "rotate", "retry", "redeliver",
    "resend", "replay", "drain", "flush", "acknowledge", "ack", "assign", "unassign", "claim", "release",
    "ship", "deliver", "receive", "finalize", "finalise", "authorise", "authorize", "execute", "process",
    "verify", "merge", "promote", "demote", "move", "transfer", "renew", "extend", "reset", "terminate",
    "abort", "trigger", "run", "rollback", "deploy", "checkin", "checkout", "escalate", "snooze", "mute",
    "unmute", "join", "leave", "logout", "unsubscribe", "skip", "advance", "hold", "unhold", "mark", "ban",
    "unban", "reactivate", "reinstate", "upgrade", "downgrade", "switch", "migrate", "invalidate", "refresh",
    "regenerate", "return", "handover", "dispatch", "fulfill", "fulfil",
    "end", "finish", "begin", "bind", "assess", "review", "checkout", "attend", "pick", "pack", "sign",
    "countersign", "unlink", "link", "connect", "disconnect", "reboot", "reindex", "sync", "resync",
    "resolve", "unresolve", "follow", "unfollow", "like", "unlike", "accept", "reopen",
    "scale", "provision", "deprovision", "reschedule", "port",
    "read", "deny", "resize", "rebuild", "attach", "noshow", "transmit", "retract", "watch", "unwatch", "requeue", "undelete", "ignore", "dismiss", "apply", "consume", "arrive",
    "depart", "rehire", "hire", "onboard", "offboard", "clockin", "clockout", "punchin", "punchout", "roll", "boost", "vote", "upvote",
    "downvote", "react", "flag", "unflag", "favorite", "bookmark", "hide", "unhide", "seal", "admit", "discharge", "triage",
    "certify", "notarize", "revert", "undo", "redo", "split", "reassign", "delegate", "wake", "shutdown", "poweron", "poweroff",
    "evict", "kick", "postpone", "defer", "lapse", "surrender", "endorse", "commit", "quarantine", "recalculate",
    "reprocess", "rerun", "nack", "ring", "land", "board", "load", "unload", "seat",
    "cancelation", "cancellation", "activation", "deactivation", "suspension", "termination", "reactivation", "unsuspend",
    "setdefault", "makedefault", "unenroll", "graduate", "unlist", "relist",
    "recalc", "vacate", "swipe", "unassign", "detach", "select", "deselect", "nominate", "negotiate", "contest", "withdraw", "lift", "waive", "discontinue", "moderate", "trust", "untrust", "toggle", "decommission", "recommission", "relocate", "retire", "done", "on", "off", "reroute", "unpin", "unstar", "discard",
    "pair", "unpair", "arm", "disarm", "stage", "unstage", "rebalance", "reclassify", "refusal", "rejection", "approval", "acceptance", "closure", "completion", "revocation", "offboarding", "blockage",
    "resignation", "dismissal", "escalation", "abandon", "withdrawn", "recover", "park", "concede",
];

/// Verbs that create something, in paths that use a verb instead of a noun.
pub(crate) const MAKING: &[&str] = &[
    "create", "add", "new", "import", "upload", "duplicate", "copy", "clone", "fork", "send", "register",
    "invite", "generate", "signup", "test", "insert", "append", "enqueue", "schedule", "order",
    "request", "issue", "subscribe", "book", "reserve", "enroll", "enrol", "post", "share", "print",
    "email", "mail", "message", "notify", "grant", "export", "place", "make", "initiate", "open", "login", "signin",
    "authenticate", "onboard", "record", "log", "ping", "ask", "propose", "draft", "spawn", "instantiate",
    "tokenize", "tokenise", "allocate", "raise", "file", "comment", "reply", "forward", "announce", "broadcast", "remind", "nudge",
];

/// Verbs of `LOOKING` and `MAKING` that change the state of a resource if the response is that resource:
/// `/consents/{id}/grant`.
pub(crate) const HANDLING: &[&str] = &[
    "inspect", "check", "match", "score", "rate", "scan", "screen", "classify", "convert", "evaluate", "grant", "open", "issue",
    "schedule", "enroll", "enrol", "allocate", "reserve", "raise", "onboard", "verification", "screening", "register",
];

/// Verbs that overwrite something.
pub(crate) const WRITING: &[&str] = &[
    "update", "change", "set", "edit", "modify", "replace", "upsert", "save", "rename", "configure",
    "overwrite", "amend", "adjust", "correct", "revise", "put", "patch", "reorder", "retag", "recategorize",
];

/// Nouns of which a resource has exactly one: a write replaces it.
pub(crate) const SINGLE: &[&str] = &[
    "avatar", "photo", "picture", "password", "setting", "preference", "profile", "address", "metadata",
    "limit", "pin", "logo", "cover", "email", "configuration", "config", "status", "role", "locale", "label",
    "tag", "price", "state",
];

/// Verbs that delete something.
pub(crate) const REMOVING: &[&str] = &[
    "delete", "remove", "purge", "trash", "empty", "destroy", "erase", "clear", "batchdelete", "bulkdelete",
];

/// Verbs of an external sender that delivers events: `Carriers call this when a parcel moves`.
pub(crate) const SENDING: &[&str] = &["report", "send", "post", "push", "deliver", "drop", "call", "tell", "notify",
    "inform", "say", "advise",
];

/// Path words under which external systems deliver events.
pub(crate) const DELIVERED: &[&str] = &[
    "webhook", "hook", "callback", "ipn", "inbound", "ingest", "ingestion", "notify", "telemetry", "track",
    "push", "incoming", "listener", "postback", "edi", "pingback", "beacon", "heartbeat", "receiver", "sink",
    "collector", "dlr", "eventgrid", "pubsub", "sns", "webhookreceiver", "upstream", "inbox", "inward",
];

/// Words after a delivery word that make the path manage deliveries, not receive them: `webhook-subscriptions`.
pub(crate) const MANAGED: &[&str] = &[
    "subscription", "endpoint", "url", "config", "configuration", "setting", "secret", "key", "template", "rule",
    "registration", "destination", "attempt", "target", "portal", "token",
];

/// Words of operations that need no authentication, because they provide it or are public forms.
pub(crate) const ENTRANCE: &[&str] = &[
    "login", "signin", "signup", "register", "registration", "token", "oauth", "auth", "password", "otp", "forgot", "session", "logout",
    "refresh", "recover", "recovery", "captcha", "contact", "newsletter", "oauth2", "mfa",
];

/// Nouns that report a result or an observation.
pub(crate) const OUTCOMES: &[&str] = &["result", "outcome", "advice", "decision", "ping", "alarm", "alert", "reading", "acknowledgement"];

/// Words after a noun that say what happened to it, besides words that end in -ed.
pub(crate) const PAST: &[&str] = &["paid", "sent", "lost", "won", "available", "overdue", "ready", "seen", "broken"];

/// Verbs that create something if the response has its id, and otherwise change a state.
pub(crate) const STARTING: &[&str] = &["start", "begin", "open", "run", "trigger", "submit", "process", "execute"];

/// Nouns without a plural; a POST adds to them as to a list.
pub(crate) const UNCOUNTED: &[&str] = &["feedback", "evidence", "correspondence", "media", "content", "data", "proof", "homework", "equipment", "luggage", "baggage", "staff"];

/// Response members that hold the payload of an envelope.
pub(crate) const ENVELOPE: &[&str] = &["data", "result", "response", "payload"];

/// Response members that stand beside the payload of an envelope.
pub(crate) const ENVELOPED: &[&str] = &[
    "meta", "links", "error", "errors", "status", "message", "code", "success", "requestid", "included", "warnings", "timestamp", "traceid",
];

/// Path words for events, weaker evidence than `DELIVERED`.
pub(crate) const TOLD: &[&str] = &[
    "event", "notification", "interaction", "receipt", "signal", "measurement", "log", "metric", "tracking",
];

/// Headers with which webhook senders sign and number their deliveries.
pub(crate) const SIGNED: &[&str] = &[
    "signature", "hmac", "delivery", "webhookid", "webhook", "eventid", "svixid", "transmission", "hubsignature", "event", "messagenumber",
    "channelid", "resourcestate", "ceid", "cetype", "cesource", "transmissionsig", "notificationid", "topic", "amzsnsmessagetype", "deliveryid",
];

/// Phrases in descriptions of operations that receive deliveries.
pub(crate) const DELIVERED_PHRASES: &[&str] = &[
    "notification", "webhook", "callback", "arrives", "came in", "comes in", "call this when", "calls this",
    "called by", "reports what", "report what", "reports the", "push deliver", "drop ", "events from",
    "events of", "tells the", "result of an", "is told", "postback", "sent by the", "inform us", "informs us",
    "incoming",
    "sends when", "send when", "sends us", "sent when", "reports here", "posts here", "pushes here",
    "when something happens", "will post", "will call", "delivers its", "deliver its", "delivers them", "deliver them", "calls us", "tells us", "tell us", "push to us", "pushes to us",
    "reports them", "report them", "reported by", "delivered by", "posts the", "notifies us", "notify us", "receives events", "receive events", "invoked by", "called when", "fired when", "fires when", "triggered by", "triggered when",
    "invoked when", "posted by", "pushed by", "received from", "sent to us",
];

/// Verbs of an external sender in the third person, because the base form is also an instruction to the API:
/// `The provider puts the outcome here`.
pub(crate) const DELIVERS: &[&str] = &["puts", "hands", "transmits", "forwards", "emits", "fires", "publishes", "relays", "announces", "signals"];

/// Services that call webhooks.
pub(crate) const SENDERS: &[&str] = &[
    "stripe", "adyen", "paypal", "braintree", "square", "mollie", "klarna", "worldpay", "gocardless", "razorpay", "paddle", "plaid",
    "wise", "checkoutcom", "authorizenet", "coinbase", "github", "gitlab", "bitbucket", "circleci", "buildkite", "jenkins", "sentry",
    "pagerduty", "datadog", "grafana", "alertmanager", "dhl", "ups", "fedex", "usps", "easypost", "shippo", "aftership", "twilio",
    "vonage", "nexmo", "messagebird", "sinch", "telnyx", "plivo", "sendgrid", "mailgun", "postmark", "ses", "mailchimp", "sparkpost",
    "onfido", "sumsub", "veriff", "jumio", "persona", "shopify", "woocommerce", "magento", "bigcommerce", "slack", "telegram",
    "whatsapp", "messenger", "facebook", "meta", "discord", "zendesk", "intercom", "hubspot", "salesforce", "jira", "linear",
    "docusign", "typeform", "calendly", "zoom", "auth0", "okta", "workos", "segment", "twitch",
];

/// Members of a response that only acknowledges receipt.
pub(crate) const RECEIPT: &[&str] = &[
    "received", "ok", "status", "accepted", "success", "ack", "acknowledged", "message", "eventid", "deliveryid", "messageid", "receiptid",
    "notificationresponse", "processed", "queued", "duplicate", "receivedat", "traceid", "correlationid", "requestid", "count", "responsecode", "responsemessage", "code", "result", "rejected", "failed",
];

/// Participles of timestamps that stored resources have, such as `createdAt`: no evidence of an event elsewhere.
pub(crate) const KEPT: &[&str] = &["created", "updated", "modified", "scheduled", "deleted", "signed", "edited", "published", "archived", "expired", "started"];

/// Words that end with `id` and are not identifiers.
pub(crate) const NO_IDS: &[&str] = &["valid", "invalid", "paid", "unpaid", "prepaid", "postpaid", "bid", "void", "grid", "aid", "mid", "solid", "liquid", "hybrid"];

/// Members that hold the type of an event.
pub(crate) const EVENT_KIND: &[&str] = &[
    "event", "eventtype", "eventcode", "eventname", "type", "specversion", "topic", "resultcode",
    "paymentstatus",
];

/// Members that hold the time at which an event happened.
pub(crate) const HAPPENED: &[&str] = &[
    "recordedat", "measuredat", "occurredat", "occurredon", "happenedat", "punchedat", "returnedat", "capturedat",
    "observedat", "scannedat", "eventtime", "eventtimestamp", "generateddatetime", "publishtime", "horodatage", "recordedtime", "deliveredat", "triggeredat",
    "sampledat", "timestamp", "emittedat",
];

/// Members that hold the state or the result of something.
pub(crate) const EVENT_STATE: &[&str] = &[
    "status", "state", "result", "outcome", "resultcode",
];

/// Members that only describe a resource.
pub(crate) const LABELS: &[&str] = &[
    "note", "notes", "tags", "tag", "metadata", "description", "nickname", "label", "labels", "comment",
    "reference", "memo", "displayname", "title", "customfields", "color", "colour", "purpose", "category",
    "attachments",
];

/// Members that differ on every attempt, so that a key must not contain them.
pub(crate) const CHANGING: &[&str] = &[
    "timestamp", "time", "date", "at", "created", "createdat", "updatedat", "nonce", "otp", "token", "now",
    "expiry", "expires", "requestid", "traceid", "correlationid", "random", "signature", "sessionid",
    "challengeid", "sentat",
];

/// Members that hold the client's own identifier for the request.
pub(crate) const REFERENCE: &[&str] = &[
    "endtoendid", "reference", "merchantreference", "externalid", "clientreference", "clientid",
    "ordernumber", "invoicenumber", "externalreference", "customerreference", "paymentreference",
    "transactionreference", "referenceid", "clientorderid", "merchantorderid", "partnerreference",
    "instructionid", "messageid", "uniqueid", "ponumber",
];
