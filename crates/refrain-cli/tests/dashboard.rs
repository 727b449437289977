//! The dashboard in a real browser.
//!
//! At three in the morning a payment got a 502, and an operator has to find out what happened and settle it: with a mouse
//! or a keyboard, on a telephone, in a dark room. And nothing that a client or a service controls may run in the page.
//! The pictures stay in the target folder for inspection.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod browser;
mod support;

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use browser::Browser;
use refrain::{
    Engine, Policy,
    consume::{DEAD_LAST_FAILURE, DEAD_REASON, DEAD_RECORDS, DEAD_SOURCE, DeadLetter, Message},
    engine::OperatorAction,
    http::RefrainLayer,
    store::{AnyStore, Memory},
};
use refrain_proxy::{
    admin::{self, Admin, Metrics, RedriveStatus, WorkerStatus, Workers, WorkersFuture},
    telemetry::Telemetry,
};
use serde_json::{Value, json};
use support::{AfterResponse, Proxy, Starting, Upstream, answer, call, request, until};

/// Short, so that "it never happened" is soon accepted.
const POLICY: &str = "[policy]\ntimeout = \"1s\"\nlease = \"1s\"\n";

/// Tabs until an element has the focus, at most.
const TABS_MAX: usize = 80;

/// Everything in the page that is wider than the window.
const TOO_WIDE: &str = r#"(() => {
    const seen = it => it.checkVisibility() && !it.closest('.unseen, .skip, thead, svg, option, datalist');
    const wide = [...document.querySelectorAll('body *')].filter(it => seen(it) && it.getBoundingClientRect().right > innerWidth + 0.5);
    const all = wide.map(it => it.outerHTML.slice(0, 120));
    return document.documentElement.scrollWidth > innerWidth ? [...all, 'the page scrolls sideways'] : all;
})()"#;

/// Texts with a contrast below 4.5 to 1.
const TOO_FAINT: &str = r#"(() => {
    const numbers = colour => colour.match(/[\d.]+/g).map(Number);
    const part = it => (it /= 255) <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    const ground = it => {
        for (; it; it = it.parentElement) {
            const colour = numbers(getComputedStyle(it).backgroundColor);
            if (colour.length === 3 || colour[3] === 1) return colour;
        }
        return numbers(getComputedStyle(document.documentElement).backgroundColor);
    };
    const isText = it => [...it.childNodes].some(child => child.nodeType === 3 && child.data.trim());
    const texts = [...document.querySelectorAll('body *')].filter(it => isText(it) && it.checkVisibility() && !it.closest('.unseen, .skip, svg, option'));
    return texts.flatMap(it => {
        const [one, other] = [light(numbers(getComputedStyle(it).color)), light(ground(it))];
        const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        return contrast < 4.5 ? [`${contrast.toFixed(2)}: ${it.outerHTML.slice(0, 120)}`] : [];
    });
})()"#;

/// What a person who cannot see the page would miss: labels, headings, names of columns and landmarks.
const UNNAMED: &str = r#"(() => {
    const missing = [];
    for (const it of document.querySelectorAll('input:not([type=hidden]), select, textarea')) {
        if (!it.closest('[aria-hidden]') && !it.labels?.length) missing.push(it.outerHTML.slice(0, 120));
    }
    for (const it of document.querySelectorAll('th')) if (!it.scope) missing.push(it.outerHTML);
    for (const it of document.querySelectorAll('button, a')) if (!it.textContent.trim()) missing.push(it.outerHTML.slice(0, 120));
    for (const it of document.querySelectorAll('figure svg')) if (!it.querySelector('title') || !it.querySelector('desc')) missing.push('a chart');
    if (document.querySelectorAll('h1').length !== 1) missing.push('not one h1');
    for (const it of ['main', 'header', 'html[lang]', 'a.skip']) if (!document.querySelector(it)) missing.push(it);
    const ids = [...document.querySelectorAll('[id]')].map(it => it.id);
    missing.push(...ids.filter((it, at) => ids.indexOf(it) !== at).map(it => `twice: ${it}`));
    return missing;
})()"#;

