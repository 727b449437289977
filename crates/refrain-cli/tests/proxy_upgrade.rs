//! A new process takes over from a running proxy under load: no request fails, none executes twice, and requests in
//! progress end where they began. Killing either process at any moment loses nothing and doubles nothing.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::Path,
    process::{Child, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::{Client, Proxy, Starting, Upstream, answer, post, request, until};

/// A proxy with its records in `folder`, on free ports, or on those of the proxy that it replaces.
fn proxy(upstream: SocketAddr, folder: &Path, replaced: Option<&Proxy>) -> Starting {
    let mut starting = Starting::new();
    if let Some(old) = replaced {
        starting.args[2] = old.address.to_string();
        starting.args[4] = old.admin.to_string();
        starting.args.push("--replace".into());
    }
    starting
        .arg("--upstream", format!("http://{upstream}"))
        .arg(
            "--store",
            format!("file:{}", folder.join("records").display()),
        )
}

/// Answers 201 with the number of the request; one whose body is `slow` first waits for a message.
fn upstream() -> (Upstream, mpsc::Sender<()>) {
    let (release, released) = mpsc::channel();
    let released = Mutex::new(released);
    let upstream = Upstream::start(move |seen, stream| {
        if seen.body == b"slow" {
            released.lock().unwrap().recv().unwrap();
        }
        answer(stream, "201 Created", &[], seen.at.to_string().as_bytes())
    });
    (upstream, release)
}

/// How often each key reached the upstream.
fn dispatches(upstream: &Upstream) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for seen in upstream.seen() {
        *counts
            .entry(seen.header("idempotency-key").unwrap().into())
            .or_default() += 1;
    }
    counts
}

/// Sends a first request and its duplicate, again and again, until it is told to stop. Returns the number of keys.
fn load(
    stop: &Arc<AtomicBool>,
    send: impl FnMut(&str) -> (u16, bool) + Send + 'static,
    name: &str,
) -> thread::JoinHandle<usize> {
    let (stop, name, mut send) = (stop.clone(), name.to_owned(), send);
    thread::spawn(move || {
        let mut sent = 0;
        while !stop.load(Relaxed) {
            let key = format!("{name}-{sent}");
            assert_eq!(send(&key), (201, false), "{key}");
            assert_eq!(send(&key), (201, true), "duplicate of {key}");
            sent += 1;
        }
        sent
    })
}

/// Over one connection, until the server says that it closes it.
fn over_http1(address: SocketAddr) -> impl FnMut(&str) -> (u16, bool) {
    let mut client = None;
    move |key| {
        let open = client.get_or_insert_with(|| Client::connect(address));
        let answer = open.send(post(key, "quick")).answer();
        if answer.header("connection") == Some("close") {
            client = None;
        }
        (answer.status, answer.is_replay())
    }
}

fn over_new_connections(address: SocketAddr) -> impl FnMut(&str) -> (u16, bool) {
    move |key| {
        let answer = support::call(address, post(key, "quick"));
        (answer.status, answer.is_replay())
    }
}

/// Over one connection, until the server sends GOAWAY.
fn over_http2(address: SocketAddr) -> impl FnMut(&str) -> (u16, bool) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut sender: Option<SendRequest<Full<Bytes>>> = None;
    move |key| {
        runtime.block_on(async {
            if let Some(open) = &mut sender
                && open.ready().await.is_err()
            {
                sender = None;
            }
            if sender.is_none() {
                let stream = tokio::net::TcpStream::connect(address).await.unwrap();
                let made = handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
                let (made, connection) = made.unwrap();
                tokio::spawn(connection);
                sender = Some(made);
            }
            let request = http::Request::post(format!("http://{address}/orders"))
                .header("idempotency-key", key)
                .body(Full::new(Bytes::from_static(b"quick")))
                .unwrap();
            let response = sender
                .as_mut()
                .unwrap()
                .send_request(request)
                .await
                .unwrap();
            let (head, body) = response.into_parts();
            body.collect().await.unwrap();
            (
                head.status.as_u16(),
                head.headers.contains_key("idempotent-replayed"),
            )
        })
    }
}

