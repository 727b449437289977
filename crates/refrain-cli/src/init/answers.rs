//! The answers so far, kept in the project's folder until the end, so that an interrupted run can be resumed.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};

use crate::proxy::Failure;

/// The name of the file with the answers.
pub(crate) const FILE: &str = ".refrain-init.json";
/// The most bytes of that file: a longer one was not written by `refrain init`.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Answers by the name of their question.
#[derive(Debug)]
pub(crate) struct Answers {
    file: PathBuf,
    kept: BTreeMap<String, String>,
}

impl Answers {
    /// Loads the answers that an earlier run left in `folder`.
    ///
    /// # Errors
    /// When the file cannot be read, or is not a file of answers.
    pub(crate) fn resume(folder: &Path) -> anyhow::Result<Self> {
        let file = folder.join(FILE);
        let kept = match fs::metadata(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error).with_context(|| file.display().to_string()),
            Ok(found) if found.len() > FILE_BYTES_MAX => {
                bail!(
                    "{} is too large to be a file of answers; remove it",
                    file.display()
                )
            }
            Ok(_) => {
                let text = fs::read(&file).with_context(|| file.display().to_string())?;
                let fix = || {
                    format!(
                        "{} is not a file of answers; remove it, or pass --restart",
                        file.display()
                    )
                };
                serde_json::from_slice(&text).with_context(fix)?
            }
        };
        Ok(Self { file, kept })
    }

    /// Starts without answers, and removes the file of an earlier run.
    ///
    /// # Errors
    /// When that file cannot be removed.
    pub(crate) fn restart(folder: &Path) -> anyhow::Result<Self> {
        let answers = Self {
            file: folder.join(FILE),
            kept: BTreeMap::new(),
        };
        answers.forget()?;
        Ok(answers)
    }

    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    pub(crate) fn get(&self, question: &str) -> Option<&str> {
        self.kept.get(question).map(String::as_str)
    }

    /// Stores an answer on disk, before the next question.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn keep(&mut self, question: &str, answer: &str) -> Result<(), Failure> {
        self.kept.insert(question.into(), answer.into());
        let write = || {
            let text = serde_json::to_vec_pretty(&self.kept)?;
            let mut new = self.file.clone();
            new.as_mut_os_string().push(".new");
            fs::write(&new, &text)?;
            fs::rename(&new, &self.file)
        };
        let file = self.file.display();
        write().map_err(|error: io::Error| {
            Failure::Unavailable(format!("cannot write {file}: {error}"))
        })
    }

    /// Removes the file, once the answers are no longer needed.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub(crate) fn forget(&self) -> anyhow::Result<()> {
        let removed = match fs::remove_file(&self.file) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => io::Result::Ok(()),
        };
        removed.with_context(|| format!("cannot remove {}", self.file.display()))
    }
}
