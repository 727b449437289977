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
    /// Scraped text and the reference, to look values of labels up.
    text: String,
}

impl Known {
    /// Starts a proxy and a worker, scrapes them, and reads the reference.
    pub(crate) fn collect() -> Self {
        let mut known = Self {
            labels: BTreeMap::new(),
            text: String::new(),
        };
        let reference = fs::read_to_string(repository("docs/reference/metrics.md")).unwrap();
        known.add_reference(&reference);
        for scraped in [proxy(), worker()] {
            known.check_documented(&scraped);
            known.text += &scraped;
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
        self.text += reference;
    }

    /// Each sample that is served must be one of the reference, with the same labels.
    fn check_documented(&self, scraped: &str) {
        let samples = scraped.lines().filter(|line| line.starts_with("refrain_"));
        for sample in samples {
            let (name, labels) = split(sample);
            let known = self.labels.get(name);
            assert_eq!(known, Some(&labels), "the reference on {sample}");
        }
    }

    /// Whether a label can have this value.
    pub(crate) fn has_value(&self, label: &str, value: &str) -> bool {
        self.text.contains(&format!("{label}=\"{value}\""))
            || self.text.contains(&format!("`{value}`"))
    }
}

/// Name and labels of a sample.
fn split(sample: &str) -> (&str, BTreeSet<String>) {
    let end = sample.find(['{', ' ']).unwrap();
    let (name, rest) = sample.split_at(end);
    let parts = rest
        .split("=\"")
        .map(|it| it.rsplit(['{', ',']).next().unwrap());
    let count = rest.matches("=\"").count();
    (name, parts.take(count).map(String::from).collect())
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
