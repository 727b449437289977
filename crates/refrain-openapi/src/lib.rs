//! Reads API descriptions: OpenAPI 3.0 and 3.1, Swagger 2, and AsyncAPI 2 and 3, as YAML or JSON.
//!
//! A [`Document`] keeps all members as written and in order; views interpret them on demand.
//! The crate never accesses the network, and limits the size of everything that it reads.
//! It does not validate: unknown members are kept and ignored.
//!
//! ```
//! use refrain_openapi::Document;
//! let text = r#"{"openapi": "3.1.0", "paths": {"/pets/{id}": {
//!     "parameters": [{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}],
//!     "delete": {"responses": {"204": {"description": "gone"}}}}}}"#;
//! let document = Document::parse(text.as_bytes(), "pets.json")?;
//! let operations = document.operations();
//! assert_eq!(operations[0].method(), "DELETE");
//! assert_eq!(operations[0].parameters()[0].name(), "id");
//! # Ok::<(), refrain_openapi::ReadError>(())
//! ```

mod error;
pub use error::{ReadError, SourceLocation};

mod node;
pub use node::{Map, Node};

mod parse;
pub use parse::{DEPTH_MAX, FILE_BYTES_MAX, Format, NODES_MAX};

mod files;
pub use files::{FILES_BYTES_MAX, FILES_MAX};

mod document;
pub use document::{Document, Flavour};

mod view;
pub use view::View;

mod schema;
pub use schema::{Member, Schema};

mod operation;
pub use operation::{Body, Kind, Operation, Parameter, Response};

pub mod sample;

mod message;
pub use message::{Direction, Message};
