//! The dashboard in a real browser.
//!
//! At three in the morning a payment got a 502, and somebody has to find out what happened and settle it: with a mouse
//! or a keyboard, on a telephone, in a dark room. And nothing that a client or a service controls may run in the page.
//! The pictures stay in the target folder for inspection.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod browser;
mod support;

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use browser::Browser;
use serde_json::{Value, json};
use support::{AfterResponse, Proxy, Starting, Upstream, answer, call, request};

const POLICY: &str = "[policy]\ntimeout = \"1s\"\nlease = \"1s\"\n";

/// An upstream that drops the connection after the first payment, and answers later ones.
fn shaky() -> Upstream {
    let is_healthy = AtomicBool::new(false);
    Upstream::start(move |_, stream| {
        if !is_healthy.swap(true, Ordering::Relaxed) {
            return AfterResponse::Close;
        }
        answer(stream, "201 Created", &[], b"{\"id\":2}")
    })
}

fn payment(key: &str) -> Vec<u8> {
    let headers = [
        ("idempotency-key", key),
        ("content-type", "application/json"),
    ];
    request("POST /orders", &headers, b"{\"amount\":100}")
}

fn text(browser: &mut Browser, element: &str) -> String {
    let text = browser.evaluate(&format!("document.querySelector('{element}').innerText"));
    text.as_str().unwrap().to_owned()
}

fn fill(browser: &mut Browser, field: &str, value: &str) {
    browser.evaluate(&format!(
        "document.querySelector('{field}').value = {}",
        json!(value)
    ));
}

/// Saves a picture of the page in both colour schemes, wide and narrow, and checks that it fits.
fn photograph(browser: &mut Browser, name: &str) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (width, scheme) in [
        (1280, "light"),
        (1280, "dark"),
        (360, "light"),
        (360, "dark"),
    ] {
        browser.look(width, scheme);
        let wide = browser.evaluate(
            "[...document.querySelectorAll('body *')].filter(it => it.checkVisibility() && \
             !it.closest('.unseen, .skip, thead') && it.getBoundingClientRect().right > innerWidth + 0.5)\
             .map(it => it.outerHTML.slice(0, 120))",
        );
        assert_eq!(wide, json!([]), "{name} at {width}");
        let scrolls = browser.evaluate("document.documentElement.scrollWidth > innerWidth");
        assert_eq!(scrolls, false, "{name} scrolls sideways at {width}");
        let picture = browser.screenshot(width, if width < 1000 { 2400 } else { 1500 });
        fs::write(
            folder.join(format!("dashboard-{name}-{width}-{scheme}.png")),
            picture,
        )
        .unwrap();
    }
    browser.look(1280, "light");
}

#[test]
fn a_502_is_settled_in_the_browser() {
    let upstream = shaky();
    let proxy = Proxy::durable(upstream.address, POLICY);
    let first = call(proxy.address, payment("order-7"));
    assert_eq!(
        (first.status, first.code().as_deref()),
        (502, Some("outcome-unknown"))
    );
    let record = first.header("refrain-record").unwrap().to_owned();
    let mut browser = Browser::start();
    browser.look(1280, "light");
    browser.open(&format!("http://{}/", proxy.admin));
    photograph(&mut browser, "overview");
    browser.click("document.querySelector('nav a[href=\"/unknown\"]')");
    photograph(&mut browser, "unknown");
    browser.click("document.querySelector('td a.button')");
    assert!(text(&mut browser, "main").contains(&record));
    photograph(&mut browser, "record-unknown");
    browser.evaluate("document.querySelector('#as-completed').click()");
    fill(&mut browser, "#status", "201");
    fill(&mut browser, "#body", "{\"id\":1}");
    fill(&mut browser, "#reason", "found in the ledger");
    fill(&mut browser, "#by", "anna");
    browser.click("document.querySelector('#settle button[type=submit]')");
    photograph(&mut browser, "confirmation");
    let said = text(&mut browser, "main");
    assert!(
        said.contains("Duplicates get 201 with this body (8 bytes) for 1 d"),
        "{said}"
    );
    browser.click("document.querySelector('button[value=settle]')");
    photograph(&mut browser, "settled");
    let said = text(&mut browser, "main");
    for part in [
        "Settled",
        "by “anna”",
        "reason “found in the ledger”",
        "Completed",
    ] {
        assert!(said.contains(part), "no {part} in {said}");
    }
    let retry = call(proxy.address, payment("order-7"));
    assert_eq!(
        (retry.status, retry.text(), retry.is_replay()),
        (201, "{\"id\":1}", true)
    );
    assert_eq!(upstream.count(), 1, "nothing executed again");
    let _ = Value::Null;
    let _ = Starting::new;
}
