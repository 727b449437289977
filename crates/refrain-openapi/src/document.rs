//! An API description: its format version, and its operations or messages.

use std::path::Path;

use crate::{
    Format, Map, Message, Node, Operation, ReadError, View, error::SourceLocation, files::Files,
    message, operation,
};

/// Specification and version that a document follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// Swagger 2.
    Swagger2,
    /// OpenAPI 3.0.
    OpenApi30,
    /// OpenAPI 3.1 or a later 3.x.
    OpenApi31,
    /// AsyncAPI 2.
    AsyncApi2,
    /// AsyncAPI 3.
    AsyncApi3,
}

/// An API description, with all the files that it consists of.
#[derive(Debug)]
pub struct Document {
    pub(crate) files: Files,
    flavour: Flavour,
    /// Request body schemas for the `formData` parameters of Swagger 2, by method and path.
    pub(crate) forms: Map,
}

impl Document {
    /// Reads a file, and the files that it refers to.
    ///
    /// # Errors
    /// When the file cannot be read, is too large, or is not an API description; with position and fix.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        Self::of(Files::read(path)?, &path.display().to_string())
    }

    /// Parses a text; `name` is used in messages. References to other files are not followed.
    ///
    /// # Errors
    /// As for [`Document::read`].
    pub fn parse(bytes: &[u8], name: &str) -> Result<Self, ReadError> {
        Self::of(Files::parse(bytes, name)?, name)
    }

    fn of(files: Files, name: &str) -> Result<Self, ReadError> {
        let flavour = flavour(&files.list[0].root, name)?;
        let forms = match flavour {
            Flavour::Swagger2 => operation::forms(&files),
            _ => Map::new(),
        };
        Ok(Self {
            files,
            flavour,
            forms,
        })
    }

    /// Specification and version of the document.
    #[must_use]
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// Format of the first file: JSON or YAML.
    #[must_use]
    pub fn format(&self) -> Format {
        self.files.list[0].format
    }

    /// Name of the first file, without its folder.
    #[must_use]
    pub fn name(&self) -> &str {
        self.files.name()
    }

    /// Root node of the first file.
    #[must_use]
    pub fn root(&self) -> &Node {
        &self.files.list[0].root
    }

    /// View of the root node of the first file.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View::new(self, 0, self.root())
    }

    /// Problems that do not prevent reading, such as references without a target.
    #[must_use]
    pub fn troubles(&self) -> &[ReadError] {
        &self.files.troubles
    }

    /// Title of the API.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.root().pointer("/info/title")?.as_str()
    }

    /// Base path of all operations, without a trailing slash: from the first server, or from `basePath`.
    #[must_use]
    pub fn base_path(&self) -> String {
        let base = match self.flavour {
            Flavour::Swagger2 => self
                .root()
                .get("basePath")
                .and_then(Node::as_str)
                .map(String::from),
            _ => self.server_path(),
        };
        let base = base.unwrap_or_default();
        let base = base.trim_end_matches('/');
        match base.starts_with('/') || base.is_empty() {
            true => base.into(),
            false => format!("/{base}"),
        }
    }

    fn server_path(&self) -> Option<String> {
        let view = self.view();
        let server = view.get("servers")?.items().next()?;
        let mut url = server.text("url")?.to_owned();
        for (name, variable) in server
            .get("variables")
            .into_iter()
            .flat_map(|it| it.members())
        {
            let value = variable.text("default").unwrap_or_default();
            url = url.replace(&format!("{{{name}}}"), value);
        }
        let path = match url.split_once("://") {
            Some((_, rest)) => rest.find('/').map_or("", |at| &rest[at..]),
            None => &url,
        };
        Some(path.split(['?', '#']).next()?.to_owned())
    }

    /// All operations in document order; callbacks follow the operation that declares them.
    #[must_use]
    pub fn operations(&self) -> Vec<Operation<'_>> {
        operation::all(self)
    }

    /// All messages of an AsyncAPI document, in document order.
    #[must_use]
    pub fn messages(&self) -> Vec<Message<'_>> {
        message::all(self)
    }

    /// Security scheme with this name.
    #[must_use]
    pub fn security_scheme(&self, name: &str) -> Option<View<'_>> {
        let view = self.view();
        let schemes = match self.flavour {
            Flavour::Swagger2 => view.get("securityDefinitions"),
            _ => view.get("components")?.get("securitySchemes"),
        };
        schemes?.get(name)
    }

    /// Whether the document is AsyncAPI: it describes messages, not requests.
    #[must_use]
    pub fn is_async(&self) -> bool {
        matches!(self.flavour, Flavour::AsyncApi2 | Flavour::AsyncApi3)
    }
}

fn flavour(root: &Node, name: &str) -> Result<Flavour, ReadError> {
    let version = |member: &str| {
        let text = match root.get(member)? {
            Node::Text(text) => text.clone(),
            Node::Number(number) => number.to_string(),
            _ => return None,
        };
        Some((member.to_owned(), text))
    };
    let found = ["openapi", "swagger", "asyncapi"]
        .into_iter()
        .find_map(version);
    let bad =
        |message: String, help: &str| ReadError::new(SourceLocation::whole(name), message, help);
    let Some((member, version)) = found else {
        let message =
            "is not an API description: it has no member `openapi`, `swagger` or `asyncapi`";
        let help =
            "pass the root file of the description, which starts with a line like `openapi: 3.1.0`";
        return Err(bad(message.into(), help));
    };
    let has = |start: &str| version.starts_with(start);
    match member.as_str() {
        "openapi" if has("3.0") => Ok(Flavour::OpenApi30),
        "openapi" if has("3.") || version == "3" => Ok(Flavour::OpenApi31),
        "swagger" if has("2") => Ok(Flavour::Swagger2),
        "asyncapi" if has("2") => Ok(Flavour::AsyncApi2),
        "asyncapi" if has("3") => Ok(Flavour::AsyncApi3),
        _ => Err(bad(
            format!("unsupported version `{member}: {version}`"),
            "convert it to OpenAPI 3.0 or 3.1, Swagger 2.0, or AsyncAPI 2 or 3",
        )),
    }
}
