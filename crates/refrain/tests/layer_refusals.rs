//! Refrain behind Refrain: the inner one rejected a request temporarily, and the outer one stored that rejection for
//! a day. A response that says when to retry is not an outcome, whichever server sends it.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    response::{IntoResponse, Response},
    routing::any,
};
use http::{Method, Request, StatusCode};
use refrain::{
    Engine, ErrorKind, Guarantee, Operation, Policy, Terms,
    http::{Code, PROBLEMS_PATH, RefrainLayer},
    policy::Reply,
    store::{Memory, Query, StateName, Store as _},
};
use tower_service::Service as _;

#[path = "support/scripted.rs"]
mod scripted;
use scripted::{Fault, Op, Scripted};

/// The next responses of the service.
type Script = Arc<Mutex<Box<dyn FnMut() -> Response + Send>>>;

struct Stage {
    engine: Engine,
    app: Router,
    ran: Arc<AtomicUsize>,
    script: Script,
}

fn guarded(guarantee: Guarantee, change: impl FnOnce(&mut Operation)) -> Policy {
    let mut operation = Operation::new("* *").unwrap();
    operation.terms = Terms {
        guarantee,
        wait: Duration::ZERO,
        ..Terms::default()
    };
    if guarantee == Guarantee::ExactlyOnce {
        operation.receipts = Some(refrain::policy::Address::new("postgres://db/app"));
    }
    change(&mut operation);
    Policy::new(vec![operation]).unwrap()
}

impl Stage {
    fn new(policy: Policy) -> Self {
        let engine = Engine::new(Memory::new());
        let ran = Arc::new(AtomicUsize::new(0));
        let script: Script = Arc::new(Mutex::new(Box::new(|| "done".into_response())));
        let (counted, told) = (ran.clone(), script.clone());
        let handler = async move || {
            counted.fetch_add(1, Ordering::SeqCst);
            (told.lock().unwrap())()
        };
        let layer = RefrainLayer::new(engine.clone(), policy);
        let app = Router::new().route("/pay", any(handler)).layer(layer);
        Self {
            engine,
            app,
            ran,
            script,
        }
    }

    fn answers(&self, answer: impl FnMut() -> Response + Send + 'static) {
        *self.script.lock().unwrap() = Box::new(answer);
    }

    async fn send(&self, method: Method) -> (StatusCode, http::HeaderMap, String) {
        send(&self.app, method).await
    }

    async fn records(&self, state: StateName) -> usize {
        let query = Query {
            state: Some(state),
            ..Query::default()
        };
        let listed = self.engine.store().list(&query).await.unwrap();
        listed.readings.len()
    }
}

async fn send(app: &Router, method: Method) -> (StatusCode, http::HeaderMap, String) {
    let request = Request::builder()
        .method(method)
        .uri("/pay")
        .header("idempotency-key", "k")
        .body(Body::from("5"))
        .unwrap();
    let (head, body) = app.clone().call(request).await.unwrap().into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let body = String::from_utf8(body.to_vec()).unwrap();
    (head.status, head.headers, body)
}

const GUARANTEES: [Guarantee; 3] = [
    Guarantee::AtMostOnce,
    Guarantee::AtLeastOnce,
    Guarantee::ExactlyOnce,
];

/// Checks that the response releases the key, under every guarantee and for every policy list.
async fn check_released(what: &str, answer: impl FnMut() -> Response + Clone + Send + 'static) {
    for guarantee in GUARANTEES {
        for is_streamed in [false, true] {
            if is_streamed && guarantee == Guarantee::ExactlyOnce {
                continue;
            }
            let stage = Stage::new(guarded(guarantee, |it| {
                it.keep = vec!["4xx".parse().unwrap(), "5xx".parse().unwrap()];
                if is_streamed {
                    it.reply = Reply::Streamed;
                }
            }));
            stage.answers(answer.clone());
            let (refused, _, body) = stage.send(Method::POST).await;
            stage.answers(|| "done".into_response());
            let (status, headers, done) = stage.send(Method::POST).await;
            let told =
                format!("{what} under {guarantee:?}: {refused} {body}, then {status} {done}");
            assert_eq!((status.as_u16(), &done[..]), (200, "done"), "{told}");
            assert!(!headers.contains_key("idempotent-replayed"), "{told}");
            assert_eq!(stage.ran.load(Ordering::SeqCst), 2, "{told}");
        }
    }
}

/// A problem response as the inner Refrain sends it.
fn ours(code: Code) -> Response {
    code.answer("Later.", PROBLEMS_PATH).map(Body::from)
}

#[tokio::test]
async fn refusals_that_say_wait_or_reuse_key_are_released() {
    for code in Code::ALL {
        if ["wait", "reuse-key"].contains(&code.advice()) {
            check_released(code.code(), move || ours(code)).await;
        }
    }
    // The documentation may have another address, and a code may be new.
    let elsewhere = r#"{"type":"https://docs.example/new-code","code":"new-code","advice":"wait"}"#;
    let answer = move || {
        let media_type = [("content-type", "application/problem+json; charset=utf-8")];
        (StatusCode::SERVICE_UNAVAILABLE, media_type, elsewhere).into_response()
    };
    check_released("another version's problem", answer).await;
}

