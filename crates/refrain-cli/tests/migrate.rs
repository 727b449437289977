//! A DBA creates the tables by hand because services may not: the printed SQL has to be the SQL that `migrate` runs.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::process::{Command, Stdio};

/// Runs the command; returns exit code, stdout and stderr.
fn run(args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command
        .env_remove("REFRAIN_STORE")
        .env_remove("REFRAIN_STORE_FILE");
    let output = command
        .arg("migrate")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// The address of a new schema on the test server.
fn url() -> String {
    let url = std::env::var("REFRAIN_TEST_POSTGRES_URL").unwrap_or_else(|_| {
        panic!("REFRAIN_TEST_POSTGRES_URL is not set: `cargo xtask test` starts a PostgreSQL and sets it")
    });
    let mark = if url.contains('?') { '&' } else { '?' };
    format!("{url}{mark}schema=refrain_cli_{}", std::process::id())
}

fn drop_schema() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let url = url();
        let (plain, _) = url.split_once("schema=").unwrap();
        let (client, connection) =
            tokio_postgres::connect(plain.trim_end_matches(['?', '&']), tokio_postgres::NoTls)
                .await
                .unwrap();
        tokio::spawn(connection);
        let drop = format!(
            "DROP SCHEMA IF EXISTS refrain_cli_{} CASCADE",
            std::process::id()
        );
        client.batch_execute(&drop).await.unwrap();
    });
}

#[test]
fn the_tables_are_made_once_and_told() {
    let url = url();
    let (code, told, said) = run(&["--store", &url]);
    assert_eq!((code, said.as_str()), (0, ""), "{told}");
    assert!(told.contains("created at version 4"), "{told}");
    let (code, told, _) = run(&["--store", &url]);
    assert!(code == 0 && told.contains("nothing to do"), "{told}");
    let (code, told, _) = run(&["--store", &url, "--json"]);
    assert!(code == 0 && told.contains("\"from\": 4"), "{told}");
    drop_schema();
}

#[test]
fn the_table_of_queues_is_printed_and_made() {
    let (code, script, said) = run(&["--queue", "--print"]);
    assert_eq!((code, said.as_str()), (0, ""));
    assert!(
        script.contains("CREATE TABLE IF NOT EXISTS refrain_queue"),
        "{script}"
    );
    let (code, _, said) = run(&["--queue"]);
    assert!(code == 2 && said.contains("no database"), "{said}");
    let nowhere = "postgres://app:hunter2@127.0.0.1:1/app";
    let (code, _, said) = run(&["--queue", "--store", nowhere]);
    assert!(code == 69 && !said.contains("hunter2"), "{said}");
    // Dropping the server deletes its folder.
    let server = refrain_testkit::servers::PrivatePostgres::start().unwrap();
    for what in ["table created", "table already exists"] {
        let (code, told, said) = run(&["--queue", "--store", &server.url()]);
        assert!(code == 0 && told.contains(what), "{told}{said}");
    }
}

/// Runs statements on a server, as a DBA would with `psql`.
fn apply(url: &str, sql: &str) -> Result<(), tokio_postgres::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute(sql).await
    })
}

#[test]
fn only_what_the_tables_lack_is_printed() {
    let server = refrain_testkit::servers::PrivatePostgres::start().unwrap();
    let (url, print) = (server.url(), ["--store", &server.url(), "--print"]);
    let (code, all, said) = run(&print);
    assert_eq!((code, said.as_str()), (0, ""));
    assert!(all.contains("CREATE TABLE \"refrain\".records"), "{all}");
    apply(&url, &all).unwrap();
    // Restores the schema of the first version.
    let back = "DROP TABLE refrain.scope_keys; DROP TABLE refrain.sequences; ALTER TABLE refrain.records DROP COLUMN trace; \
                UPDATE refrain.meta SET version = 1";
    apply(&url, back).unwrap();
    let (code, step, said) = run(&print);
    assert_eq!((code, said.as_str()), (0, ""));
    assert!(step.contains("from version 1 to 4"), "{step}");
    assert!(
        step.contains("CREATE TABLE \"refrain\".sequences"),
        "{step}"
    );
    for there in ["CREATE TABLE \"refrain\".records", "CREATE SCHEMA"] {
        assert!(!step.contains(there), "{step}");
    }
    apply(&url, &step).unwrap();
    let (code, told, _) = run(&["--store", &url]);
    assert!(code == 0 && told.contains("already at version 4"), "{told}");
    let (code, nothing, _) = run(&print);
    assert!(code == 0 && nothing.contains("nothing to do"), "{nothing}");
    assert!(
        nothing.lines().all(|line| line.starts_with("--")),
        "{nothing}"
    );
    // A step that is run on a newer version changes nothing.
    let error = apply(&url, &step).unwrap_err();
    let said = error.as_db_error().unwrap().message().to_owned();
    assert!(said.contains("is not at version 1"), "{said}");
}