/// An upstream that drops the connection after the first payment, and answers later ones.
fn shaky() -> Upstream {
    let is_healthy = AtomicBool::new(false);
    Upstream::start(
        move |_, stream| match is_healthy.swap(true, Ordering::Relaxed) {
            false => AfterResponse::Close,
            true => answer(stream, "201 Created", &[], b"{\"id\":2}"),
        },
    )
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
    let set = format!("document.querySelector('{field}').value = {}", json!(value));
    browser.evaluate(&set);
}

fn click(browser: &mut Browser, element: &str) -> Vec<Value> {
    browser.click(&format!("document.querySelector('{element}')"))
}

/// Checks that the page asked nobody but the admin listener, and that the browser complained about nothing.
fn check_quiet(events: &[Value], admin: SocketAddr) {
    let own = format!("http://{admin}/");
    for event in events {
        let url = event["params"]["request"]["url"].as_str();
        if event["method"] == "Network.requestWillBeSent" {
            let url = url.unwrap();
            assert!(
                url.starts_with(&own) || url.starts_with("data:"),
                "asked {url}"
            );
        }
        let complaints = [
            "Log.entryAdded",
            "Runtime.consoleAPICalled",
            "Runtime.exceptionThrown",
        ];
        // A page with a mistake in its form has a status of 400; the browser notes that.
        let is_status = event["params"]["entry"]["source"] == "network";
        let is_complaint = complaints.iter().any(|it| event["method"] == *it);
        assert!(!is_complaint || is_status, "{event:#}");
    }
}

/// Checks the page and takes pictures of it, in both colour schemes, wide and narrow.
fn inspect(browser: &mut Browser, name: &str) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (width, height, scheme) in [
        (1280, 1500, "light"),
        (1280, 1500, "dark"),
        (360, 2400, "light"),
        (360, 2400, "dark"),
    ] {
        browser.look(width, scheme);
        let place = format!("{name} at {width} in the {scheme}");
        assert_eq!(browser.evaluate(TOO_WIDE), json!([]), "{place}");
        assert_eq!(browser.evaluate(TOO_FAINT), json!([]), "{place}");
        let picture = browser.screenshot(width, height);
        let file = format!("dashboard-{name}-{width}-{scheme}.png");
        fs::write(folder.join(file), picture).unwrap();
    }
    browser.look(1280, "light");
    assert_eq!(browser.evaluate(UNNAMED), json!([]), "{name}");
}

/// Moves the focus to an element, with the key alone; nothing before it may catch the focus.
fn tab_to(browser: &mut Browser, element: &str) {
    let has_focus = format!("document.activeElement.matches('{element}')");
    let tabs = (0..TABS_MAX).find(|_| {
        browser.press("Tab", "");
        browser.evaluate(&has_focus) == json!(true)
    });
    assert!(tabs.is_some(), "the keyboard does not reach {element}");
    let outline = browser.evaluate("getComputedStyle(document.activeElement).outlineStyle");
    assert_eq!(outline, "solid", "the focus on {element} is not visible");
}

/// Types a text, key by key.
fn write(browser: &mut Browser, text: &str) {
    for letter in text.chars() {
        match letter {
            '\n' => browser.press("Enter", "\r"),
            letter => browser.press(&letter.to_string(), &letter.to_string()),
        }
    }
}

/// Fills the form of a record with the keyboard alone.
fn enter_success(browser: &mut Browser, body: &str, reason: &str, by: &str) {
    tab_to(browser, "#as-completed");
    browser.press(" ", " ");
    for (field, value) in [
        ("#status", "201"),
        ("#body", body),
        ("#reason", reason),
        ("#by", by),
    ] {
        tab_to(browser, field);
        write(browser, value);
    }
}

