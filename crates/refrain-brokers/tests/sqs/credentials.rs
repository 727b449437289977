//! The default AWS credential chain; each case runs in its own process, because the chain reads the environment.

use std::{fs, io::Write as _, net::TcpListener, process::Command};

use refrain::consume::{Message, Publisher as _, Source};
use refrain_brokers::sqs::Sqs;

use crate::{ACK_WAIT, Server};

const ENDPOINT: &str = "REFRAIN_TEST_SQS_ENDPOINT";

/// The child process of the other test: a consumer whose address has no credentials.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the other test, in a process of its own"]
async fn child() {
    let endpoint = std::env::var(ENDPOINT).unwrap();
    let url = format!("sqs://eu-central-1?endpoint={endpoint}");
    let mut source = Source::new(url, "orders", "c");
    source.ack_wait = ACK_WAIT;
    let broker = Sqs::connect(&source).await.unwrap();
    broker.publish("orders", &Message::new("x")).await.unwrap();
}

fn run(server: &Server, environment: &[(&str, &str)]) -> (bool, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "credentials::child", "--ignored", "--nocapture"]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        command.env_remove(name);
    }
    let output = command
        .env("HOME", "/nonexistent")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env(ENDPOINT, server.0.endpoint())
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

/// Response of a credentials endpoint for containers, as on ECS and EKS.
const AGENT: &str = r#"{"AccessKeyId":"key","SecretAccessKey":"secret","Token":"t","Expiration":"2099-01-01T00:00:00Z"}"#;

/// Response of GetRoleCredentials of AWS SSO.
const ROLE: &str = r#"{"roleCredentials":{"accessKeyId":"key","secretAccessKey":"secret","sessionToken":"t","expiration":4070908800000}}"#;

/// An HTTP server that answers every request with this body.
fn answering(body: &'static str) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let mut head = [0; 4096];
            let _ = std::io::Read::read(&mut stream, &mut head);
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
        }
    });
    format!("http://{address}")
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_found_as_the_tools_of_aws_find_them() {
    let server = Server::start();
    server.make("orders").await;
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let keys = write(
        "credentials",
        "[billing]\naws_access_key_id = key\naws_secret_access_key = secret\n",
    );
    let process = write(
        "config",
        r#"[profile billing]
credential_process = echo '{"Version":1,"AccessKeyId":"key","SecretAccessKey":"secret"}'
"#,
    );
    let (token, sts) = (write("token", "x"), server.0.endpoint());
    let (agent, portal) = (answering(AGENT), answering(ROLE));
    let session = write(
        "sso",
        "[profile billing]\nsso_session = admin\nsso_account_id = 123456789012\nsso_role_name = billing\n\
         [sso-session admin]\nsso_region = eu-central-1\nsso_start_url = https://d-1.awsapps.com/start\n",
    );
    // `aws sso login` writes the token to a file whose name is the SHA-1 digest of the session's name.
    fs::create_dir_all(folder.path().join(".aws/sso/cache")).unwrap();
    write(
        ".aws/sso/cache/d033e22ae348aeb5660fc2140aec35850c4da997.json",
        r#"{"accessToken":"x","expiresAt":"2099-01-01T00:00:00Z","region":"eu-central-1","startUrl":"https://d-1.awsapps.com/start"}"#,
    );
    let home = folder.path().display().to_string();
    let cases: [(&str, Vec<(&str, &str)>); 6] = [
        (
            "environment",
            vec![
                ("AWS_ACCESS_KEY_ID", "key"),
                ("AWS_SECRET_ACCESS_KEY", "secret"),
            ],
        ),
        (
            "profile",
            vec![
                ("AWS_PROFILE", "billing"),
                ("AWS_SHARED_CREDENTIALS_FILE", &keys),
            ],
        ),
        (
            "process",
            vec![("AWS_PROFILE", "billing"), ("AWS_CONFIG_FILE", &process)],
        ),
        (
            "container",
            vec![("AWS_CONTAINER_CREDENTIALS_FULL_URI", &agent)],
        ),
        (
            "SSO",
            vec![
                ("HOME", &home),
                ("AWS_PROFILE", "billing"),
                ("AWS_CONFIG_FILE", &session),
                ("AWS_ENDPOINT_URL_SSO", &portal),
            ],
        ),
        (
            "web identity",
            vec![
                ("AWS_WEB_IDENTITY_TOKEN_FILE", &token),
                ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/billing"),
                ("AWS_ENDPOINT_URL_STS", &sts),
            ],
        ),
    ];
    for (name, environment) in cases {
        // Again if the server, which loads a service at its first request, took longer than the SDK waits.
        let mut said = String::new();
        let is_fine = (0..3).any(|_| {
            let (is_fine, output) = run(&server, &environment);
            said = output;
            is_fine
        });
        assert!(is_fine, "{name}: {said}");
    }
    let (is_fine, said) = run(&server, &[]);
    assert!(!is_fine, "{said}");
    assert!(said.contains("credentials"), "{said}");
}
