//! Operations: requests that clients send to the API, and webhooks and callbacks that the API sends.

use crate::{Document, Flavour, Map, Node, Schema, View, files::Files};

/// Methods that a path item can have.
const METHODS: [&str; 9] = [
    "get", "put", "post", "delete", "options", "head", "patch", "trace", "query",
];
/// Maximum nesting depth of callbacks.
const CALLBACK_DEPTH_MAX: usize = 4;

/// Sender and receiver of an operation's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A client sends it to a path of the API.
    Path,
    /// The API sends it to its subscribers: top-level `webhooks`.
    Webhook,
    /// The API sends it to an address from an earlier request.
    Callback,
}

/// One method of one path.
#[derive(Debug, Clone)]
pub struct Operation<'d> {
    kind: Kind,
    method: String,
    path: &'d str,
    item: View<'d>,
    view: View<'d>,
}

/// A parameter of an operation or of its path item; the operation's own takes precedence.
#[derive(Debug, Clone, Copy)]
pub struct Parameter<'d> {
    view: View<'d>,
}

/// A request or response body in one content type.
#[derive(Debug, Clone, Copy)]
pub struct Body<'d> {
    /// Content type as the document writes it, such as `application/json`.
    pub content_type: &'d str,
    /// Schema of the body, if the document has one.
    pub schema: Option<Schema<'d>>,
    /// View of the media type, which has the examples.
    pub view: View<'d>,
}

/// Response for one status.
#[derive(Debug, Clone)]
pub struct Response<'d> {
    /// `201`, `4XX` or `default`.
    pub status: &'d str,
    /// Bodies, by content type.
    pub bodies: Vec<Body<'d>>,
    view: View<'d>,
}

