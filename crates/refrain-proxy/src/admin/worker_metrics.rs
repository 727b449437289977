//! Metrics of the message consumers of this process.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::workers::WorkerStatus;

type ByConsumer = Family<[(&'static str, String); 1], Gauge>;

/// A gauge: its name, its description, and its value for a worker, if that is known.
type WorkerGauge = (&'static str, &'static str, fn(&WorkerStatus) -> Option<u64>);

const GAUGES: [WorkerGauge; 5] = [
    (
        "worker_lag",
        "Messages that wait to be delivered to the worker; not exported if the broker does not tell",
        |worker| worker.lag,
    ),
    (
        "worker_unacknowledged",
        "Messages delivered to any process of the worker and not acknowledged; not exported if the broker does not tell",
        |worker| worker.unacknowledged,
    ),
    (
        "worker_oldest_seconds",
        "Age of the oldest message that is not acknowledged; not exported if the broker does not tell",
        |worker| worker.oldest_seconds,
    ),
    (
        "worker_in_flight",
        "Messages that this process handles now",
        |worker| Some(worker.in_flight),
    ),
    (
        "worker_dead_letters",
        "Messages in the dead-letter queue of the worker, read every 10 s at most; not exported if it is not known",
        |worker| worker.dead_letters,
    ),
];

/// Adds the metrics of these workers.
pub(super) fn register(registry: &mut Registry, workers: &[WorkerStatus]) {
    let messages = Family::<[(&str, String); 2], Counter>::default();
    for worker in workers {
        for (outcome, count) in &worker.counts {
            let labels = [
                ("consumer", worker.name.clone()),
                ("outcome", (*outcome).into()),
            ];
            messages.get_or_create(&labels).inc_by(*count);
        }
    }
    registry.register("messages", "Deliveries by outcome", messages);
    for (name, help, value) in GAUGES {
        let family = ByConsumer::default();
        for worker in workers {
            if let Some(value) = value(worker) {
                let labels = [("consumer", worker.name.clone())];
                let value = i64::try_from(value).unwrap_or(i64::MAX);
                family.get_or_create(&labels).set(value);
            }
        }
        registry.register(name, help, family);
    }
}
