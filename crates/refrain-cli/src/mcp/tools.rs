//! The tools: each runs a command line of this same program, so that both give the same results.

use std::{
    env,
    process::{Command, Stdio},
};

use rmcp::model;
use serde_json::{Map, Value, json};

/// The most bytes of a result.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A tool: its name, its description, and its command line.
pub(super) struct Tool {
    pub(super) name: &'static str,
    description: &'static str,
    /// The first words of the command line.
    command: &'static [&'static str],
    arguments: &'static [Argument],
    /// Whether exit code 1 is a result and not an error.
    finds: bool,
    /// Whether the command connects to a proxy, and takes `--admin`.
    asks: bool,
}

/// One argument of a tool.
struct Argument {
    name: &'static str,
    description: &'static str,
    kind: Kind,
}

/// How an argument is passed on the command line.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Required and positional.
    Needed,
    /// Optional and positional.
    Alone,
    /// The value of this flag.
    Flag(&'static str),
    /// A list; each element is a value of this flag.
    Flags(&'static str),
}

const FILE: Argument = Argument {
    name: "file",
    description: "Path of the refrain.toml",
    kind: Kind::Needed,
};

pub(super) const TOOLS: &[Tool] = &[
    Tool {
        name: "check",
        description: "Check a refrain.toml as the proxy reads it: every resolved setting of every operation, or each error with its location.",
        command: &["check", "--json"],
        arguments: &[FILE],
        finds: false,
        asks: false,
    },
    #[cfg(feature = "tools")]
    Tool {
        name: "review",
        description: "Review a refrain.toml: what is done, what is open, and how to fix it.",
        command: &["check", "--report=json"],
        arguments: &[
            FILE,
            Argument {
                name: "verify_reports",
                description: "Paths of reports of refrain verify --json",
                kind: Kind::Flags("--verify-report"),
            },
            Argument {
                name: "openapi",
                description: "Path of the OpenAPI description of the API",
                kind: Kind::Flag("--openapi"),
            },
        ],
        finds: true,
        asks: false,
    },
    #[cfg(feature = "tools")]
    Tool {
        name: "plan",
        description: "Classify every operation of an API description, with evidence and confidence, and list where the files of an earlier plan differ from it. Writes nothing.",
        command: &["plan", "--json", "--check"],
        arguments: &[
            Argument {
                name: "description",
                description: "Path of the OpenAPI, Swagger or AsyncAPI document",
                kind: Kind::Needed,
            },
            Argument {
                name: "out",
                description: "Folder with the files of an earlier plan; pass another folder if its refrain.toml was not written by refrain plan",
                kind: Kind::Flag("--out"),
            },
        ],
        finds: true,
        asks: false,
    },
    #[cfg(feature = "lint")]
    Tool {
        name: "lint",
        description: "Find code that may execute an effect twice, or lose it, on a retry; in Python, JavaScript, TypeScript, Go, Java, Rust, Ruby and PHP.",
        command: &["lint", "--json"],
        arguments: &[Argument {
            name: "path",
            description: "File or folder to lint",
            kind: Kind::Needed,
        }],
        finds: true,
        asks: false,
    },
    Tool {
        name: "explain",
        description: "Explain a Refrain problem code such as outcome-unknown: what happened, and what the client and the operator should do. Without a code, list all codes.",
        command: &["explain", "--json"],
        arguments: &[Argument {
            name: "code",
            description: "Problem code",
            kind: Kind::Alone,
        }],
        finds: false,
        asks: false,
    },
    Tool {
        name: "list_records",
        description: "List up to 100 records of the running proxy: id, state and remaining times.",
        command: &["records", "list", "--json"],
        arguments: &[
            Argument {
                name: "state",
                description: "Only records in this state: in-flight, completed, indeterminate (unknown outcome) or tombstone",
                kind: Kind::Flag("--state"),
            },
            Argument {
                name: "after",
                description: "Only records after this id",
                kind: Kind::Flag("--after"),
            },
        ],
        finds: false,
        asks: true,
    },
    Tool {
        name: "show_record",
        description: "Show one record of the running proxy with its outcome, by its id, or by the request that it belongs to.",
        command: &["records", "show", "--json"],
        arguments: &[
            Argument {
                name: "id",
                description: "Record id",
                kind: Kind::Alone,
            },
            Argument {
                name: "request",
                description: "Instead of the id: method and path of the request, such as POST /v1/payments",
                kind: Kind::Flag("--request"),
            },
            Argument {
                name: "key",
                description: "Key of the request",
                kind: Kind::Flag("--key"),
            },
            Argument {
                name: "headers",
                description: "Headers of the request that identify the caller, each as Name: value",
                kind: Kind::Flags("--header"),
            },
        ],
        finds: false,
        asks: true,
    },
];

impl Tool {
    /// The tool as the protocol describes it.
    pub(super) fn described(&self) -> model::Tool {
        let properties = self.arguments.iter().map(|argument| {
            let text = json!({ "type": "string", "description": argument.description });
            let schema = match argument.kind {
                Kind::Flags(_) => {
                    json!({ "type": "array", "items": text, "description": argument.description })
                }
                _ => text,
            };
            (argument.name.to_owned(), schema)
        });
        let needed = self.arguments.iter().filter(|it| it.kind == Kind::Needed);
        let needed: Vec<_> = needed.map(|it| it.name).collect();
        let mut schema = Map::new();
        schema.insert("type".into(), "object".into());
        schema.insert("properties".into(), Value::Object(properties.collect()));
        schema.insert("required".into(), needed.into());
        schema.insert("additionalProperties".into(), false.into());
        let hints = model::ToolAnnotations::new().read_only(true);
        model::Tool::new(self.name, self.description, schema).with_annotations(hints)
    }

    /// The words of the command line, or an error about the arguments.
    pub(super) fn command_line(
        &self,
        given: &Map<String, Value>,
        admin: Option<&str>,
    ) -> Result<Vec<String>, String> {
        let known = |name: &String| self.arguments.iter().any(|it| it.name == name);
        if let Some(stranger) = given.keys().find(|name| !known(name)) {
            return Err(format!("{}: unknown argument `{stranger}`", self.name));
        }
        let mut words: Vec<String> = self.command.iter().map(|word| (*word).into()).collect();
        let mut alone = Vec::new();
        for argument in self.arguments {
            let texts = texts(argument, given.get(argument.name))?;
            match argument.kind {
                Kind::Needed if texts.is_empty() => {
                    return Err(format!(
                        "{}: missing argument `{}`",
                        self.name, argument.name
                    ));
                }
                Kind::Needed | Kind::Alone => alone.extend(texts),
                // Flag and value in one word, so that a value is never parsed as a flag.
                Kind::Flag(flag) | Kind::Flags(flag) => {
                    words.extend(texts.iter().map(|text| format!("{flag}={text}")));
                }
            }
        }
        words.extend(
            admin
                .filter(|_| self.asks)
                .map(|url| format!("--admin={url}")),
        );
        if !alone.is_empty() {
            words.push("--".into());
            words.extend(alone);
        }
        Ok(words)
    }

    /// Runs the command; returns its output, or its error messages if it fails.
    pub(super) fn run(&self, words: &[String]) -> Result<String, String> {
        let program = env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        let output = command.args(words).stdin(Stdio::null()).output();
        let output = output.map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match output.status.code() {
            Some(0) | Some(1) if output.status.success() || self.finds => {
                if output.stdout.len() > ANSWER_BYTES_MAX {
                    let bytes = output.stdout.len();
                    return Err(format!(
                        "the result is too large ({bytes} bytes); run the command itself: refrain {}",
                        words.join(" ")
                    ));
                }
                Ok(text(&output.stdout))
            }
            _ => Err(text(&output.stderr)),
        }
    }
}

fn texts(argument: &Argument, value: Option<&Value>) -> Result<Vec<String>, String> {
    let bad = || format!("argument `{}` is not a string", argument.name);
    let text = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(bad);
    match (value, argument.kind) {
        (None | Some(Value::Null), _) => Ok(Vec::new()),
        (Some(Value::Array(values)), Kind::Flags(_)) => values.iter().map(text).collect(),
        (Some(value), _) => Ok(vec![text(value)?]),
    }
}
