//! axum-idempotent with the layers and the store of its README's example, in front of a payments service.

use std::{
    collections::HashSet,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use ruts::{CookieOptions, SessionLayer, store::moka::MokaStore};
use serde_json::{Value, json};
use tower_cookies::CookieManagerLayer;

struct Shop {
    ledger: PathBuf,
    tried: Mutex<HashSet<String>>,
}

impl Shop {
    fn payments(&self) -> usize {
        fs::read_to_string(&self.ledger).map_or(0, |text| text.lines().count())
    }
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, folder] = &arguments[..] else {
        panic!("usage: refrain-peers PORT FOLDER");
    };
    let shop = Arc::new(Shop {
        ledger: Path::new(folder).join("ledger"),
        tried: Mutex::default(),
    });
    let options = IdempotentOptions::default()
        .use_idempotency_key_header(Some("Idempotency-Key"), true)
        .expire_after(60 * 5);
    let guarded = Router::new()
        .route("/v1/payments", post(pay))
        .route("/v1/refunds", post(pay))
        .layer(IdempotentLayer::<MokaStore>::new(options))
        .layer(
            SessionLayer::new(Arc::new(MokaStore::builder().build()))
                .with_cookie_options(CookieOptions::build().name("session")),
        )
        .layer(CookieManagerLayer::new());
    let app = guarded.route("/ledger", get(ledger)).with_state(shop);
    let address = format!("127.0.0.1:{port}");
    let listener = tokio::net::TcpListener::bind(address).await;
    axum::serve(listener.expect("the port is free"), app)
        .await
        .expect("it serves");
}

async fn ledger(State(shop): State<Arc<Shop>>) -> String {
    shop.payments().to_string()
}

async fn pay(
    State(shop): State<Arc<Shop>>,
    headers: HeaderMap,
    body: Option<Json<Value>>,
) -> Response {
    let refused =
        |status: StatusCode, why: &str| (status, Json(json!({"error": why}))).into_response();
    if !headers.contains_key("authorization") {
        return refused(StatusCode::UNAUTHORIZED, "authentication required");
    }
    let Some(Json(order)) = body else {
        return refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "JSON alone");
    };
    let amount = order["amount"].as_i64().unwrap_or_default();
    if amount < 0 {
        return refused(StatusCode::BAD_REQUEST, "the amount is negative");
    }
    let reference = order["reference"].to_string();
    if amount == 503
        && shop
            .tried
            .lock()
            .expect("no thread panicked")
            .insert(reference)
    {
        return refused(StatusCode::SERVICE_UNAVAILABLE, "the bank does not answer");
    }
    let is_slow = order["slow"].as_bool().unwrap_or_default();
    tokio::time::sleep(Duration::from_millis(if is_slow { 300 } else { 20 })).await;
    let ledger = fs::File::options()
        .create(true)
        .append(true)
        .open(&shop.ledger);
    ledger
        .and_then(|mut ledger| ledger.write_all(b"paid\n"))
        .expect("the ledger can be written");
    let number = shop.payments();
    let told = [
        ("location", format!("/v1/payments/{number}")),
        ("set-cookie", format!("receipt={number}")),
    ];
    (
        StatusCode::CREATED,
        told,
        Json(json!({"id": number, "order": order})),
    )
        .into_response()
}