#[tokio::test]
async fn conflicts_that_say_when_to_ask_again_are_released() {
    for status in [StatusCode::CONFLICT, StatusCode::TOO_EARLY] {
        let answer = move || (status, [("retry-after", "1")], "busy").into_response();
        check_released(status.as_str(), answer).await;
    }
}

/// Other responses are the operation's own, even if they resemble Refrain's.
#[tokio::test]
async fn other_answers_are_kept() {
    let problem = |body: &'static str| {
        move || {
            let media_type = [("content-type", "application/problem+json")];
            (StatusCode::CONFLICT, media_type, body).into_response()
        }
    };
    let answers: Vec<Box<dyn Fn() -> Response + Send>> = vec![
        Box::new(|| (StatusCode::CONFLICT, "taken").into_response()),
        Box::new(|| ours(Code::KeyReused)),
        Box::new(|| ours(Code::KeyExpired)),
        Box::new(problem(
            r#"{"type":"/p/out-of-stock","code":"out-of-stock"}"#,
        )),
        Box::new(problem(
            r#"{"type":"about:blank","code":"in-flight","advice":"wait"}"#,
        )),
        Box::new(problem("no JSON")),
        Box::new(|| {
            let later = [("retry-after", "1"), ("refrain-outcome", "keep")];
            (StatusCode::CONFLICT, later, "final").into_response()
        }),
    ];
    for answer in answers {
        let stage = Stage::new(guarded(Guarantee::AtMostOnce, |_| {}));
        stage.answers(answer);
        let (first, _, body) = stage.send(Method::POST).await;
        let (again, headers, replayed) = stage.send(Method::POST).await;
        assert_eq!((first, &body), (again, &replayed));
        assert!(headers.contains_key("idempotent-replayed"), "{body}");
        assert_eq!(stage.ran.load(Ordering::SeqCst), 1);
    }
}

/// If the outcome is unknown to the inner Refrain, it is unknown to the outer one, and operators can resolve it there
/// as well.
#[tokio::test]
async fn an_unknown_outcome_of_the_inner_one_is_unknown_to_the_outer_one() {
    for (status, told) in [(504, 504), (502, 502), (409, 502)] {
        let stage = Stage::new(guarded(Guarantee::AtMostOnce, |_| {}));
        stage.answers(move || {
            let mut answer = ours(Code::OutcomeUnknown);
            *answer.status_mut() = StatusCode::from_u16(status).unwrap();
            answer
        });
        let (first, _, body) = stage.send(Method::POST).await;
        assert_eq!(first.as_u16(), told, "{body}");
        assert!(body.contains("outcome-unknown"), "{body}");
        assert_eq!(stage.records(StateName::Indeterminate).await, 1);
        let (again, headers, body) = stage.send(Method::POST).await;
        assert_eq!(again.as_u16(), 409, "{body}");
        assert!(!headers.contains_key("idempotent-replayed"));
        assert_eq!(stage.ran.load(Ordering::SeqCst), 1);
    }
}

/// Two layers, one store each; the store of the inner one fails for a while.
#[tokio::test]
async fn a_moment_without_the_inner_store_passes() {
    let store = Scripted::new();
    let ran = Arc::new(AtomicUsize::new(0));
    let counted = ran.clone();
    let handler = async move || format!("{}", counted.fetch_add(1, Ordering::SeqCst) + 1);
    let layer = |engine| RefrainLayer::new(engine, Policy::default());
    let app = Router::new()
        .route("/pay", any(handler))
        .layer(layer(Engine::new(store.clone())))
        .layer(layer(Engine::new(Memory::new())));
    store.set(Op::Claim, 2, Fault::Fails(ErrorKind::Full));
    let (status, _, body) = send(&app, Method::POST).await;
    assert_eq!(status.as_u16(), 503, "{body}");
    assert!(body.contains("store-unavailable"), "{body}");
    store.set(Op::Claim, 0, Fault::Fails(ErrorKind::Full));
    let (status, headers, body) = send(&app, Method::POST).await;
    assert_eq!((status.as_u16(), &body[..]), (200, "1"));
    assert!(!headers.contains_key("idempotent-replayed"));
    let (_, headers, body) = send(&app, Method::POST).await;
    assert_eq!(body, "1");
    assert!(headers.contains_key("idempotent-replayed"));
}

/// A response to `HEAD` has the length of the body that it omits. A replay must have the same length.
#[tokio::test]
async fn a_replay_of_head_says_the_length_and_a_replay_to_anything_else_does_not() {
    let stage = Stage::new(guarded(Guarantee::AtMostOnce, |it| {
        it.fingerprint = vec!["path".parse().unwrap()];
    }));
    stage.answers(|| [("content-length", "77")].into_response());
    let (status, headers, body) = stage.send(Method::HEAD).await;
    assert_eq!((status.as_u16(), &body[..]), (200, ""));
    assert_eq!(headers["content-length"], "77");
    let (_, headers, body) = stage.send(Method::HEAD).await;
    assert!(headers.contains_key("idempotent-replayed"));
    assert_eq!(
        (&headers["content-length"], &body[..]),
        (&"77".parse().unwrap(), "")
    );
    // A client that expects 77 bytes here would read the next response as part of this one.
    let (_, headers, _) = stage.send(Method::POST).await;
    assert!(headers.contains_key("idempotent-replayed"));
    let length = headers.get("content-length");
    assert!(length.is_none_or(|length| length == "0"), "{length:?}");
}