impl<'d> Operation<'d> {
    /// Sender and receiver of the request.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// HTTP method, in upper case.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The path as written; for a webhook its name, for a callback its expression.
    #[must_use]
    pub fn path(&self) -> &'d str {
        self.path
    }

    /// View of the operation.
    #[must_use]
    pub fn view(&self) -> View<'d> {
        self.view
    }

    /// `operationId`.
    #[must_use]
    pub fn id(&self) -> Option<&'d str> {
        self.view.text("operationId")
    }

    /// Summary of the operation, or of its path.
    #[must_use]
    pub fn summary(&self) -> Option<&'d str> {
        self.view.text("summary").or(self.item.text("summary"))
    }

    /// Description of the operation, or of its path.
    #[must_use]
    pub fn description(&self) -> Option<&'d str> {
        self.view
            .text("description")
            .or(self.item.text("description"))
    }

    /// Tags of the operation.
    #[must_use]
    pub fn tags(&self) -> Vec<&'d str> {
        let tags = self.view.node().get("tags").map_or(&[][..], Node::items);
        tags.iter().filter_map(Node::as_str).collect()
    }

    /// Parameters of the operation and of its path item, without body and form parameters.
    /// The operation's own take precedence.
    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter<'d>> {
        let mut found: Vec<Parameter<'d>> = Vec::new();
        for view in [self.view, self.item] {
            for view in view.get("parameters").into_iter().flat_map(|it| it.items()) {
                let parameter = Parameter { view };
                let is_of_body = matches!(parameter.place(), "body" | "formData");
                let is_known = found.iter().any(|it| it.is_like(&parameter));
                if !is_of_body && !is_known && !parameter.name().is_empty() {
                    found.push(parameter);
                }
            }
        }
        found
    }

    /// Request bodies, by content type.
    #[must_use]
    pub fn bodies(&self) -> Vec<Body<'d>> {
        match self.view.document().flavour() {
            Flavour::Swagger2 => self.swagger_body().into_iter().collect(),
            _ => self
                .view
                .get("requestBody")
                .map(content)
                .unwrap_or_default(),
        }
    }

    /// Preferred request body: the first JSON one, or else the first.
    #[must_use]
    pub fn body(&self) -> Option<Body<'d>> {
        let bodies = self.bodies();
        let json = bodies.iter().find(|body| body.is_json());
        json.or(bodies.first()).copied()
    }

    /// Whether the request body is required.
    #[must_use]
    pub fn is_body_required(&self) -> bool {
        match self.view.document().flavour() {
            Flavour::Swagger2 => self
                .swagger_parameter("body")
                .is_some_and(|it| it.is("required")),
            _ => self
                .view
                .get("requestBody")
                .is_some_and(|it| it.is("required")),
        }
    }

    /// Responses, in document order.
    #[must_use]
    pub fn responses(&self) -> Vec<Response<'d>> {
        let responses = self
            .view
            .get("responses")
            .into_iter()
            .flat_map(|it| it.members());
        let responses = responses.filter(|(status, _)| !status.starts_with("x-"));
        responses
            .map(|(status, view)| self.response(status, view))
            .collect()
    }

    /// First response with a 2xx status.
    #[must_use]
    pub fn success(&self) -> Option<Response<'d>> {
        let responses = self.responses();
        let fits = |it: &&Response<'d>| it.status.starts_with('2');
        responses.iter().find(fits).cloned()
    }

    /// Alternative security requirements, each with the names of the schemes that it needs; empty if there are none.
    #[must_use]
    pub fn security(&self) -> Vec<Vec<&'d str>> {
        let own = self.view.get("security");
        let security = own.or_else(|| self.view.document().view().get("security"));
        let alternatives = security.into_iter().flat_map(|it| it.items());
        alternatives
            .map(|it| it.members().map(|(name, _)| name).collect())
            .collect()
    }

    /// Members whose names start with `x-`: first those of the operation, then those of its path.
    pub fn extensions(&self) -> impl Iterator<Item = (&'d str, &'d Node)> + use<'d> {
        self.view.extensions().chain(self.item.extensions())
    }

    /// Whether the operation is deprecated.
    #[must_use]
    pub fn is_deprecated(&self) -> bool {
        self.view.is("deprecated")
    }

    fn swagger_parameter(&self, place: &str) -> Option<View<'d>> {
        let views = [self.view, self.item].into_iter();
        let mut all =
            views.flat_map(|view| view.get("parameters").into_iter().flat_map(|it| it.items()));
        all.find(|it| it.text("in") == Some(place))
    }

    fn swagger_body(&self) -> Option<Body<'d>> {
        let document = self.view.document();
        if let Some(view) = self.swagger_parameter("body") {
            let content_type = self.swagger_type("consumes", "application/json");
            let schema = view.get("schema").map(Schema::new);
            return Some(Body {
                content_type,
                schema,
                view,
            });
        }
        let form = document.forms.get(&form_name(&self.method, self.path))?;
        let view = View::new(document, 0, form);
        let content_type = self.swagger_type("consumes", "application/x-www-form-urlencoded");
        let schema = Some(Schema::new(view));
        Some(Body {
            content_type,
            schema,
            view,
        })
    }

    fn swagger_type(&self, member: &str, otherwise: &'static str) -> &'d str {
        let list = self
            .view
            .get(member)
            .or_else(|| self.view.document().view().get(member));
        let first = list.and_then(|it| it.node().items().first());
        first.and_then(Node::as_str).unwrap_or(otherwise)
    }

    fn response(&self, status: &'d str, view: View<'d>) -> Response<'d> {
        let bodies = match self.view.document().flavour() {
            Flavour::Swagger2 => view
                .get("schema")
                .map(|schema| Body {
                    content_type: self.swagger_type("produces", "application/json"),
                    schema: Some(Schema::new(schema)),
                    view,
                })
                .into_iter()
                .collect(),
            _ => content(view),
        };
        Response {
            status,
            bodies,
            view,
        }
    }
}

impl<'d> Parameter<'d> {
    /// Name of the parameter, in the document's spelling.
    #[must_use]
    pub fn name(&self) -> &'d str {
        self.view.text("name").unwrap_or_default()
    }

    /// `path`, `query`, `header` or `cookie`.
    #[must_use]
    pub fn place(&self) -> &'d str {
        self.view.text("in").unwrap_or_default()
    }

    /// Whether the parameter is required.
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.view.is("required") || self.place() == "path"
    }

    /// Schema of the value; in Swagger 2 the parameter itself is the schema.
    #[must_use]
    pub fn schema(&self) -> Schema<'d> {
        let content = || self.view.get("content")?.members().next()?.1.get("schema");
        Schema::new(
            self.view
                .get("schema")
                .or_else(content)
                .unwrap_or(self.view),
        )
    }

    /// View of the parameter.
    #[must_use]
    pub fn view(&self) -> View<'d> {
        self.view
    }

    fn is_like(&self, other: &Self) -> bool {
        let same_name = match self.place() {
            "header" => self.name().eq_ignore_ascii_case(other.name()),
            _ => self.name() == other.name(),
        };
        self.place() == other.place() && same_name
    }
}

