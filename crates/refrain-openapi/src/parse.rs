//! Parses text to a node, with limits and error positions.

use std::cell::Cell;

use serde::de::DeserializeSeed as _;

use crate::{
    error::{ReadError, SourceLocation},
    node::{Node, Seed},
};

/// Maximum size of one file, in bytes.
pub const FILE_BYTES_MAX: usize = 16 << 20;
/// Maximum number of values in one file; YAML aliases count on every use.
pub const NODES_MAX: usize = 1_500_000;
/// Maximum nesting depth of values in YAML; JSON has the limit of `serde_json`.
pub const DEPTH_MAX: usize = 120;

/// Format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// JSON.
    Json,
    /// YAML 1.2.
    Yaml,
}

impl Format {
    /// Serializes a node in this format.
    ///
    /// # Errors
    /// When the format cannot represent a value; nodes that were read from a file always succeed.
    pub fn write(self, node: &Node) -> Result<String, String> {
        match self {
            Self::Json => serde_json::to_string_pretty(node)
                .map(|text| text + "\n")
                .map_err(|error| error.to_string()),
            Self::Yaml => serde_saphyr::to_string(node).map_err(|error| error.to_string()),
        }
    }
}

/// Parses the content of a file; `name` is used in messages.
pub(crate) fn parse(bytes: &[u8], name: &str) -> Result<(Node, Format), ReadError> {
    if bytes.len() > FILE_BYTES_MAX {
        return Err(too_large(name));
    }
    let text = utf8(bytes, name)?;
    let format = match text.trim_start().starts_with('{') {
        true => Format::Json,
        false => Format::Yaml,
    };
    let node = match format {
        Format::Json => json(text, name)?,
        Format::Yaml => yaml(text, name)?,
    };
    Ok((node, format))
}

pub(crate) fn too_large(name: &str) -> ReadError {
    let limit = FILE_BYTES_MAX >> 20;
    ReadError::new(
        SourceLocation::whole(name),
        format!("is larger than {limit} MiB"),
        "split it into files that refer to each other with $ref, or remove examples",
    )
}

fn utf8<'b>(bytes: &'b [u8], name: &str) -> Result<&'b str, ReadError> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        let message = match bytes {
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "is UTF-16, not UTF-8".into(),
            _ => format!("is not UTF-8: invalid byte {:#04x}", bytes[at]),
        };
        let help = "save it as UTF-8, or convert it: iconv -f ISO-8859-1 -t UTF-8";
        ReadError::new(SourceLocation::of(name, bytes, at), message, help)
    })
}

fn json(text: &str, name: &str) -> Result<Node, ReadError> {
    let left = Cell::new(NODES_MAX);
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = Seed { left: &left }.deserialize(&mut reader);
    let read = read.and_then(|node| reader.end().map(|()| node));
    read.map_err(|error| {
        let mut place = SourceLocation::whole(name);
        place.at = (error.line() > 0).then_some((error.line(), error.column().max(1)));
        let message = error.to_string();
        // Remove the position from the message, because `SourceLocation` already has it.
        let message = message.split(" at line ").next().unwrap_or_default();
        ReadError::new(
            place,
            format!("is not valid JSON: {message}"),
            help(message),
        )
    })
}

fn yaml(text: &str, name: &str) -> Result<Node, ReadError> {
    let left = Cell::new(NODES_MAX);
    let read = serde_saphyr::with_deserializer_from_str_with_options(text, options(), |reader| {
        Seed { left: &left }.deserialize(reader)
    });
    read.map_err(|error| {
        let mut place = SourceLocation::whole(name);
        let at = error.location();
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        place.at = at.map(|at| (number(at.line()), number(at.column())));
        let message = error.without_snippet().to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        let message = message.lines().next().unwrap_or_default();
        ReadError::new(
            place,
            format!("is not valid YAML: {message}"),
            help(message),
        )
    })
}

fn help(message: &str) -> String {
    let is_about = |word: &str| message.contains(word);
    let help = if is_about("more than") || is_about("alias") || is_about("budget") {
        "the document is too large for an API description; look for anchors that expand each other, or split the file"
    } else if is_about("twice") || is_about("duplicate") {
        "remove one of the two"
    } else {
        "correct the syntax there; an editor with support for the format shows it"
    };
    help.into()
}

fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        // The seed limits the number of values; this budget limits the memory of the parser itself.
        budget: serde_saphyr::budget! {
            max_events: 4 * NODES_MAX,
            max_nodes: NODES_MAX,
            max_depth: DEPTH_MAX,
            max_documents: 2,
            // Descriptions often use one anchor in many places.
            enforce_alias_anchor_ratio: false,
        },
        with_snippet: false,
    }
}
