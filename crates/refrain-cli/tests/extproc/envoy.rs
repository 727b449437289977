//! The same with a real Envoy, in the configuration of the documentation: what it does with the replies of Refrain, and
//! what it says about its own failures, is no promise of its protocol alone.

use std::{net::SocketAddr, path::Path};

use refrain_testkit::servers::PrivateEnvoy;

use super::{
    PAYMENTS, start, starting,
    support::{
        AfterResponse, Client, Parked, Proxy, Upstream, answer, call, request, respond, until,
    },
};

/// Envoy with the documented configuration, in front of this upstream.
struct Mesh {
    _envoy: PrivateEnvoy,
    address: SocketAddr,
}

impl Mesh {
    fn start(server: SocketAddr, upstream: SocketAddr) -> Self {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating/envoy.md");
        let page = std::fs::read_to_string(page).unwrap();
        let (_, yaml) = page.split_once("```yaml\n").unwrap();
        let (yaml, _) = yaml.split_once("```").unwrap();
        let envoy = PrivateEnvoy::start(|port| {
            let changes = [
                (10_000, port),
                (8381, server.port()),
                (3000, upstream.port()),
            ];
            changes.iter().fold(yaml.to_owned(), |yaml, (from, to)| {
                let (from, to) = (format!("port_value: {from}"), format!("port_value: {to}"));
                assert!(yaml.contains(&from), "{from}");
                yaml.replace(&from, &to)
            })
        });
        let envoy = envoy.unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], envoy.port()));
        Self {
            _envoy: envoy,
            address,
        }
    }

    fn post(&self, key: &str, body: &str) -> super::support::HttpResponse {
        call(self.address, pay(key, body))
    }
}

fn pay(key: &str, body: &str) -> Vec<u8> {
    let headers = [("host", "shop.example"), ("idempotency-key", key)];
    request("POST /v1/payments", &headers, body.as_bytes())
}

fn paying() -> Upstream {
    Upstream::start(|seen, stream| {
        let headers = [
            ("content-type", "text/x"),
            ("link", "<a>"),
            ("link", "<b>"),
            ("refrain-outcome", "keep"),
        ];
        let body = format!("paid \r\n{}", seen.at);
        answer(stream, "201 Created", &headers, body.as_bytes())
    })
}

#[test]
fn envoy_replays_what_the_first_client_got() {
    let (server, upstream) = (start(PAYMENTS), paying());
    let mesh = Mesh::start(server.address, upstream.address);
    let first = mesh.post("k1", "{\"amount\":1}");
    assert_eq!((first.status, first.text()), (201, "paid \r\n0"));
    assert_eq!(first.header("refrain-outcome"), None);
    let seen = upstream.seen();
    assert_eq!(seen[0].header("refrain-attempt"), Some("1"));
    assert_eq!(seen[0].header("idempotency-key"), Some("k1"));
    assert_eq!(seen[0].body, b"{\"amount\":1}");
    let replay = mesh.post("k1", "{\"amount\":1}");
    assert_eq!((replay.status, &replay.body), (201, &first.body));
    assert!(replay.is_replay());
    assert_eq!(replay.header("content-type"), Some("text/x"));
    assert_eq!(
        replay.header("refrain-record"),
        first.header("refrain-record")
    );
    assert_eq!(replay.head.matches("link: <").count(), 2, "{}", replay.head);
    assert_eq!(
        mesh.post("k1", "{\"amount\":2}").code().as_deref(),
        Some("key-reused")
    );
    assert_eq!(upstream.count(), 1);
}

#[test]
fn bodies_of_a_megabyte_and_none_at_all_pass() {
    let (server, upstream) = (start(PAYMENTS), Upstream::echo());
    let mesh = Mesh::start(server.address, upstream.address);
    for (key, body) in [("k1", "x".repeat(8 << 20)), ("k2", String::new())] {
        for _ in 0..2 {
            let reply = mesh.post(key, &body);
            assert_eq!(
                (reply.status, reply.body.len()),
                (200, body.len()),
                "{}",
                reply.head
            );
        }
    }
    assert_eq!(upstream.count(), 2);
    let over = mesh.post("k3", &"x".repeat((8 << 20) + 1));
    assert_eq!(
        (over.status, over.code().as_deref()),
        (413, Some("request-too-large"))
    );
}

#[test]
fn unguarded_requests_stream_past_refrain() {
    let (server, upstream) = (start(PAYMENTS), Upstream::echo());
    let mesh = Mesh::start(server.address, upstream.address);
    let body = vec![b'x'; 32 << 20];
    let headers = [("host", "shop.example"), ("refrain-fence", "1.1.1")];
    let reply = call(mesh.address, request("PUT /other", &headers, &body));
    assert_eq!((reply.status, reply.body.len()), (200, body.len()));
    assert_eq!(upstream.seen()[0].header("refrain-fence"), None);
}

