//! Broken, malicious and outdated descriptions, as many authors and generators produce them.
//! Each one is read, or rejected with a clear message and its position; none exhausts the memory of the machine.

use std::{fmt::Write as _, fs};

use refrain_openapi::{
    Document, FILE_BYTES_MAX, Flavour, Format, Kind, Map, Node, ReadError, Schema,
};

/// Error message for a text, as a user sees it.
fn error(bytes: &[u8]) -> String {
    Document::parse(bytes, "api.yaml").unwrap_err().to_string()
}

fn check(bytes: &[u8], parts: &[&str]) {
    let told = error(bytes);
    for part in parts {
        assert!(told.contains(part), "{part:?} is not in: {told}");
    }
}

#[test]
fn unreadable_input_is_reported_with_its_position() {
    check(
        b"openapi: 3.1.0\npaths:\n  /caf\xe9: {}\n",
        &["api.yaml:3:7: is not UTF-8", "0xe9", "fix:"],
    );
    check(b"\xff\xfeo\0p\0", &["api.yaml:1:1", "UTF-16"]);
    check(
        b"{\"openapi\": \"3.0.0\",\n \"paths\": }",
        &["api.yaml:2:", "is not valid JSON"],
    );
    check(
        b"openapi: 3.0.0\npaths: [1, 2\ninfo: {",
        &["api.yaml:", "is not valid YAML"],
    );
    check(
        b"openapi: 3.0.0\nopenapi: 3.1.0\n",
        &["api.yaml:2:", "openapi", "remove one of the two"],
    );
    check(
        b"{\"swagger\": \"2.0\", \"paths\": {}, \"paths\": {}}",
        &["duplicate member `paths`"],
    );
    check(b"name: something else\n", &["no member `openapi`"]);
    check(
        b"openapi: 4.2.0\n",
        &["unsupported version `openapi: 4.2.0`"],
    );
    check(b"", &["no member `openapi`"]);
}

#[test]
fn an_anchor_bomb_is_refused_before_it_goes_off() {
    let mut text = String::from("openapi: 3.1.0\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for n in 1..20 {
        let before = vec![format!("*a{}", n - 1); 10].join(", ");
        writeln!(text, "a{n}: &a{n} [{before}]").unwrap();
    }
    check(
        text.as_bytes(),
        &[
            "api.yaml:",
            "is not valid YAML",
            "anchors that expand each other",
        ],
    );
    let deep = format!(
        "openapi: 3.1.0\nx: {}{}\n",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    check(deep.as_bytes(), &["api.yaml:", "is not valid YAML"]);
    let deep = format!(
        "{{\"openapi\": \"3.1.0\", \"x\": {}{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    check(deep.as_bytes(), &["recursion limit"]);
    let many = format!(
        "{{\"openapi\": \"3.1.0\", \"x\": [{}1]}}",
        "1,".repeat(2_000_000)
    );
    check(many.as_bytes(), &["has more than 1500000 values"]);
}

#[test]
fn one_anchor_that_many_places_share_is_fine() {
    let mut text = String::from("openapi: 3.0.3\nx-error: &error {description: bad}\npaths:\n");
    for n in 0..500 {
        write!(
            text,
            "  /p{n}:\n    get:\n      responses: {{'400': *error}}\n"
        )
        .unwrap();
    }
    let document = Document::parse(text.as_bytes(), "api.yaml").unwrap();
    let operations = document.operations();
    assert_eq!(operations.len(), 500);
    assert_eq!(
        operations[499].responses()[0].view().text("description"),
        Some("bad")
    );
}

#[test]
fn ten_megabytes_are_fine_and_much_more_is_refused() {
    let mut text = String::from("openapi: 3.1.0\npaths:\n");
    let prose = "It does what its name says, and says so at length. ".repeat(20);
    while text.len() < 10 << 20 {
        let n = text.len();
        write!(text, "  /p{n}:\n    post:\n      description: {prose}\n      responses: {{'201': {{description: made}}}}\n").unwrap();
    }
    let document = Document::parse(text.as_bytes(), "api.yaml").unwrap();
    assert!(document.operations().len() > 9_000);
    text.push_str(&" ".repeat(FILE_BYTES_MAX));
    check(text.as_bytes(), &["is larger than 16 MiB", "split it"]);
}

#[test]
fn circular_references_terminate() {
    let text = r##"{"openapi": "3.1.0", "paths": {"/a": {"post": {"requestBody": {"content": {"application/json": {
        "schema": {"$ref": "#/components/schemas/Tree"}}}}, "responses": {}}}, "/b": {"$ref": "#/paths/~1b"}},
        "components": {"schemas": {"Tree": {"allOf": [{"$ref": "#/components/schemas/Tree"}], "properties": {
            "name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/components/schemas/Tree"}},
            "nothing": {"$ref": "#/components/schemas/Loop"}}}, "Loop": {"$ref": "#/components/schemas/Loop"}}}}"##;
    let document = Document::parse(text.as_bytes(), "api.json").unwrap();
    let operations = document.operations();
    assert_eq!(operations.len(), 1);
    let schema = operations[0].body().unwrap().schema.unwrap();
    assert_eq!(schema.name(), Some("Tree"));
    assert_eq!(schema.properties().len(), 3);
    let mut names = Vec::new();
    schema.walk(8, 100, |member| names.push(member.path.join("/")));
    assert_eq!(names, ["name", "children", "nothing"]);
}

