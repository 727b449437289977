//! The proxy tells systemd its state, and serves on sockets that systemd has bound.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    net::TcpListener,
    os::unix::net::UnixDatagram,
    process::{Child, Stdio},
};

use support::{PATIENCE, Starting, Upstream, call, post, until};

/// The next messages, until one contains `wanted`.
fn until_told(socket: &UnixDatagram, wanted: &str) {
    let mut bytes = [0; 4096];
    loop {
        let len = socket
            .recv(&mut bytes)
            .unwrap_or_else(|error| panic!("no `{wanted}`: {error}"));
        if std::str::from_utf8(&bytes[..len]).unwrap().contains(wanted) {
            return;
        }
    }
}

#[test]
fn systemd_learns_when_the_proxy_serves_reloads_and_stops() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let proxy = Starting::new()
        .arg("--upstream", "http://127.0.0.1:9")
        .arg("--store", "memory:")
        .variable("NOTIFY_SOCKET", path.display())
        .variable("WATCHDOG_USEC", 20_000)
        .file("[[operation]]\nmatch = \"POST /orders\"\n")
        .start();
    until_told(&socket, "READY=1");
    until_told(&socket, "WATCHDOG=1");
    proxy.hang_up();
    until_told(&socket, "RELOADING=1\nMONOTONIC_USEC=");
    until_told(&socket, "READY=1");
    proxy.terminate();
    until_told(&socket, "STOPPING=1");
    assert!(proxy.ended().success());
}

#[test]
fn the_old_process_names_the_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let proxy = || {
        Starting::new().arg("--upstream", "http://127.0.0.1:9").arg(
            "--store",
            format!("file:{}", folder.path().join("records").display()),
        )
    };
    let old = proxy().variable("NOTIFY_SOCKET", path.display()).start();
    let mut replacing = proxy();
    replacing.args.push("--replace".into());
    let new = replacing.start();
    until_told(&socket, &format!("MAINPID={}", new.pid()));
    assert!(old.ended().success());
}

/// As systemd starts it: with a listening socket as descriptor 3.
fn activated(socket: &TcpListener, starting: &Starting) -> Child {
    let passed: std::os::fd::OwnedFd = socket.try_clone().unwrap().into();
    let mut command = starting.command();
    command.stdin(passed).stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn connections_wait_in_the_socket_of_systemd_while_the_proxy_is_restarted() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::echo();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let script =
        "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=listen exec \"$0\" \"$@\"";
    let starting = Starting::new()
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg(
            "--store",
            format!("file:{}", folder.path().join("records").display()),
        )
        .through(&["sh", "-c", script]);
    let mut first = activated(&socket, &starting);
    assert_eq!(call(address, post("k", "b")).status, 200);
    let pid = rustix::process::Pid::from_child(&first);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(first.wait().unwrap().success());

    // Nobody accepts this connection yet.
    let mut waiting = support::Client::connect(address);
    waiting.send(post("k", "b"));
    let mut second = activated(&socket, &starting);
    assert!(waiting.answer().is_replay());
    second.kill().unwrap();
    until("the end", || second.try_wait().unwrap().is_some());
}
