//! What the upstream learns of a request: who sent it, which only trusted proxies may tell, and its path below the base.

mod support;

use support::{Proxy, Starting, Upstream, call, get, http2, request, until};

const FORGED: [(&str, &str); 5] = [
    ("x-forwarded-for", "10.9.9.9"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-host", "bank.test"),
    ("x-forwarded-port", "443"),
    ("forwarded", "for=10.9.9.9;proto=https"),
];

fn seen(upstream: &Upstream, name: &str) -> Option<String> {
    let seen = upstream.seen();
    seen.last().unwrap().header(name).map(Into::into)
}

#[test]
fn clients_cannot_pass_for_others() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(
        upstream.address,
        "[proxy]\ntrusted_proxies = [\"10.0.0.0/8\", \"::1\"]\n",
    );
    let keyed = [&FORGED[..], &[("idempotency-key", "k")]].concat();
    for (start, fields) in [("GET /a", &FORGED[..]), ("POST /a", &keyed)] {
        assert_eq!(call(proxy.address, request(start, fields, b"")).status, 200);
        for (name, expected) in [
            ("x-forwarded-for", Some("127.0.0.1")),
            ("x-forwarded-proto", Some("http")),
            ("x-forwarded-host", Some("shop.test")),
            ("x-forwarded-port", None),
            ("forwarded", None),
        ] {
            assert_eq!(seen(&upstream, name).as_deref(), expected, "{start} {name}");
        }
    }
}

#[test]
fn trusted_proxies_are_believed_and_their_lists_extended() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(
        upstream.address,
        "[proxy]\ntrusted_proxies = \"127.0.0.0/8\"\n",
    );
    assert_eq!(
        call(proxy.address, request("GET /a", &FORGED, b"")).status,
        200
    );
    for (name, expected) in [
        ("x-forwarded-for", "10.9.9.9, 127.0.0.1"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "bank.test"),
        ("x-forwarded-port", "443"),
        (
            "forwarded",
            "for=10.9.9.9;proto=https, for=127.0.0.1;host=\"shop.test\";proto=http",
        ),
    ] {
        assert_eq!(seen(&upstream, name).as_deref(), Some(expected), "{name}");
    }
}

#[test]
fn networks_that_are_none_are_reported() {
    for (network, message) in [
        ("10.0.0.1/8", "has bits after its prefix"),
        ("lan", "invalid network `lan`"),
    ] {
        let starting = Starting::new()
            .arg("--upstream", "http://127.0.0.1:9")
            .file(&format!("[proxy]\ntrusted_proxies = [{network:?}]\n"));
        let (code, said) = starting.refused();
        assert_eq!(code, Some(64), "{said}");
        assert!(said.contains(message) && said.contains("2:"), "{said}");
    }
}

/// A proxy whose upstream has a base path.
fn below(upstream: &Upstream, base: &str, settings: &str) -> Proxy {
    Starting::new()
        .arg("--upstream", format!("http://{}{base}", upstream.address))
        .arg("--store", "memory:")
        .file(settings)
        .start()
}

#[test]
fn requests_are_sent_below_the_base_path() {
    let upstream = Upstream::echo();
    let settings = "[[operation]]\nmatch = \"POST /pay\"\nrequired = true\n";
    for base in ["/shop", "/shop/", "/shop/v2"] {
        let proxy = below(&upstream, base, settings);
        let base = base.trim_end_matches('/');
        for (start, target) in [
            ("GET /a?b=%2f&c", format!("GET {base}/a?b=%2f&c")),
            ("GET /", format!("GET {base}/")),
            ("GET http://shop.test?x", format!("GET {base}/?x")),
            ("OPTIONS *", "OPTIONS *".into()),
        ] {
            assert_eq!(call(proxy.address, request(start, &[], b"")).status, 200);
            assert_eq!(upstream.seen().last().unwrap().start(), target);
        }
        // The policy sees the client's path.
        assert_eq!(
            call(proxy.address, request("POST /pay", &[], b"")).status,
            400
        );
        let keyed = request("POST /pay", &[("idempotency-key", "k")], b"{}");
        assert_eq!(call(proxy.address, keyed.clone()).status, 200);
        let replay = call(proxy.address, keyed);
        assert_eq!(replay.header("idempotent-replayed"), Some("true"));
        let last = upstream.seen();
        assert_eq!(last.last().unwrap().start(), format!("POST {base}/pay"));
        let fields = [
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "shop.test"),
            (":path", "/two?x"),
        ];
        assert_eq!(http2::call(proxy.address, &fields, None), Some(200));
        let last = upstream.seen();
        assert_eq!(last.last().unwrap().start(), format!("GET {base}/two?x"));
    }
}

#[test]
fn paths_that_leave_the_base_are_rejected() {
    let upstream = Upstream::echo();
    let proxy = below(&upstream, "/shop", "");
    for path in [
        "/..",
        "/../admin",
        "/a/../../admin",
        "/%2e%2e/admin",
        "/..;/admin",
    ] {
        let shown = call(proxy.address, get(path));
        assert_eq!(shown.status, 400, "{path}");
        assert!(shown.text().contains("request-malformed"), "{path}");
    }
    assert_eq!(call(proxy.address, get("/a/../b")).status, 200);
    assert_eq!(upstream.count(), 1);
    // Without a base there is nothing to leave.
    let proxy = Proxy::start(upstream.address, "");
    assert_eq!(call(proxy.address, get("/../admin")).status, 200);
}

#[test]
fn probes_are_sent_below_the_base_path() {
    let upstream = Upstream::start(|seen, stream| match seen.start() {
        "POST /shop/pay" => support::AfterResponse::Close,
        "GET /shop/paid/k" => support::answer(stream, "200 OK", &[], b"found"),
        other => panic!("unexpected: {other}"),
    });
    let settings = "[[operation]]\nmatch = \"POST /pay\"\nprobe = \"GET /paid/{key}\"\n\
                    timeout = \"8s\"\nlease = \"1s\"\nsettle_after = \"8s\"\n";
    let proxy = below(&upstream, "/shop", settings);
    let keyed = request("POST /pay", &[("idempotency-key", "k")], b"{}");
    until("the probe has settled the record", || {
        let shown = call(proxy.address, keyed.clone());
        shown.status == 200 && shown.body == b"found"
    });
}

#[test]
fn an_upstream_that_is_no_base_is_reported() {
    for url in [
        "http://127.0.0.1:9/a?b",
        "http://127.0.0.1:9/a/../b",
        "http://127.0.0.1:9//a",
        "http:///a",
    ] {
        let (code, said) = Starting::new().arg("--upstream", url).refused();
        assert_eq!(code, Some(64), "{url}: {said}");
        assert!(said.contains("invalid URL in `upstream`"), "{said}");
    }
}