#[test]
fn duplicates_that_envoy_sends_at_once_execute_once() {
    let server = start(PAYMENTS);
    let upstream = Upstream::start(move |_, stream| answer(stream, "201 Created", &[], b"paid"));
    let mesh = Mesh::start(server.address, upstream.address);
    let mut clients: Vec<_> = (0..20).map(|_| Client::connect(mesh.address)).collect();
    for client in &mut clients {
        client.send(pay("k1", "{}"));
    }
    let replies: Vec<_> = clients.iter_mut().map(Client::answer).collect();
    assert!(
        replies
            .iter()
            .all(|it| (it.status, it.text()) == (201, "paid"))
    );
    assert_eq!(replies.iter().filter(|it| it.is_replay()).count(), 19);
    assert_eq!(upstream.count(), 1);
}

#[test]
fn an_upstream_that_envoy_cannot_reach_leaves_the_key_free() {
    let (server, parked) = (start(PAYMENTS), Parked::new());
    let mesh = Mesh::start(server.address, parked.address());
    let reply = mesh.post("k1", "{}");
    assert_eq!(
        (reply.status, reply.code().as_deref()),
        (502, Some("upstream-unreachable"))
    );
    let _upstream = Upstream::on(parked.listen(), |_, stream| {
        answer(stream, "201 Created", &[], b"paid")
    });
    assert_eq!(mesh.post("k1", "{}").status, 201);
}

#[test]
fn a_response_that_never_arrives_whole_is_an_unknown_outcome() {
    let server = start(PAYMENTS);
    let upstream = Upstream::start(|seen, stream| {
        use std::io::Write as _;
        if seen.header("idempotency-key") == Some("cut") {
            let whole = respond("201 Created", &[], b"paid");
            stream.write_all(&whole[..whole.len() - 1]).unwrap();
        }
        AfterResponse::Close
    });
    let mesh = Mesh::start(server.address, upstream.address);
    for key in ["reset", "cut"] {
        let mut client = Client::connect(mesh.address);
        let reply = client.send(pay(key, "{}")).try_answer();
        if key == "reset" {
            let reply = reply.unwrap();
            assert_eq!(
                (reply.status, reply.code().as_deref()),
                (502, Some("outcome-unknown"))
            );
        }
        let again = mesh.post(key, "{}");
        assert_eq!(
            (again.status, again.code().as_deref()),
            (409, Some("outcome-unknown")),
            "{key}"
        );
    }
    assert_eq!(upstream.count(), 2);
}

#[test]
fn a_timeout_is_answered_by_refrain() {
    let server = start(&format!("{PAYMENTS}timeout = \"100ms\"\n"));
    let upstream = Upstream::start(|_, _| AfterResponse::Keep);
    let mesh = Mesh::start(server.address, upstream.address);
    let reply = mesh.post("k1", "{}");
    assert_eq!(
        (reply.status, reply.code().as_deref()),
        (504, Some("outcome-unknown"))
    );
    assert_eq!(mesh.post("k1", "{}").status, 409);
}

/// Envoy cancels the upstream's request, which the proxy would not.
#[test]
fn a_client_that_hangs_up_leaves_an_unknown_outcome() {
    let server = start(PAYMENTS);
    let upstream = Upstream::start(|_, _| AfterResponse::Keep);
    let mesh = Mesh::start(server.address, upstream.address);
    let mut client = Client::connect(mesh.address);
    client.send(pay("k1", "{}"));
    upstream.wait_for(1);
    drop(client);
    let reply = mesh.post("k1", "{}");
    assert_eq!(
        (reply.status, reply.code().as_deref()),
        (409, Some("outcome-unknown"))
    );
}

#[test]
fn nothing_passes_without_refrain() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("file:{}", folder.path().join("records").display());
    let run = || starting().arg("--store", &store).file(PAYMENTS);
    let upstream = Upstream::start(|_, _| AfterResponse::Keep);
    let server = run().start();
    let address = server.address;
    let mesh = Mesh::start(address, upstream.address);
    let mut client = Client::connect(mesh.address);
    client.send(pay("k1", "{}"));
    upstream.wait_for(1);
    // By SIGKILL.
    drop(server);
    assert_eq!(client.answer().status, 503);
    assert_eq!(mesh.post("k2", "{}").status, 503);
    let mut again = run();
    let listen = again
        .args
        .iter()
        .position(|it| it == "127.0.0.1:0")
        .unwrap();
    again.args[listen] = address.to_string();
    let _server: Proxy = again.start();
    until("Envoy connects again", || {
        mesh.post("k1", "{}").status == 409
    });
    assert_eq!(upstream.count(), 1);
}