#[test]
fn a_502_is_settled_in_the_browser() {
    let upstream = shaky();
    let proxy = Proxy::durable(upstream.address, POLICY);
    let first = call(proxy.address, payment("order-7"));
    let told = (first.status, first.code());
    assert_eq!(told, (502, Some("outcome-unknown".into())));
    let record = first.header("refrain-record").unwrap().to_owned();
    let mut browser = Browser::start();
    browser.look(1280, "light");
    check_quiet(
        &browser.open(&format!("http://{}/", proxy.admin)),
        proxy.admin,
    );
    inspect(&mut browser, "overview");
    check_quiet(&click(&mut browser, "a[href=\"/unknown\"]"), proxy.admin);
    inspect(&mut browser, "unknown");
    check_quiet(&click(&mut browser, "td a.button"), proxy.admin);
    assert!(text(&mut browser, "main").contains(&record));
    inspect(&mut browser, "record-unknown");
    enter_success(&mut browser, "{\"id\":1}\n", "found in the ledger", "anna");
    tab_to(&mut browser, "#settle button[type=submit]");
    check_quiet(&browser.press_and_follow("Enter", "\r"), proxy.admin);
    inspect(&mut browser, "confirmation");
    let said = text(&mut browser, "main");
    let next = "Duplicates get 201 with this body (9 bytes) for 1 d";
    assert!(said.contains(next), "{said}");
    tab_to(&mut browser, "button[value=settle]");
    check_quiet(&browser.press_and_follow("Enter", "\r"), proxy.admin);
    inspect(&mut browser, "settled");
    check_quiet(&browser.follow("location.reload()"), proxy.admin);
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
    let got = (retry.status, retry.text(), retry.is_replay());
    assert_eq!(got, (201, "{\"id\":1}\n", true));
    assert_eq!(retry.header("content-type"), Some("application/json"));
    assert_eq!(upstream.count(), 1, "nothing executed again");
    let log = fs::read_dir(proxy.folder().join("records/audit")).unwrap();
    let log: String = log
        .filter_map(|it| fs::read_to_string(it.unwrap().path()).ok())
        .collect();
    for part in [
        "\"resolving\"",
        "\"resolved\"",
        "found in the ledger",
        "anna",
    ] {
        assert!(log.contains(part), "no {part} in {log}");
    }
}

#[test]
fn new_requests_appear_until_the_list_is_paused() {
    let upstream = Upstream::start(|_, stream| answer(stream, "201 Created", &[], b"{}"));
    let proxy = Proxy::start(
        upstream.address,
        "[policy]\nkey = \"header:idempotency-key\"\n",
    );
    let mut browser = Browser::start();
    browser.look(1280, "light");
    browser.open(&format!("http://{}/", proxy.admin));
    let browser = std::cell::RefCell::new(browser);
    let ask = |what: &str| browser.borrow_mut().evaluate(what);
    let rows = || {
        ask("document.querySelectorAll('#live tr').length")
            .as_u64()
            .unwrap()
    };
    until("the list is live", || {
        ask("document.getElementById('live-state').textContent") == "Live."
    });
    call(proxy.address, payment("order-1"));
    until("a request is shown", || rows() == 1);
    call(proxy.address, payment("order-1"));
    until("a replay is shown first", || {
        ask("document.querySelector('#live .badge').textContent") == "replayed"
    });
    ask("document.getElementById('live-pause').click()");
    assert_eq!(
        ask("document.getElementById('live-pause').getAttribute('aria-pressed')"),
        "true"
    );
    assert_eq!(
        ask("document.getElementById('live-state').textContent"),
        "Paused."
    );
    call(proxy.address, payment("order-2"));
    ask("document.getElementById('live-pause').click()");
    until("what came meanwhile is shown", || rows() == 3);
    let filtered = format!("http://{}/?outcome=replayed&text=orders", proxy.admin);
    browser.borrow_mut().open(&filtered);
    assert_eq!(rows(), 1, "only the replay fits the filter");
}

/// What clients and services may send, and the settings of a careless operator.
const HOSTILE: &str =
    "<script>window.hit=1</script><img src=x onerror=window.hit=1>'\"</textarea></pre>";