#[test]
fn several_upgrades_under_load_fail_no_request_and_double_none() {
    let folder = tempfile::tempdir().unwrap();
    let (upstream, release) = upstream();
    let mut running = proxy(upstream.address, folder.path(), None).start();
    let (address, stop) = (running.address, Arc::new(AtomicBool::new(false)));
    let mut loads = vec![
        load(&stop, over_http1(address), "kept"),
        load(&stop, over_new_connections(address), "new"),
        load(&stop, over_http2(address), "h2"),
    ];
    let mut expected = 0;
    for round in 0..4 {
        let key = format!("slow-{round}");
        let mut slow = Client::connect(address);
        slow.send(post(&key, "slow"));
        until("the slow request", || {
            dispatches(&upstream).contains_key(&key)
        });
        let mut idle = Client::connect(address);
        assert_eq!(
            idle.send(post(&format!("idle-{round}"), "b"))
                .answer()
                .status,
            201
        );

        let next = proxy(upstream.address, folder.path(), Some(&running)).start();
        // The new process serves while the old one still has the slow request. Its duplicate waits in the new one.
        let duplicate = {
            let key = key.clone();
            thread::spawn(move || Client::connect(address).send(post(&key, "slow")).answer())
        };
        let probe = support::call(address, post(&format!("probe-{round}"), "b"));
        assert_eq!(probe.status, 201);
        // An idle connection of the old process is answered, and then closed.
        let last = idle.send(post(&format!("last-{round}"), "b")).answer();
        assert_eq!(
            (last.status, last.header("connection")),
            (201, Some("close"))
        );
        assert!(idle.is_closed());
        release.send(()).unwrap();
        let answered = slow.answer();
        assert_eq!((answered.status, answered.is_replay()), (201, false));
        let duplicate = duplicate.join().unwrap();
        assert!(duplicate.is_replay(), "{}", duplicate.text());
        assert_eq!(duplicate.body, answered.body);
        drop(slow);
        let old = std::mem::replace(&mut running, next);
        assert!(old.ended().success());
        expected += 4;
    }
    stop.store(true, Relaxed);
    for load in loads.drain(..) {
        let sent = load.join().unwrap();
        assert!(sent > 0);
        expected += sent;
    }
    let dispatches = dispatches(&upstream);
    assert_eq!(dispatches.len(), expected);
    assert!(
        dispatches.values().all(|count| *count == 1),
        "{dispatches:?}"
    );
}

/// The old process serves another folder, or the new one cannot start.
#[test]
fn a_new_process_that_is_refused_leaves_the_old_one_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (upstream, _release) = upstream();
    let old = proxy(upstream.address, folder.path(), None).start();
    let mut client = Client::connect(old.address);
    assert_eq!(client.send(post("first", "b")).answer().status, 201);

    // The policy needs an audit log, and its folder is a file: found out only after the store was handed over.
    let file = folder.path().join("a-file");
    std::fs::write(&file, "x").unwrap();
    let failing = proxy(upstream.address, folder.path(), Some(&old))
        .arg("--audit-log", file.display())
        .file("[[operation]]\nmatch = \"POST /orders\"\naudit = true\n");
    let (code, message) = failing.refused();
    assert_eq!(code, Some(69), "{message}");
    until("the old one serves again", || {
        old.errors().contains("this one serves again")
    });
    assert!(client.send(post("first", "b")).answer().is_replay());
    assert_eq!(support::call(old.address, post("second", "b")).status, 201);

    // It can still be replaced.
    let new = proxy(upstream.address, folder.path(), Some(&old)).start();
    assert_eq!(client.send(post("third", "b")).answer().status, 201);
    assert!(old.ended().success());
    assert!(support::call(new.address, post("third", "b")).is_replay());
}

#[test]
fn without_a_running_proxy_it_starts_as_usual_and_memory_cannot_be_handed_over() {
    let folder = tempfile::tempdir().unwrap();
    let (upstream, _release) = upstream();
    let mut starting = proxy(upstream.address, folder.path(), None);
    starting.args.push("--replace".into());
    let alone = starting.start();
    assert_eq!(support::call(alone.address, post("k", "b")).status, 201);

    let control = folder.path().join("control");
    let memory = || {
        Starting::new()
            .arg("--upstream", format!("http://{}", upstream.address))
            .arg("--store", "memory:")
    };
    let running = memory().arg("--control", control.display()).start();
    let mut second = memory().arg("--control", control.display());
    second.args.push("--replace".into());
    let (code, message) = second.refused();
    assert_eq!(code, Some(69));
    assert!(message.contains("in its memory"), "{message}");
    assert_eq!(support::call(running.address, post("k", "b")).status, 201);
    let mut third = memory();
    third.args.push("--replace".into());
    assert_eq!(third.refused().0, Some(64));
}

