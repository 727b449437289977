//! Word lists of the analyses. They are data, so that users can extend them.

use serde::Deserialize;

/// All lists of `words.toml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Words {
    pub(crate) mints: Vec<String>,
    pub(crate) clocks: Vec<String>,
    pub(crate) days: Vec<String>,
    pub(crate) key_names: Vec<String>,
    pub(crate) key_evidence: Vec<String>,
    pub(crate) retriers: Vec<String>,
    pub(crate) rerun_attributes: Vec<String>,
    pub(crate) job_classes: Vec<String>,
    pub(crate) job_methods: Vec<String>,
    pub(crate) job_runners: Vec<String>,
    pub(crate) polls: Vec<String>,
    pub(crate) sdks: Vec<Sdk>,
    pub(crate) retrying: Vec<Retrying>,
    pub(crate) http: Http,
    pub(crate) messages: Messages,
    pub(crate) stores: Stores,
    pub(crate) publishing: Publishing,
}

/// A payment SDK.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Sdk {
    pub(crate) name: String,
    /// The file must contain one of these.
    pub(crate) mentions: Vec<String>,
    pub(crate) calls: Vec<String>,
    pub(crate) unless: Vec<String>,
}

/// An HTTP client that retries automatically.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Retrying {
    pub(crate) name: String,
    /// Text that configures the client.
    pub(crate) mentions: Vec<String>,
    /// The file must also contain one of these.
    pub(crate) also: Vec<String>,
    /// Whether the client retries POST by default.
    pub(crate) posts: bool,
    /// Settings that make it retry POST.
    pub(crate) on: Vec<String>,
    /// Settings that stop it from retrying POST.
    pub(crate) off: Vec<String>,
    /// If set, `on` only counts within the value of this member.
    pub(crate) near: String,
}

/// Words about HTTP clients.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Http {
    pub(crate) posts: Vec<String>,
    pub(crate) any_method: Vec<String>,
    pub(crate) money_paths: Vec<String>,
    pub(crate) reads: Vec<String>,
}

/// Words about message consumers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Messages {
    pub(crate) acks: Vec<String>,
    pub(crate) talk: Vec<String>,
    pub(crate) handlers: Vec<String>,
    pub(crate) marks: Vec<String>,
    pub(crate) marked: Vec<String>,
}

/// Words about stores.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Stores {
    pub(crate) gets: Vec<String>,
    pub(crate) sets: Vec<String>,
    pub(crate) atomic: Vec<String>,
    pub(crate) scopes: Vec<String>,
    pub(crate) deletes: Vec<String>,
    pub(crate) keeps: Vec<String>,
}

/// Words about transactions and message brokers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Publishing {
    pub(crate) publishes: Vec<String>,
    pub(crate) exempt: Vec<String>,
    pub(crate) transactions: Vec<String>,
    pub(crate) transactional: Vec<String>,
}

impl Words {
    /// Appends the words of another file.
    pub(crate) fn add(&mut self, more: Self) {
        let Self {
            mints,
            clocks,
            days,
            key_names,
            key_evidence,
            retriers,
            rerun_attributes,
            job_classes,
            job_methods,
            job_runners,
            polls,
            sdks,
            retrying,
            http,
            messages,
            stores,
            publishing,
        } = more;
        self.mints.extend(mints);
        self.clocks.extend(clocks);
        self.days.extend(days);
        self.key_names.extend(key_names);
        self.key_evidence.extend(key_evidence);
        self.retriers.extend(retriers);
        self.rerun_attributes.extend(rerun_attributes);
        self.job_classes.extend(job_classes);
        self.job_methods.extend(job_methods);
        self.job_runners.extend(job_runners);
        self.polls.extend(polls);
        self.sdks.extend(sdks);
        self.retrying.extend(retrying);
        self.http.posts.extend(http.posts);
        self.http.any_method.extend(http.any_method);
        self.http.money_paths.extend(http.money_paths);
        self.http.reads.extend(http.reads);
        self.messages.acks.extend(messages.acks);
        self.messages.talk.extend(messages.talk);
        self.messages.handlers.extend(messages.handlers);
        self.messages.marks.extend(messages.marks);
        self.messages.marked.extend(messages.marked);
        self.stores.gets.extend(stores.gets);
        self.stores.sets.extend(stores.sets);
        self.stores.atomic.extend(stores.atomic);
        self.stores.scopes.extend(stores.scopes);
        self.stores.deletes.extend(stores.deletes);
        self.stores.keeps.extend(stores.keeps);
        self.publishing.publishes.extend(publishing.publishes);
        self.publishing.exempt.extend(publishing.exempt);
        self.publishing.transactions.extend(publishing.transactions);
        self.publishing
            .transactional
            .extend(publishing.transactional);
    }
}
