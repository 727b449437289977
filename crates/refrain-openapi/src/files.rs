//! The files of a document: the first file, and the files that it refers to.

use std::{
    collections::HashMap,
    fs,
    io::Read as _,
    path::{Component, Path, PathBuf},
};

use crate::{
    Format, Node,
    error::{ReadError, SourceLocation},
    parse::{self, FILE_BYTES_MAX},
};

/// Maximum number of files of one document.
pub const FILES_MAX: usize = 200;
/// Maximum total size of all files, in bytes.
pub const FILES_BYTES_MAX: usize = 64 << 20;

/// All files of a document.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) list: Vec<Loaded>,
    /// Problems that do not prevent reading, such as references without a target.
    pub(crate) troubles: Vec<ReadError>,
}

/// One parsed file.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) root: Node,
    pub(crate) format: Format,
    path: PathBuf,
    /// Indexes of the files that this file refers to, by the part of the reference before `#`.
    others: HashMap<String, usize>,
}

impl Files {
    /// Reads a file and all files that it refers to.
    pub(crate) fn read(path: &Path) -> Result<Self, ReadError> {
        let bytes = bytes(path)?;
        let folder = path.parent().map(Path::to_owned);
        Self::gather(
            &bytes,
            &path.display().to_string(),
            path.into(),
            folder.is_some(),
        )
    }

    /// Parses a single text; references to other files are reported as problems.
    pub(crate) fn parse(bytes: &[u8], name: &str) -> Result<Self, ReadError> {
        Self::gather(bytes, name, PathBuf::from(name), false)
    }

    fn gather(bytes: &[u8], name: &str, path: PathBuf, follows: bool) -> Result<Self, ReadError> {
        let mut files = Self {
            list: Vec::new(),
            troubles: Vec::new(),
        };
        let mut numbers = HashMap::from([(tidy(&path), 0)]);
        let mut size = bytes.len();
        let mut references = files.add(bytes, name, path)?;
        let mut at = 0;
        loop {
            for reference in references {
                let Some(other) = files.other(at, &reference, name, follows) else {
                    continue;
                };
                if let Some(&number) = numbers.get(&other) {
                    files.list[at].others.insert(reference.file, number);
                    continue;
                }
                let number = numbers.len();
                if number >= FILES_MAX {
                    let message = format!("refers to more than {FILES_MAX} files");
                    let help = "bundle them into one file first";
                    return Err(ReadError::new(SourceLocation::whole(name), message, help));
                }
                numbers.insert(other, number);
                files.list[at].others.insert(reference.file, number);
            }
            at += 1;
            // Files get their numbers in the order of discovery, so this reads them one after the other.
            let Some(next) = numbers.iter().find(|(_, number)| **number == at) else {
                break;
            };
            let next = next.0.clone();
            references = files.load(&next, &mut size)?;
        }
        files.check();
        Ok(files)
    }

    /// Reads the next file. An unreadable file becomes an empty node, and its error is recorded.
    fn load(&mut self, path: &Path, size: &mut usize) -> Result<Vec<Reference>, ReadError> {
        let name = path.display().to_string();
        let read = bytes(path).and_then(|bytes| {
            *size += bytes.len();
            if *size > FILES_BYTES_MAX {
                let limit = FILES_BYTES_MAX >> 20;
                let message = format!("with this file the document has more than {limit} MiB");
                let help = "remove examples, or plan a part of the API";
                return Err(ReadError::new(SourceLocation::whole(&name), message, help));
            }
            Ok(bytes)
        });
        let added = read.and_then(|bytes| self.add(&bytes, &name, path.into()));
        added.or_else(|error| {
            if *size > FILES_BYTES_MAX {
                return Err(error);
            }
            self.troubles.push(error);
            self.list.push(Loaded {
                root: Node::Null,
                format: Format::Yaml,
                path: path.into(),
                others: HashMap::new(),
            });
            Ok(Vec::new())
        })
    }

    fn add(
        &mut self,
        bytes: &[u8],
        name: &str,
        path: PathBuf,
    ) -> Result<Vec<Reference>, ReadError> {
        let (root, format) = parse::parse(bytes, name)?;
        let mut references = Vec::new();
        collect_file_references(&root, &mut references);
        for reference in &mut references {
            let at = find(bytes, &reference.text);
            reference.place = at.map_or(SourceLocation::whole(name), |at| {
                SourceLocation::of(name, bytes, at)
            });
        }
        self.list.push(Loaded {
            root,
            format,
            path,
            others: HashMap::new(),
        });
        Ok(references)
    }

    /// Path of the file that a reference leads to; records a problem and returns `None` if it must not be followed.
    fn other(&mut self, at: usize, to: &Reference, name: &str, follows: bool) -> Option<PathBuf> {
        let refuse =
            |message: String, help: &str| Some(ReadError::new(to.place.clone(), message, help));
        let file = &to.file;
        let trouble = if file.contains("://") || file.starts_with("//") {
            refuse(
                format!(
                    "`{}` is ignored: references to the network are not fetched",
                    to.text
                ),
                "download it next to the document, and refer to the file",
            )
        } else if !follows {
            refuse(
                format!("`{}` is ignored: {name} is not a file", to.text),
                "refer to a file",
            )
        } else if Path::new(&**file).is_absolute() {
            refuse(
                format!(
                    "`{}` is ignored: it is not relative to the document",
                    to.text
                ),
                "write the relative path from this file to the other file",
            )
        } else {
            None
        };
        match trouble {
            Some(trouble) => {
                self.troubles.push(trouble);
                None
            }
            None => {
                let folder = self.list[at].path.parent().unwrap_or(Path::new(""));
                Some(tidy(&folder.join(decoded(file))))
            }
        }
    }