/// Audited requests of the old process end before the audit log changes hands; later ones wait meanwhile.
#[test]
fn the_audit_log_continues_in_one_chain() {
    let folder = tempfile::tempdir().unwrap();
    let (upstream, release) = upstream();
    let policy = "[[operation]]\nmatch = \"POST /orders\"\naudit = \"required\"\n";
    let old = proxy(upstream.address, folder.path(), None)
        .file(policy)
        .start();
    let mut slow = Client::connect(old.address);
    slow.send(post("slow", "slow"));
    upstream.wait_for(1);
    let replaced = proxy(upstream.address, folder.path(), Some(&old)).file(policy);
    let address = old.address;
    let starting = thread::spawn(move || replaced.start());
    release.send(()).unwrap();
    assert_eq!(slow.answer().status, 201);
    drop(slow);
    let new = starting.join().unwrap();
    assert_eq!(support::call(address, post("next", "b")).status, 201);
    assert!(support::call(address, post("slow", "slow")).is_replay());
    assert!(old.ended().success());
    let audit = folder.path().join("records").join("audit");
    until("the entries", || {
        new.metric("refrain_audit_entries_total") >= 3.0
    });
    let verified = refrain::audit::verify(&audit, &refrain::audit::Check::default(), &mut |_| ());
    assert!(verified.unwrap().damage.is_empty());
}

/// Starts a process that is killed at some moment of the hand-over.
fn spawn(starting: &Starting) -> Child {
    let mut command = starting.command();
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Sends a request until it has an end: 201, or an unknown outcome. Connections may break while processes are killed.
fn settled(address: SocketAddr, key: &str, is_over: &AtomicBool) -> Option<u16> {
    while !is_over.load(Relaxed) {
        let Ok(stream) = std::net::TcpStream::connect(address) else {
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        let mut client = Client::over(stream);
        let answer = client
            .send(request("POST /orders", &[("idempotency-key", key)], b"b"))
            .try_answer();
        match answer.map(|it| (it.status, it.code())) {
            Some((201, _)) => return Some(201),
            Some((status, Some(code))) if code == "outcome-unknown" => return Some(status),
            _ => thread::sleep(Duration::from_millis(5)),
        }
    }
    None
}

#[test]
fn killing_the_new_or_the_old_process_at_any_moment_doubles_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (upstream, _release) = upstream();
    let mut running = proxy(upstream.address, folder.path(), None).start();
    let address = running.address;
    let is_over = Arc::new(AtomicBool::new(false));
    let kept = Arc::new(Mutex::new(Vec::new()));
    let unknown = Arc::new(AtomicUsize::new(0));
    let loads: Vec<_> = (0..3)
        .map(|at| {
            let (is_over, kept, unknown) = (is_over.clone(), kept.clone(), unknown.clone());
            thread::spawn(move || {
                for sent in 0.. {
                    let key = format!("{at}-{sent}");
                    match settled(address, &key, &is_over) {
                        Some(201) => kept.lock().unwrap().push(key),
                        Some(_) => drop(unknown.fetch_add(1, Relaxed)),
                        None => return,
                    }
                }
            })
        })
        .collect();
    let mut survived = 0;
    for round in 0..40_u64 {
        let before = kept.lock().unwrap().len();
        let starting = proxy(upstream.address, folder.path(), Some(&running));
        let mut new = spawn(&starting);
        // The moment of the kill moves through the hand-over.
        thread::sleep(Duration::from_millis(round / 2 * 10));
        let is_new_killed = round % 2 == 0;
        match is_new_killed {
            true => drop(new.kill()),
            false => running.kill(),
        }
        // The process that is left serves on, unless it had already handed over to the killed one.
        let made_progress = || kept.lock().unwrap().len() > before + 10;
        let is_refused = || std::net::TcpStream::connect(address).is_err();
        until("progress, or the end", || made_progress() || is_refused());
        survived += usize::from(is_new_killed && made_progress());
        // The next process finds what the others have left.
        let _ = new.kill();
        new.wait().unwrap();
        running.kill();
        running = proxy(upstream.address, folder.path(), Some(&running)).start();
    }
    assert!(survived > 0);
    is_over.store(true, Relaxed);
    loads.into_iter().for_each(|it| it.join().unwrap());
    let dispatches = dispatches(&upstream);
    assert!(
        dispatches.values().all(|count| *count == 1),
        "{dispatches:?}"
    );
    for key in kept.lock().unwrap().iter() {
        let again = support::call(
            address,
            request("POST /orders", &[("idempotency-key", key)], b"b"),
        );
        assert!(again.is_replay(), "{key}: {}", again.text());
    }
}