#[test]
fn swagger_2_reads_like_the_rest() {
    let text = "swagger: '2.0'\nbasePath: /v2/\nconsumes: [application/json]\npaths:\n  /pets/{id}:\n    parameters:\n    - {name: id, in: path, type: integer, required: true}\n    - {name: limit, in: query, type: integer}\n    put:\n      parameters:\n      - {name: limit, in: query, type: string}\n      - {name: body, in: body, required: true, schema: {$ref: '#/definitions/Pet'}}\n      responses: {200: {description: ok, schema: {$ref: '#/definitions/Pet'}}}\n    post:\n      consumes: [application/x-www-form-urlencoded]\n      parameters:\n      - {name: status, in: formData, type: string, required: true}\n      responses: {405: {description: no}}\ndefinitions:\n  Pet: {type: object, required: [name], properties: {name: {type: string}}}\n";
    let document = Document::parse(text.as_bytes(), "api.yaml").unwrap();
    assert_eq!(
        (document.flavour(), document.base_path().as_str()),
        (Flavour::Swagger2, "/v2")
    );
    let operations = document.operations();
    let (put, post) = (&operations[0], &operations[1]);
    let schema = |it: Option<Schema<'_>>| {
        it.unwrap()
            .properties()
            .iter()
            .map(|it| it.0.to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(schema(put.body().unwrap().schema), ["name"]);
    assert_eq!(schema(put.success().unwrap().schema()), ["name"]);
    assert!(put.is_body_required());
    let parameters = put.parameters();
    assert_eq!(
        parameters.iter().map(|it| it.name()).collect::<Vec<_>>(),
        ["limit", "id"]
    );
    assert_eq!(parameters[0].schema().types(), ["string"]);
    assert_eq!(schema(post.body().unwrap().schema), ["status"]);
    assert_eq!(
        post.body().unwrap().content_type,
        "application/x-www-form-urlencoded"
    );
    assert_eq!(post.id(), None);
}

#[test]
fn references_go_across_files_and_not_into_the_network() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    fs::create_dir(folder.path().join("parts")).unwrap();
    write(
        "api.yaml",
        "openapi: 3.0.0\npaths:\n  /a: {$ref: 'parts/a.yaml#/item'}\n  /b:\n    get:\n      responses: {'200': {$ref: 'https://example.com/r.yaml'}, '400': {$ref: 'parts/gone.yaml'}, '404': {$ref: '#/nowhere'}, '409': {$ref: '#anchor'}}\n",
    );
    write(
        "parts/a.yaml",
        "item:\n  post:\n    requestBody: {content: {application/json: {schema: {$ref: '../schemas.json#/Payment'}}}}\n    responses: {}\n",
    );
    write(
        "schemas.json",
        r#"{"Payment": {"properties": {"amount": {"type": "integer"}, "again": {"$ref": "./parts/../schemas.json#/Payment"}}}}"#,
    );
    let document = Document::read(&folder.path().join("api.yaml")).unwrap();
    let operations = document.operations();
    let schema = operations[0].body().unwrap().schema.unwrap();
    assert_eq!(schema.name(), Some("Payment"));
    assert!(
        schema
            .property("again")
            .unwrap()
            .view()
            .is_same(&schema.view())
    );
    let told: Vec<_> = document
        .troubles()
        .iter()
        .map(ReadError::to_string)
        .collect();
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(
        told[0].contains("api.yaml:6:") && told[0].contains("are not fetched"),
        "{told:?}"
    );
    assert!(told[1].contains("gone.yaml: cannot be read"), "{told:?}");
    assert!(
        told[2].contains("`$ref: #/nowhere` refers to nothing"),
        "{told:?}"
    );
}

