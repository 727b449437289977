//! A record of a process that has died is looked up with what the record keeps. A probe without the key, the path or
//! the credential of the request must not be sent: a service that answers it with 404 would free the key of an
//! operation that took effect.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, extract::Request};
use http::{HeaderMap, HeaderValue, StatusCode, request::Parts};
use refrain::{
    Claim, Engine, Fingerprint, Operation, Policy, RecordId, Store as _,
    http::{RefrainLayer, extract},
    policy::{Authorization, Mode},
    record::{Origin, OriginFields, Verdict},
    store::StateName,
};
use tokio::time::sleep;
use tower_layer::Layer as _;

#[path = "support/scripted.rs"]
mod scripted;
use scripted::{Scripted, states};

const ID: RecordId = RecordId([0xAB; 16]);

type Change = fn(&mut Operation);

/// The request that the dead process was executing.
#[derive(Clone, Copy)]
struct Left {
    authorization: Option<&'static str>,
    path: &'static str,
    key: &'static str,
    host: &'static str,
}

const ANONYMOUS: Left = Left {
    authorization: None,
    path: "/orders/a%2Fb/pay",
    key: "",
    host: "shop.example",
};

async fn leave_behind(store: &Scripted, operation: &Operation, left: Left) {
    let mut headers = HeaderMap::new();
    if let Some(value) = left.authorization {
        headers.insert("authorization", HeaderValue::from_static(value));
    }
    let fields = OriginFields {
        operation: &operation.name,
        method: "POST",
        target: left.path,
        key: left.key,
        host: left.host,
        ..OriginFields::default()
    };
    let credential = extract::credential(&operation.credential, store.secret(), &headers, None);
    let claim = Claim {
        credential: Some(credential),
        origin: Origin::new(&fields),
        ..Claim::new(ID, Fingerprint([1; 16]))
    };
    let verdict = store.claim(claim).await.unwrap();
    assert!(matches!(verdict, Verdict::Granted(_)));
}

/// Lets a new process find the record; returns the heads of the probes.
async fn probes(left: Left, change: impl FnOnce(&mut Operation)) -> Vec<Parts> {
    let store = Scripted::on_runtime_clock();
    let mut operation = Operation::new("POST /orders/{order}/pay").unwrap();
    operation.probe = Some("GET /payments?of={record}".parse().unwrap());
    change(&mut operation);
    leave_behind(&store, &operation, left).await;
    let heads = probed_by(&store, operation, StatusCode::UNAUTHORIZED).await;
    // 401 says nothing about the operation.
    assert_eq!(states(&store).await, [StateName::Indeterminate]);
    heads
}

/// Lets a new process probe the records of this store for a while, and answers with this status; returns the heads
/// of the probes.
async fn probed_by(store: &Scripted, operation: Operation, status: StatusCode) -> Vec<Parts> {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let noted = heads.clone();
    let service = async move |request: Request| {
        noted.lock().unwrap().push(request.into_parts().0);
        status
    };
    let policy = Policy::new(vec![operation]).unwrap();
    let layer = RefrainLayer::new(Engine::new(store.clone()), policy)
        .with_probes(Router::new().fallback(service));
    let _app: refrain::http::RefrainService<Router> = layer.layer(Router::new());
    sleep(Duration::from_mins(3)).await;
    let heads = heads.lock().unwrap();
    heads.clone()
}

