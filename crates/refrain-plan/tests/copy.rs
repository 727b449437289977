//! A description may span several files: its annotated copy in another folder must be complete.

use refrain_openapi::Document;
use refrain_plan::{Options, plan, render};

#[test]
fn paths_of_other_files_are_annotated_in_the_copy() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write(
        "api.yaml",
        "openapi: 3.1.0\npaths:\n  /orders: {$ref: 'paths/orders.yaml#/list', summary: Orders}\n  /again: {$ref: '#/components/pathItems/Again'}\n  /returns:\n    post: {$ref: 'paths/orders.yaml#/list/post'}\ncomponents:\n  schemas: {Order: {type: object, properties: {id: {type: string}}}}\n  pathItems: {Again: {post: {responses: {'201': {description: made}}}}}\n",
    );
    write(
        "paths/orders.yaml",
        "list:\n  post:\n    requestBody: {content: {application/json: {schema: {$ref: '../schemas/new.yaml#/New'}, example: {$ref: 'left'}}}}\n    responses:\n      '201': {description: made, content: {application/json: {schema: {$ref: '../api.yaml#/components/schemas/Order'}}}}\n      '404': {$ref: '#/lost'}\nlost: {description: lost}\n",
    );
    write("schemas/new.yaml", "New: {type: object}\n");
    let document = Document::read(&folder.path().join("api.yaml")).unwrap();
    assert_eq!(document.troubles(), []);
    let planned = plan(&document, &Options::default());
    let policy = render::policy(&planned, None, None).unwrap().text;
    let settings: refrain::policy::Settings =
        refrain::policy::File::parse(&policy, "refrain.toml").unwrap();
    let copy = render::annotated(&planned, &document, &settings.policy, "../").unwrap();
    write("out/api.refrain.yaml", &copy);
    let copy = Document::read(&folder.path().join("out/api.refrain.yaml")).unwrap();
    assert_eq!(copy.troubles(), [], "{:?}", copy.root());
    for path in ["/paths/~1orders", "/paths/~1again", "/paths/~1returns"] {
        let class = format!("{path}/post/x-refrain/class");
        let class = copy.root().pointer(&class).and_then(|it| it.as_str());
        assert_eq!(class, Some("create"), "{path}");
    }
    let text = |pointer: &str| copy.root().pointer(pointer).and_then(|it| it.as_str());
    let post = "/paths/~1orders/post";
    let body = "requestBody/content/application~1json";
    let cases = [
        ("/paths/~1orders/summary".into(), "Orders"),
        (
            format!("{post}/{body}/schema/$ref"),
            "../schemas/new.yaml#/New",
        ),
        (format!("{post}/{body}/example/$ref"), "left"),
        (
            format!("{post}/responses/404/$ref"),
            "../paths/orders.yaml#/lost",
        ),
        (
            format!("{post}/responses/201/content/application~1json/schema/$ref"),
            "#/components/schemas/Order",
        ),
    ];
    for (pointer, wanted) in cases {
        assert_eq!(text(&pointer), Some(wanted), "{pointer}");
    }
    let again = plan(&copy, &Options::default());
    assert_eq!(again.operations.len(), planned.operations.len());
}