impl Body<'_> {
    /// Whether the content type is JSON.
    #[must_use]
    pub fn is_json(&self) -> bool {
        let plain = self
            .content_type
            .split(';')
            .next()
            .unwrap_or_default()
            .trim();
        plain.ends_with("/json") || plain.ends_with("+json") || plain == "*/*"
    }
}

impl<'d> Response<'d> {
    /// Schema of the JSON body, or else of the first body.
    #[must_use]
    pub fn schema(&self) -> Option<Schema<'d>> {
        let json = self.bodies.iter().find(|body| body.is_json());
        json.or(self.bodies.first())?.schema
    }

    /// Headers of the response, by name.
    pub fn headers(&self) -> impl Iterator<Item = (&'d str, View<'d>)> + use<'d> {
        self.view
            .get("headers")
            .into_iter()
            .flat_map(|it| it.members())
    }

    /// View of the response.
    #[must_use]
    pub fn view(&self) -> View<'d> {
        self.view
    }
}

fn content(view: View<'_>) -> Vec<Body<'_>> {
    let content = view.get("content").into_iter().flat_map(|it| it.members());
    content
        .map(|(content_type, view)| Body {
            content_type,
            schema: view.get("schema").map(Schema::new),
            view,
        })
        .collect()
}

pub(crate) fn all(document: &Document) -> Vec<Operation<'_>> {
    let mut found = Vec::new();
    for (member, kind) in [("paths", Kind::Path), ("webhooks", Kind::Webhook)] {
        let items = document
            .view()
            .get(member)
            .into_iter()
            .flat_map(|it| it.members());
        for (path, item) in items {
            let is_path = kind == Kind::Webhook || path.starts_with('/');
            if is_path {
                of_item(kind, path, item, 0, &mut found);
            }
        }
    }
    found
}

fn of_item<'d>(
    kind: Kind,
    path: &'d str,
    item: View<'d>,
    depth: usize,
    found: &mut Vec<Operation<'d>>,
) {
    for (method, view) in item.members() {
        if !METHODS.contains(&method) || view.node().as_map().is_none() {
            continue;
        }
        let method = method.to_ascii_uppercase();
        found.push(Operation {
            kind,
            method,
            path,
            item,
            view,
        });
        if depth >= CALLBACK_DEPTH_MAX {
            continue;
        }
        let callbacks = view
            .get("callbacks")
            .into_iter()
            .flat_map(|it| it.members());
        for (expression, item) in callbacks.flat_map(|(_, callback)| callback.members()) {
            of_item(Kind::Callback, expression, item, depth + 1, found);
        }
    }
}

fn form_name(method: &str, path: &str) -> String {
    format!("{method} {path}")
}

/// Converts the `formData` parameters of Swagger 2 operations to object schemas.
pub(crate) fn forms(files: &Files) -> Map {
    let root = &files.list[0].root;
    let paths = root.get("paths").and_then(Node::as_map);
    let mut forms = Map::new();
    for (path, item) in paths.into_iter().flatten() {
        for (method, operation) in item.as_map().into_iter().flatten() {
            let lists = [operation.get("parameters"), item.get("parameters")];
            let parameters = lists.into_iter().flatten().flat_map(Node::items);
            let followed =
                parameters.filter_map(|it| match it.get("$ref").and_then(Node::as_str) {
                    Some(reference) => files.target(0, reference).map(|(_, node)| node),
                    None => Some(it),
                });
            let fields =
                followed.filter(|it| it.get("in").and_then(Node::as_str) == Some("formData"));
            if let Some(form) = form(fields) {
                forms.insert(form_name(&method.to_ascii_uppercase(), path), form);
            }
        }
    }
    forms
}

fn form<'n>(fields: impl Iterator<Item = &'n Node>) -> Option<Node> {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for field in fields {
        let name = field.get("name").and_then(Node::as_str)?;
        if field.get("required").and_then(Node::as_bool) == Some(true) {
            required.push(Node::from(name));
        }
        let mut schema = field.clone();
        if let Some(map) = schema.as_map_mut() {
            // A parameter's `required` is a boolean, while a schema's is a list of names.
            map.shift_remove("required");
        }
        properties.insert(name.into(), schema);
    }
    if properties.is_empty() {
        return None;
    }
    let members = [
        ("type", Node::from("object")),
        ("properties", Node::Map(Box::new(properties))),
        ("required", Node::List(required)),
    ];
    let members = members
        .into_iter()
        .map(|(name, node)| (name.to_owned(), node));
    Some(Node::Map(Box::new(members.collect())))
}
