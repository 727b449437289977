//! At three in the morning an operator has to find out which payment is in doubt.

use super::*;

fn grant(attempt: u16) -> Grant {
    let fence = Fence {
        epoch: 2,
        counter: 40 + u64::from(attempt),
        nonce: 7,
    };
    Grant { fence, attempt }
}

fn origin() -> Origin {
    Origin::new(&OriginFields {
        operation: "payments",
        method: "POST",
        target: "/v1/payments",
        key_digest: KeyDigest([3; 8]),
        key: "order-7",
        host: "pay.example",
        scope_digest: ScopeDigest([5; 8]),
        node: "node-1",
        trace_id: [9; 16],
    })
}

/// Earlier releases wrote an origin of key digest, operation, target and key.
#[test]
fn origin_of_an_earlier_release_is_read() {
    let texts = ["payments", "POST /v1/payments", ""];
    let mut origin = vec![3; 8];
    for text in texts {
        origin.extend((text.len() as u16).to_be_bytes());
        origin.extend(text.as_bytes());
    }
    let mut bytes = (origin.len() as u16).to_be_bytes().to_vec();
    bytes.extend(origin);
    let attempt = Trace::default().with_attempt(&Origin::default(), grant(1), Timestamp(10));
    bytes.extend(&attempt.0[2..]);
    let trace = Trace::from(Bytes::from(bytes));
    assert_eq!(trace.scope_digest(), None);
    let history = trace.read().unwrap();
    assert_eq!(history.operation, "payments");
    assert_eq!((history.host, history.scope_digest), (None, None));
    assert_eq!(history.attempts.len(), 1);
}

#[test]
fn trace_tells_origin_attempts_and_ends() {
    let trace = Trace::default()
        .with_attempt(&origin(), grant(1), Timestamp(10))
        .with_unknown(Reason::Timeout, Timestamp(20))
        .with_attempt(&Origin::default(), grant(2), Timestamp(30))
        .with_completion(Timestamp(40));
    let history = trace.read().unwrap();
    assert_eq!(history.operation, "payments");
    assert_eq!(history.target, "POST /v1/payments");
    assert_eq!(history.key.as_deref(), Some("order-7"));
    assert_eq!(history.host.as_deref(), Some("pay.example"));
    assert_eq!(history.scope_digest, Some(ScopeDigest([5; 8])));
    assert_eq!(history.key_digest, Some(KeyDigest([3; 8])));
    assert_eq!(trace.key_digest(), history.key_digest);
    assert_eq!(trace.scope_digest(), history.scope_digest);
    assert_eq!(Trace::default().scope_digest(), None);
    let seen = (history.first_seen(), history.last_change());
    assert_eq!(seen, (Some(Timestamp(10)), Some(Timestamp(40))));
    let [first, second] = &history.attempts[..] else {
        panic!("{history:?}");
    };
    let unknown = End::Unknown(Reason::Timeout);
    assert_eq!(first.ends, [(Timestamp(20), unknown)]);
    assert_eq!((first.number, first.fence), (1, grant(1).fence));
    assert_eq!((&*first.node, first.trace_id), ("node-1", Some([9; 16])));
    assert_eq!(second.ends, [(Timestamp(40), End::Completed)]);
    assert_eq!((&*second.node, second.trace_id), ("", None));
}

#[test]
fn long_trace_keeps_its_first_and_its_last_event() {
    let mut trace = Trace::default();
    for number in 1..=1_000 {
        let now = Timestamp(number.into());
        trace = trace.with_attempt(&origin(), grant(number), now);
        assert!(trace.as_bytes().len() < 2 * EVENTS_MAX);
    }
    let history = trace.read().unwrap();
    let numbers: Vec<_> = history.attempts.iter().map(|it| it.number).collect();
    assert_eq!((numbers[0], numbers.last()), (1, Some(&1_000)));
    assert!(numbers.len() > 2, "{numbers:?}");
}

#[test]
fn texts_of_any_length_fit() {
    let long = "ü".repeat(70_000);
    let fields = OriginFields {
        operation: &long,
        target: &long,
        key: &long,
        node: &long,
        ..OriginFields::default()
    };
    let trace = Trace::default().with_attempt(&Origin::new(&fields), grant(1), Timestamp(1));
    let history = trace.read().unwrap();
    assert_eq!(history.target, "ü".repeat(TARGET_MAX / 2));
    assert_eq!(history.attempts[0].node, "ü".repeat(NODE_MAX / 2));
    assert_eq!(history.key, Some("ü".repeat(KEY_BYTES_MAX / 2)));
}

/// A probe of another path than that of the request would find nothing, as if the request had had no effect.
#[test]
fn a_target_that_was_cut_off_is_no_request() {
    let request = |target: &str| {
        let fields = OriginFields {
            method: "POST",
            target,
            ..OriginFields::default()
        };
        let trace = Trace::default().with_attempt(&Origin::new(&fields), grant(1), Timestamp(1));
        let history = trace.read().unwrap();
        let request = history.request();
        request.map(|(method, path)| (method.to_owned(), path.to_owned()))
    };
    let known = |path: &str| Some(("POST".to_owned(), path.to_owned()));
    assert_eq!(request("/v1/orders/7"), known("/v1/orders/7"));
    assert_eq!(request("/v1/orders?of=7"), known("/v1/orders"));
    let long = format!("/v1/orders?of={}", "7".repeat(TARGET_MAX));
    assert_eq!(request(&long), known("/v1/orders"));
    for len in [TARGET_MAX - CHAR_MAX, TARGET_MAX - 1, TARGET_MAX * 2] {
        assert_eq!(request(&format!("/{}", "é".repeat(len / 2))), None, "{len}");
    }
}

#[test]
fn damaged_traces_are_no_traces() {
    let trace = Trace::default().with_attempt(&origin(), grant(1), Timestamp(10));
    for len in 0..trace.0.len() {
        assert_eq!(Trace(trace.0.slice(..len)).read(), None, "{len}");
    }
    assert_eq!(Trace::default().read(), None);
    assert_eq!(
        Trace::default().with_completion(Timestamp(1)),
        Trace::default()
    );
}