    /// Resolves a reference in the file `at`: returns the index of the target file, and the node.
    pub(crate) fn target(&self, at: usize, reference: &str) -> Option<(usize, &Node)> {
        let (file, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let number = match file {
            "" => at,
            file => *self.list.get(at)?.others.get(file)?,
        };
        let root = &self.list.get(number)?.root;
        match fragment.contains('%') {
            true => Some((number, root.pointer(&decoded(fragment))?)),
            false => Some((number, root.pointer(fragment)?)),
        }
    }

    /// Name of the first file, without its folder.
    pub(crate) fn name(&self) -> &str {
        let name = self.list[0].path.file_name();
        name.and_then(|it| it.to_str()).unwrap_or_default()
    }

    /// Relative path from the first file to another file.
    pub(crate) fn reference(&self, number: usize) -> String {
        let first = tidy(&self.list[0].path);
        let other = tidy(&self.list[number].path);
        let folder = first.parent().unwrap_or(Path::new(""));
        let (from, to) = (folder.components(), other.components());
        let shared = from.clone().zip(to.clone());
        let shared = shared.take_while(|(one, two)| one == two).count();
        let up = from.skip(shared).map(|_| "..".to_owned());
        let down = to.skip(shared);
        let down = down.map(|it| it.as_os_str().to_string_lossy().into_owned());
        up.chain(down).collect::<Vec<_>>().join("/")
    }

    /// Records references that have no target.
    fn check(&mut self) {
        const TOLD_MAX: usize = 20;
        let mut lost = Vec::new();
        for (at, file) in self.list.iter().enumerate() {
            let name = file.path.display().to_string();
            visit_references(&file.root, &mut |text| {
                let (other, fragment) = text.split_once('#').unwrap_or((text, ""));
                // `other` already recorded the problem with that file.
                let is_other_told = !other.is_empty() && !file.others.contains_key(other);
                if is_other_told || lost.len() >= TOLD_MAX || self.target(at, text).is_some() {
                    return;
                }
                let to_nothing = file
                    .others
                    .get(other)
                    .is_some_and(|&it| self.list[it].root == Node::Null);
                if !to_nothing {
                    let message = format!("`$ref: {text}` refers to nothing");
                    let help = match fragment.starts_with('/') || fragment.is_empty() {
                        true => "correct the reference, or add its target",
                        false => "write it as a JSON pointer, such as #/components/schemas/Pet",
                    };
                    lost.push(ReadError::new(SourceLocation::whole(&name), message, help));
                }
            });
        }
        lost.dedup();
        self.troubles.extend(lost);
    }
}

/// A reference to another file.
struct Reference {
    text: String,
    file: String,
    place: SourceLocation,
}

fn collect_file_references(node: &Node, found: &mut Vec<Reference>) {
    visit_references(node, &mut |text| {
        let file = text.split('#').next().unwrap_or_default();
        let is_new = !file.is_empty() && !found.iter().any(|it| it.file == file);
        if is_new && found.len() < 4 * FILES_MAX {
            found.push(Reference {
                text: text.into(),
                file: file.into(),
                place: SourceLocation::whole(""),
            });
        }
    });
}

/// Calls `tell` for every reference within a node. The parser limits the depth of the recursion.
fn visit_references(node: &Node, tell: &mut impl FnMut(&str)) {
    match node {
        Node::Map(map) => {
            for (name, node) in map.iter() {
                match (name.as_str(), node) {
                    ("$ref", Node::Text(text)) => tell(text),
                    // Examples are data, even if they contain `$ref`.
                    ("example" | "examples", _) => {}
                    _ => visit_references(node, tell),
                }
            }
        }
        Node::List(items) => items.iter().for_each(|item| visit_references(item, tell)),
        _ => {}
    }
}

fn bytes(path: &Path) -> Result<Vec<u8>, ReadError> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    let limit = FILE_BYTES_MAX as u64 + 1;
    let read = fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes));
    match read {
        Ok(_) if bytes.len() > FILE_BYTES_MAX => Err(parse::too_large(&name)),
        Ok(_) => Ok(bytes),
        Err(error) => Err(ReadError::new(
            SourceLocation::whole(&name),
            format!("cannot be read: {error}"),
            "check the path and its permissions",
        )),
    }
}

/// Normalized path: without `.`, and without `..` after a named folder, so that each file is read only once.
fn tidy(path: &Path) -> PathBuf {
    let mut tidy = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir
                if matches!(tidy.components().next_back(), Some(Component::Normal(_))) =>
            {
                tidy.pop();
            }
            part => tidy.push(part),
        }
    }
    tidy
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let hex = behind
            .get(..2)
            .and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (first, byte) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            _ => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn find(bytes: &[u8], text: &str) -> Option<usize> {
    bytes
        .windows(text.len().max(1))
        .position(|window| window == text.as_bytes())
}
