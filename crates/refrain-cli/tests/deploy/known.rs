//! The metrics of a running proxy and a running worker, and those of the generated reference.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use refrain_testkit::servers::PrivateRedis;
use tempfile::TempDir;

use crate::support::{Proxy, Upstream, call, get, post, request, until};

/// The metrics by the names of their samples.
pub(crate) struct Known {
    pub(crate) labels: BTreeMap<String, BTreeSet<String>>,
    /// The values of each label of a metric: those that were scraped, and those that the reference lists.
    values: BTreeMap<(String, String), BTreeSet<String>>,
}

/// Sections of the reference with the values of a label, and how the names of its metrics begin.
const VALUE_SECTIONS: [(&str, &str, &str); 4] = [
    (
        "## Values of `outcome` of requests",
        "outcome",
        "refrain_request",
    ),
    (
        "## Values of `result` of observed requests",
        "result",
        "refrain_observed_requests",
    ),
    ("## Values of `op` of stores", "op", "refrain_store_"),
    (
        "## Values of `outcome` of messages",
        "outcome",
        "refrain_messages",
    ),
];

impl Known {
    /// Starts a proxy and a worker, scrapes them, and reads the reference.
    pub(crate) fn collect() -> Self {
        let mut known = Self {
            labels: BTreeMap::new(),
            values: BTreeMap::new(),
        };
        let reference = fs::read_to_string(repository("docs/reference/metrics.md")).unwrap();
        known.add_reference(&reference);
        for scraped in [proxy(), worker()] {
            known.check_documented(&scraped);
            known.add_values(&scraped);
        }
        known
    }

    /// Rows such as "| `name_total` | counter | `label`, `label` | … |".
    fn add_reference(&mut self, reference: &str) {
        for line in reference.lines().filter(|it| it.starts_with("| `refrain_")) {
            let cells: Vec<_> = line.split(" | ").collect();
            let name = cells[0].trim_matches(['|', ' ', '`']);
            let ticked = cells[2].split('`').skip(1).step_by(2);
            let labels: BTreeSet<_> = ticked.map(String::from).collect();
            if cells[1] != "histogram" {
                self.labels.insert(name.into(), labels);
                continue;
            }
            for part in ["bucket", "sum", "count"] {
                let mut labels = labels.clone();
                labels.extend((part == "bucket").then(|| "le".to_owned()));
                self.labels.insert(format!("{name}_{part}"), labels);
            }
        }
        for (heading, label, start) in VALUE_SECTIONS {
            let (_, section) = reference.split_once(heading).unwrap();
            let list = section.trim_start().lines().next().unwrap();
            let values: BTreeSet<_> = list
                .split('`')
                .skip(1)
                .step_by(2)
                .map(String::from)
                .collect();
            assert!(values.len() > 3, "{heading}: {list}");
            let metrics: Vec<_> = self
                .labels
                .iter()
                .filter(|(name, labels)| name.starts_with(start) && labels.contains(label))
                .map(|(name, _)| name.clone())
                .collect();
            for metric in metrics {
                self.values
                    .insert((metric, label.to_owned()), values.clone());
            }
        }
    }

    fn add_values(&mut self, scraped: &str) {
        let samples = scraped.lines().filter(|line| line.starts_with("refrain_"));
        for sample in samples {
            let (name, pairs) = split(sample);
            for (label, value) in pairs {
                let values = self.values.entry((name.to_owned(), label));
                values.or_default().insert(value);
            }
        }
    }

    /// Each sample that is served must be one of the reference, with the same labels.
    fn check_documented(&self, scraped: &str) {
        let samples = scraped.lines().filter(|line| line.starts_with("refrain_"));
        for sample in samples {
            let (name, pairs) = split(sample);
            let labels = pairs.into_keys().collect();
            let known = self.labels.get(name);
            assert_eq!(known, Some(&labels), "the reference on {sample}");
        }
    }

    /// Whether a label of a metric can have this value.
    pub(crate) fn has_value(&self, metric: &str, label: &str, value: &str) -> bool {
        let values = self.values.get(&(metric.to_owned(), label.to_owned()));
        values.is_some_and(|it| it.contains(value))
    }
}

/// Name of a sample, and its labels with their values, none of which has a quotation mark in it.
fn split(sample: &str) -> (&str, BTreeMap<String, String>) {
    let end = sample.find(['{', ' ']).unwrap();
    let (name, rest) = sample.split_at(end);
    let labels = rest.rsplit_once('}').map_or("", |(labels, _)| labels);
    let parts: Vec<_> = labels.trim_start_matches('{').split('"').collect();
    let pairs = parts.chunks_exact(2);
    let pair = |it: &[&str]| {
        let label = it[0].trim_matches([',', '=']);
        (label.to_owned(), it[1].to_owned())
    };
    (name, pairs.map(pair).collect())
}

pub(crate) fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// What a proxy serves after requests to a guarded, an observed and an unguarded operation.
fn proxy() -> String {
    let upstream = Upstream::echo();
    let settings = "[[operation]]\nmatch = \"POST /orders\"\n\
        [[operation]]\nmatch = \"POST /refunds\"\nmode = \"observe\"\n";
    let proxy = Proxy::start(upstream.address, settings);
    call(proxy.address, post("order-7", "{}"));
    call(proxy.address, post("order-7", "{}"));
    call(proxy.address, request("POST /refunds", &[], b""));
    call(proxy.address, get("/"));
    let counted =
        "refrain_observed_requests_total{operation=\"POST /refunds\",result=\"key-missing\"}";
    until("the observed request is counted", || {
        proxy.metric(counted) > 0.0
    });
    proxy.ask_admin("/metrics").text().to_owned()
}

/// What a worker serves.
fn worker() -> String {
    let redis = PrivateRedis::start().unwrap();
    let upstream = Upstream::echo();
    let folder = TempDir::new().unwrap();
    let settings = format!(
        "store = \"memory:\"\n[[worker]]\nname = \"billing\"\nsource = \"{}\"\nqueue = \"orders\"\n\
         deliver = \"http://{}/events\"\n",
        redis.url(),
        upstream.address
    );
    fs::write(folder.path().join("refrain.toml"), settings).unwrap();
    let output = folder.path().join("stdout");
    let worker = Command::new(env!("CARGO_BIN_EXE_refrain"))
        .args(["work", "--admin", "127.0.0.1:0"])
        .current_dir(&folder)
        .stdout(fs::File::create(&output).unwrap())
        .stderr(Stdio::null())
        .spawn();
    let _worker = Running(worker.unwrap());
    let address = || -> Option<SocketAddr> {
        let said = fs::read_to_string(&output).ok()?;
        let mut lines = said.lines();
        lines.find_map(|line| line.strip_prefix("admin http://")?.parse().ok())
    };
    until("the worker listens", || address().is_some());
    call(address().unwrap(), get("/metrics")).text().to_owned()
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