/// A client without a known credential may have shown a certificate, or a header that the policy does not name: a
/// service that answers the probe with 404 may only hide the payment from it.
#[tokio::test(start_paused = true)]
async fn absence_is_believed_only_with_the_credential_of_the_policy() {
    use StateName::{Completed, Indeterminate};
    for (is_authorized, status, expected) in [
        (true, StatusCode::OK, vec![Completed]),
        (true, StatusCode::NOT_FOUND, vec![]),
        (false, StatusCode::OK, vec![Completed]),
        (false, StatusCode::NOT_FOUND, vec![Indeterminate]),
    ] {
        let store = Scripted::on_runtime_clock();
        let mut operation = Operation::new("POST /orders/{order}/pay").unwrap();
        operation.probe = Some("GET /payments?of={record}".parse().unwrap());
        if is_authorized {
            let authorization = Authorization::bearer("the-probe's").unwrap();
            operation.probe_authorization = Some(authorization);
        }
        leave_behind(&store, &operation, ANONYMOUS).await;
        let heads = probed_by(&store, operation, status).await;
        assert!(!heads.is_empty());
        let left = states(&store).await;
        assert_eq!(left, expected, "authorized: {is_authorized}, {status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_has_the_record_the_path_values_and_the_host_of_the_request() {
    let heads = probes(ANONYMOUS, |it| {
        it.probe = Some("GET /orders/{order}/payments?of={record}".parse().unwrap());
    });
    let heads = heads.await;
    assert!(!heads.is_empty());
    let expected = format!("/orders/a%2Fb/payments?of={ID}");
    assert_eq!(heads[0].uri.to_string(), expected);
    assert_eq!(heads[0].headers["host"], "shop.example");
    assert!(!heads[0].headers.contains_key("authorization"));
}

#[tokio::test(start_paused = true)]
async fn a_probe_has_the_key_if_it_was_kept_and_the_credential_of_the_policy() {
    let left = Left {
        authorization: Some("Bearer the-client's"),
        key: "order+7",
        ..ANONYMOUS
    };
    let heads = probes(left, |it| {
        it.probe = Some("GET /payments?key={key}".parse().unwrap());
        it.probe_authorization = Some(Authorization::bearer("the-probe's").unwrap());
    });
    let heads = heads.await;
    assert!(!heads.is_empty());
    assert_eq!(heads[0].uri, "/payments?key=order%2B7");
    assert_eq!(heads[0].headers["authorization"], "Bearer the-probe's");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_kept_is_not_guessed() {
    let with_credential = Left {
        authorization: Some("Bearer a"),
        ..ANONYMOUS
    };
    let elsewhere = Left {
        path: "/orders/7/refund",
        ..ANONYMOUS
    };
    let damaged = Left {
        key: "order 7",
        ..ANONYMOUS
    };
    let without_host = Left {
        host: "",
        ..ANONYMOUS
    };
    let authorized: Change = |it| {
        it.probe_authorization = Some(Authorization::bearer("the-probe's").unwrap());
    };
    let authorized_with_tenant: Change = |it| {
        it.probe_authorization = Some(Authorization::bearer("the-probe's").unwrap());
        it.scope = vec!["header:x-tenant".parse().unwrap()];
    };
    let cases: [(&str, Left, Change); 10] = [
        (
            "the scope's header is not kept",
            ANONYMOUS,
            authorized_with_tenant,
        ),
        ("the host was not kept", without_host, |_| {}),
        ("the host was not kept", without_host, authorized),
        ("the client had a credential", with_credential, |_| {}),
        ("the scope has a header that is not kept", ANONYMOUS, |it| {
            it.scope = vec!["header:x-tenant".parse().unwrap()];
        }),
        ("the credential leaves out Authorization", ANONYMOUS, |it| {
            it.credential = vec!["cookie:session".parse().unwrap()];
        }),
        ("the key was not kept", ANONYMOUS, |it| {
            it.probe = Some("GET /payments?key={key}".parse().unwrap());
        }),
        ("the key is no key", damaged, |it| {
            it.probe = Some("GET /payments?key={key}".parse().unwrap());
        }),
        ("the path is another operation's", elsewhere, |_| {}),
        ("the operation is only observed", ANONYMOUS, |it| {
            it.mode = Mode::Observe;
        }),
    ];
    for (why, left, change) in cases {
        assert_eq!(probes(left, change).await.len(), 0, "{why}");
    }
    assert_ne!(probes(ANONYMOUS, |_| {}).await.len(), 0);
}