#[test]
fn nothing_that_clients_and_services_send_runs_in_the_page() {
    let upstream = Upstream::start(|seen, stream| {
        let headers = [
            (
                "content-type",
                "text/html;x=\"'><script>window.hit=1</script>",
            ),
            ("location", "javascript:window.hit=1"),
        ];
        match seen.header("x-lost") {
            Some(_) => AfterResponse::Close,
            None => answer(stream, "201 Created", &headers, HOSTILE.as_bytes()),
        }
    });
    let policy = "[policy]\nrecords_keys = \"clear\"\nrecords_query = true\n\
         [[operation]]\nmatch = \"POST /orders/*\"\n\
         [[operation]]\nmatch = \"POST /<img/src=x/onerror=window.hit=1>\"\n";
    let proxy = Starting::new()
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", "memory:")
        .file(policy)
        .variable("REFRAIN_ADMIN_TOKEN", "open-sesame-4711")
        .start();
    let key = "<script>window.hit=1</script><img/src=x/onerror=window.hit=1>'";
    let target = "POST /orders/'onload=alert(1)'?q='}{javascript:alert(1)//";
    let mut records = Vec::new();
    for lost in [true, false] {
        let key = format!("{key}{lost}");
        let mut headers = vec![("idempotency-key", key.as_str())];
        headers.extend(lost.then_some(("x-lost", "yes")));
        let told = call(proxy.address, request(target, &headers, HOSTILE.as_bytes()));
        records.push(told.header("refrain-record").unwrap().to_owned());
    }
    let mut browser = Browser::start();
    let base = format!("http://{}", proxy.admin);
    browser.look(1280, "light");
    browser.open(&format!("{base}/records"));
    inspect(&mut browser, "login");
    fill(&mut browser, "#token", "open-sesame-4711");
    click(&mut browser, "main button");
    let encoded = "%3Cscript%3Ewindow.hit%3D1%3C%2Fscript%3E%22%3E%3Cimg%20src%3Dx%20onerror%3D%22window.hit%3D1%22%3E";
    let mut pages = vec![
        ("home", "/".to_owned()),
        (
            "home-filtered",
            format!("/?text={encoded}&outcome={encoded}"),
        ),
        ("unknown-hostile", "/unknown".into()),
        ("records", "/records".into()),
        (
            "records-hostile",
            format!(
                "/records?key={encoded}&operation={encoded}&older_than={encoded}&after={encoded}"
            ),
        ),
        ("operations", "/operations".into()),
        ("store", "/store".into()),
        ("configuration", "/configuration".into()),
        ("problem", "/problems/outcome-unknown".into()),
    ];
    pages.extend(
        records
            .iter()
            .map(|id| ("record-hostile", format!("/records/{id}"))),
    );
    for (name, path) in &pages {
        let events = browser.open(&format!("{base}{path}"));
        check_quiet(&events, proxy.admin);
        inspect(&mut browser, name);
        assert_eq!(browser.evaluate("typeof window.hit"), "undefined", "{path}");
    }
    let shown = text(&mut browser, "main");
    for part in [
        "<script>window.hit=1</script>",
        "javascript:window.hit=1",
        "</pre>",
    ] {
        assert!(shown.contains(part), "{part} is not shown as text: {shown}");
    }
    browser.open(&format!("{base}/records/{}", records[0]));
    enter_success(&mut browser, HOSTILE, HOSTILE, HOSTILE);
    for button in ["#settle button[type=submit]", "button[value=settle]"] {
        let events = click(&mut browser, button);
        check_quiet(&events, proxy.admin);
        inspect(&mut browser, "settled-hostile");
        assert_eq!(
            browser.evaluate("typeof window.hit"),
            "undefined",
            "{button}"
        );
    }
    assert!(text(&mut browser, "main").contains("Settled"));
}

/// A worker with a hostile name, whose last message failed with a hostile text.
#[derive(Debug, Default)]
struct HostileWorkers(Mutex<Vec<String>>);