#[test]
fn webhooks_and_callbacks_are_operations_of_their_kind() {
    let text = "openapi: 3.1.0\nwebhooks:\n  paid: {post: {responses: {}}}\npaths:\n  /subscribe:\n    post:\n      callbacks:\n        done:\n          '{$request.body#/url}': {put: {responses: {}}}\n      responses: {}\n";
    let document = Document::parse(text.as_bytes(), "api.yaml").unwrap();
    let found: Vec<_> = document
        .operations()
        .iter()
        .map(|it| (it.kind(), format!("{} {}", it.method(), it.path())))
        .collect();
    let expected = [
        (Kind::Path, "POST /subscribe"),
        (Kind::Callback, "PUT {$request.body#/url}"),
        (Kind::Webhook, "POST paid"),
    ];
    assert_eq!(found, expected.map(|(kind, name)| (kind, name.to_owned())));
}

#[test]
fn documents_round_trip_in_member_order() {
    let text = "openapi: 3.1.0\nzebra: 1\npaths:\n  /b:\n    get:\n      responses:\n        200:\n          description: \"yes\"\n  /a: {}\nsince: 2024-01-01\n";
    let document = Document::parse(text.as_bytes(), "api.yaml").unwrap();
    let written = document.format().write(document.root()).unwrap();
    let again = Document::parse(written.as_bytes(), "again.yaml").unwrap();
    assert_eq!(again.root(), document.root(), "{written}");
    let order: Vec<_> = again.root().as_map().unwrap().keys().collect();
    assert_eq!(order, ["openapi", "zebra", "paths", "since"]);
}

#[test]
fn texts_that_yaml_could_take_for_something_else_stay_texts() {
    let long = "word ".repeat(60);
    let texts = [
        "yes",
        "No",
        "on",
        "1.0",
        "0x1F",
        "0o7",
        "010",
        "null",
        "~",
        "",
        " before",
        "behind ",
        "a: b",
        "# c",
        "x #y",
        "- x",
        "?",
        ": z",
        "'q'",
        "\"dq\"",
        "2024-01-01",
        "1_000",
        "1e3",
        ".inf",
        ".nan",
        "é",
        "line\n",
        "a\n\nb",
        "\ttab",
        "@at",
        "`tick`",
        "%p",
        "!tag",
        "&a",
        "*b",
        "{x}",
        "[y]",
        "a, b",
        "<<",
        "=",
        "---",
        "...",
        "\\",
        "a\\nb",
        "\u{7f}",
        "\r\n",
        "12:30:45",
        "true",
        "trailing\n\n\n",
        " \n lead",
        &long,
        &format!("  {long}\n{long}  "),
        "a  b   c",
    ];
    for format in [Format::Yaml, Format::Json] {
        for text in texts {
            let node = |text: &str| Node::Text(text.into());
            let mut map = Map::new();
            map.insert("openapi".into(), node("3.1.0"));
            map.insert("text".into(), node(text));
            map.insert(format!("x{text}"), Node::List(vec![node(text), Node::Null]));
            let root = Node::Map(Box::new(map));
            let written = format.write(&root).unwrap();
            let read = Document::parse(written.as_bytes(), "again")
                .unwrap_or_else(|error| panic!("{text:?}: {error}\n{written}"));
            assert_eq!(*read.root(), root, "{text:?}\n{written}");
        }
    }
}
