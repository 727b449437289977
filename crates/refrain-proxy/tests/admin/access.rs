//! Access control: a stranger on the network, a page in the operator's browser, a form of another site.

use http::Method;

use crate::stage;

const NOBODY: &str = "/api/records/00000000000000000000000000000000";

#[tokio::test]
async fn beyond_the_machine_a_token_is_required() {
    for token in [None, Some(""), Some("  ")] {
        let stage = stage::open_at("0.0.0.0:0", token).await;
        let said = stage.close().await.unwrap_err().to_string();
        assert!(said.contains("token"), "{said}");
    }
}

#[tokio::test]
async fn a_token_opens_all_but_the_probes() {
    for address in ["0.0.0.0:0", "127.0.0.1:0"] {
        let stage = stage::open_at(address, Some("open sesame")).await;
        for path in ["/livez", "/readyz"] {
            assert_eq!(stage.get(path).await.status, 200, "{path} is open");
        }
        let cases = [
            (None, 401),
            (Some("Bearer open sesam"), 401),
            (Some("Bearer open sesame!"), 401),
            (Some("Basic open sesame"), 401),
            (Some("Bearer"), 401),
            (Some("Bearer open sesame"), 200),
            (Some("bearer open sesame"), 200),
            (Some("Bearer only look"), 200),
        ];
        for (shown, expected) in cases {
            let headers: Vec<_> = shown.iter().map(|it| ("authorization", *it)).collect();
            for path in ["/metrics", "/api/records"] {
                let answer = stage.ask_with(Method::GET, path, &headers, "").await;
                assert_eq!(answer.status, expected, "{path} {shown:?}");
            }
        }
        let refused = stage.get("/metrics").await;
        assert_eq!(refused.headers["www-authenticate"], "Bearer");
        assert!(refused.json["fix"].as_str().unwrap().contains("Bearer"));
    }
}

#[tokio::test]
async fn a_name_that_was_pointed_here_is_refused() {
    let stage = stage::open().await;
    let cases = [
        ("127.0.0.1:8378", 200),
        ("localhost", 200),
        ("LocalHost:1", 200),
        ("[::1]:8378", 200),
        ("127.8.9.1", 200),
        ("evil.example", 403),
        ("evil.example:8378", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("10.0.0.1", 403),
    ];
    for (host, expected) in cases {
        for path in ["/api/records", "/metrics", "/livez"] {
            let answer = stage
                .ask_with(Method::GET, path, &[("host", host)], "")
                .await;
            assert_eq!(answer.status, expected, "{host} {path}");
        }
    }
    let two = [("host", "localhost"), ("host", "evil.example")];
    let answer = stage.ask_with(Method::GET, "/api/records", &two, "").await;
    assert_ne!(answer.status, 200, "two hosts");
}

#[tokio::test]
async fn a_page_of_another_site_cannot_write() {
    let stage = stage::open().await;
    let json = ("content-type", "application/json");
    let body = r#"{"reason":"because"}"#;
    // A request that is let in gets a 404, because there is no such record.
    let cases: [(&[(&str, &str)], u16); 9] = [
        (&[json], 404),
        (&[("content-type", "application/json; charset=utf-8")], 404),
        (&[json, ("sec-fetch-site", "same-origin")], 404),
        (&[], 415),
        (&[("content-type", "text/plain")], 415),
        (
            &[("content-type", "application/x-www-form-urlencoded")],
            415,
        ),
        (&[json, ("origin", "https://evil.example")], 403),
        (&[json, ("origin", "null")], 403),
        (&[json, ("sec-fetch-site", "cross-site")], 403),
    ];
    for (headers, expected) in cases {
        let answer = stage.ask_with(Method::DELETE, NOBODY, headers, body).await;
        assert_eq!(answer.status, expected, "{headers:?} {}", answer.text);
        assert!(answer.json["error"].is_string() && answer.json["fix"].is_string());
        let allowed = answer.headers.get("access-control-allow-origin");
        assert!(allowed.is_none(), "another origin may read");
    }
    let own = format!("http://{}", stage.address);
    let headers = [json, ("origin", own.as_str())];
    let answer = stage.ask_with(Method::DELETE, NOBODY, &headers, body).await;
    assert_eq!(answer.status, 404, "a page of the same origin is rejected");
    let preflight = stage
        .ask_with(
            Method::OPTIONS,
            NOBODY,
            &[("origin", "https://evil.example")],
            "",
        )
        .await;
    assert!(preflight.status >= 400, "{}", preflight.status);
}

#[tokio::test]
async fn a_proxy_on_the_same_machine_serves_the_listener_under_its_name() {
    let mut setup = stage::Setup::new();
    setup.hosts = vec!["refrain.internal".into()];
    let said = setup.open().await.close().await.unwrap_err().to_string();
    assert!(said.contains("needs a token"), "{said}");
    let mut setup = stage::Setup::new();
    setup.hosts = vec!["refrain.internal".into()];
    setup.token = Some("open sesame".into());
    let stage = setup.open().await;
    for (host, expected) in [
        ("refrain.internal", 200),
        ("Refrain.Internal:443", 200),
        ("127.0.0.1", 200),
        ("evil.internal", 403),
    ] {
        let answer = stage
            .ask_with(Method::GET, "/livez", &[("host", host)], "")
            .await;
        assert_eq!(answer.status, expected, "{host}");
    }
}

#[tokio::test]
async fn a_page_of_another_site_can_only_link_here() {
    let stage = stage::open().await;
    let site = |site| ("sec-fetch-site", site);
    let mode = |mode| ("sec-fetch-mode", mode);
    let dest = |dest| ("sec-fetch-dest", dest);
    let cases: [(&[(&str, &str)], u16); 7] = [
        (&[], 200),
        (&[site("same-origin"), mode("no-cors"), dest("image")], 200),
        (&[site("none"), mode("navigate"), dest("document")], 200),
        (
            &[site("cross-site"), mode("navigate"), dest("document")],
            200,
        ),
        (&[site("cross-site"), mode("navigate"), dest("iframe")], 403),
        (&[site("cross-site"), mode("no-cors"), dest("image")], 403),
        (&[site("same-site"), mode("cors"), dest("empty")], 403),
    ];
    for (headers, expected) in cases {
        for path in ["/records?key=order-7", "/api/records", "/metrics"] {
            let answer = stage.ask_with(Method::GET, path, headers, "").await;
            assert_eq!(answer.status, expected, "{path} {headers:?}");
        }
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_are_rejected_with_a_fix() {
    let stage = stage::open().await;
    let cases = [
        (Method::GET, "/api/nothing", "", 404),
        (Method::POST, "/livez", "{}", 405),
        (Method::PUT, NOBODY, "{}", 405),
    ];
    for (method, path, body, expected) in cases {
        let answer = stage.ask(method, path, body).await;
        assert_eq!(answer.status, expected, "{path}");
        assert!(answer.json["fix"].is_string(), "{path} {}", answer.text);
    }
    let huge = format!(r#"{{"reason":"{}"}}"#, "x".repeat(17 << 20));
    let answer = stage.ask(Method::DELETE, NOBODY, &huge).await;
    assert_eq!(answer.status, 413);
    assert!(answer.json["fix"].is_string(), "{}", answer.text);
}