impl Workers for HostileWorkers {
    fn list(&self) -> WorkersFuture<'_, Vec<WorkerStatus>> {
        let text = || HOSTILE.to_owned();
        let status = WorkerStatus {
            name: text(),
            source: text(),
            queue: text(),
            deliver: "javascript:window.hit=1".into(),
            guarantee: "at-least-once".into(),
            dead_letter: Some(text()),
            counts: vec![("completed", 41), ("dead-lettered", 1)],
            lag: Some(7),
            dead_letters: Some(1),
            trouble: Some(text()),
            ..WorkerStatus::default()
        };
        Box::pin(async { vec![status] })
    }

    fn dead_letters<'a>(
        &'a self,
        worker: &'a str,
        _: u32,
    ) -> WorkersFuture<'a, Option<refrain::Result<Vec<DeadLetter>>>> {
        let mut message = Message::new("payload");
        for name in [DEAD_REASON, DEAD_LAST_FAILURE, DEAD_SOURCE, DEAD_RECORDS] {
            message.headers.push((name.into(), HOSTILE.into()));
        }
        let letters = vec![DeadLetter::of(&message, None)];
        Box::pin(async move { (worker == HOSTILE).then_some(Ok(letters)) })
    }

    fn redrive<'a>(
        &'a self,
        worker: &'a str,
        at_most: u32,
        action: OperatorAction<'a>,
    ) -> WorkersFuture<'a, Option<refrain::Result<RedriveStatus>>> {
        let said = format!("{at_most} {} {}", action.reason, action.by.unwrap());
        self.0.lock().unwrap().push(said);
        let status = RedriveStatus {
            sent: 1,
            ..RedriveStatus::default()
        };
        Box::pin(async move { (worker == HOSTILE).then_some(Ok(status)) })
    }
}

/// Serves the admin listener of a process that only runs workers.
fn serve_workers(runtime: &tokio::runtime::Runtime, workers: Arc<HostileWorkers>) -> SocketAddr {
    let policy = Policy::new(Vec::new()).unwrap();
    let engine = Engine::new(AnyStore::new(Memory::new()));
    let admin = Admin {
        telemetry: Telemetry::new(Metrics::new(&policy, "memory:")),
        layer: RefrainLayer::new(engine, policy),
        is_draining: Arc::default(),
        token: None,
        reader_token: None,
        hosts: Vec::new(),
        configuration: json!({ "workers": [{ "name": HOSTILE }], "store": HOSTILE }),
        workers: Some(workers),
        reload: None,
        tls: None,
        search_time: admin::SEARCH_TIME,
    };
    let listener = runtime
        .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
        .unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(admin::serve(listener, admin, std::future::pending()));
    address
}

#[test]
fn dead_letters_are_redriven_in_the_browser() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let workers = Arc::new(HostileWorkers::default());
    let admin = serve_workers(&runtime, workers.clone());
    let mut browser = Browser::start();
    browser.look(1280, "light");
    for (name, path) in [
        ("workers-overview", "/"),
        ("workers-configuration", "/configuration"),
        ("workers", "/workers"),
    ] {
        check_quiet(&browser.open(&format!("http://{admin}{path}")), admin);
        inspect(&mut browser, name);
        assert_eq!(browser.evaluate("typeof window.hit"), "undefined", "{path}");
    }
    check_quiet(&click(&mut browser, "main dd a"), admin);
    inspect(&mut browser, "dead-letters");
    fill(&mut browser, "#reason", "the target is repaired");
    fill(&mut browser, "#by", "anna");
    browser.evaluate("document.querySelector('#sure').click()");
    check_quiet(&click(&mut browser, "form[action*=redrive] button"), admin);
    inspect(&mut browser, "redriven");
    let said = text(&mut browser, "main");
    assert!(
        said.contains("1 published again") && said.contains(HOSTILE),
        "{said}"
    );
    assert_eq!(browser.evaluate("typeof window.hit"), "undefined");
    assert_eq!(
        *workers.0.lock().unwrap(),
        ["100 the target is repaired anna"]
    );
}