#[test]
fn print_works_without_a_server() {
    let (code, script, said) = run(&[
        "--store",
        "postgres://app:hunter2@nowhere.invalid/app?schema=payments",
        "--print",
    ]);
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("is unknown") && !said.contains("hunter2"),
        "{said}"
    );
    for words in [
        "CREATE SCHEMA IF NOT EXISTS \"payments\"",
        "CREATE TABLE \"payments\".records",
        "COMMIT;",
    ] {
        assert!(script.contains(words), "{words} is not in {script}");
    }
    assert!(
        !script.contains("__") && !script.contains("hunter2"),
        "{script}"
    );
}

#[test]
fn the_usual_schema_is_printed_without_an_address() {
    let (code, script, said) = run(&["--print"]);
    assert_eq!((code, said.as_str()), (0, ""));
    assert!(
        script.contains("CREATE TABLE \"refrain\".records"),
        "{script}"
    );
    let named = run(&["--store", "postgres://app@db/app", "--print"]);
    assert_eq!(script, named.1);
}

#[test]
fn migration_failures_are_explained() {
    for (args, want, words) in [
        (&[][..], 2, "--store postgres://"),
        (&["--store", "file:refrain-data"], 2, "has no tables"),
        (&["--store", "refrain-data"], 2, "invalid store address"),
        (
            &["--store", "postgres://app:hunter2@127.0.0.1:1/app"],
            69,
            "check host and port",
        ),
        (
            &["--store", "postgres://app:hunter2@db/app?schema=Ä"],
            69,
            "lower-case",
        ),
    ] {
        let (code, _, said) = run(args);
        assert_eq!(code, want, "{args:?}: {said}");
        assert!(
            said.contains(words) && !said.contains("hunter2"),
            "{args:?}: {said}"
        );
    }
}

/// `refrain.toml` named the database, and the command still required an address.
#[test]
fn the_database_is_taken_from_the_file() {
    let server = refrain_testkit::servers::PrivatePostgres::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("refrain.toml");
    let file = path.to_str().unwrap();
    let url = server.url();
    let text = format!(
        "store = [\"redis://127.0.0.1:1\", \"{url}\"]\n[policy]\nreceipts = \"{url}\"\n\
         [[worker]]\nname = \"a\"\nqueue = \"q\"\ndeliver = \"http://h/\"\nsource = \"{url}\"\n\
         [[relay]]\noutbox = \"{url}\"\nto = \"{url}\"\n"
    );
    std::fs::write(&path, &text).unwrap();
    for (flag, words) in [
        (None, "created at version"),
        (Some("--receipts"), "table is ready"),
        (Some("--queue"), "table created"),
        (Some("--outbox"), "table is ready"),
    ] {
        let args: Vec<_> = ["--config", file].into_iter().chain(flag).collect();
        let (code, told, said) = run(&args);
        assert!(code == 0 && told.contains(words), "{flag:?}: {told}{said}");
    }
    // The flag has precedence over the file.
    let nowhere = "postgres://app:hunter2@127.0.0.1:1/app";
    for flag in [None, Some("--receipts"), Some("--queue"), Some("--outbox")] {
        let args = ["--config", file, "--store", nowhere]
            .into_iter()
            .chain(flag);
        let (code, _, said) = run(&args.collect::<Vec<_>>());
        assert!(code == 69 && !said.contains("hunter2"), "{flag:?}: {said}");
    }
    let other = text.replacen("outbox = ", "name = \"b\"\noutbox = ", 1)
        + &format!("[[relay]]\noutbox = \"{nowhere}\"\nto = \"{url}\"\n");
    std::fs::write(&path, other).unwrap();
    let (code, _, said) = run(&["--config", file, "--outbox"]);
    assert!(code == 64 && said.contains("several databases"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
    std::fs::write(&path, "").unwrap();
    for (flag, words) in [
        (None, "a file: store has no tables"),
        (Some("--receipts"), "no database for --receipts"),
    ] {
        let args: Vec<_> = ["--config", file].into_iter().chain(flag).collect();
        let (code, _, said) = run(&args);
        assert!(code == 64 && said.contains(words), "{flag:?}: {said}");
    }
}
