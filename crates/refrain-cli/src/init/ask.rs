//! Questions, and how they are answered: from an earlier run, with the default, or by the user.

use inquire::{InquireError, Select, Text, validator::Validation};

use super::answers::Answers;
use crate::proxy::Failure;

/// The most options that are shown at once.
const SHOWN_MAX: usize = 10;

pub(crate) struct Question<'q> {
    /// The name under which the answer is stored.
    pub(crate) name: String,
    pub(crate) text: String,
    /// The trade-off, in one sentence.
    pub(crate) why: &'q str,
    pub(crate) kind: Kind<'q>,
    pub(crate) default: String,
}

/// The kind of answer that a question takes.
pub(crate) enum Kind<'q> {
    /// One of these options: the stored answer, and its label.
    Choice(Vec<(String, String)>),
    /// Any text that passes the check, which returns an error message.
    Text(&'q dyn Fn(&str) -> Result<(), String>),
}

impl Kind<'_> {
    /// Whether a stored answer is still valid for the question.
    fn takes(&self, answer: &str) -> bool {
        match self {
            Self::Choice(options) => options.iter().any(|(option, _)| option == answer),
            Self::Text(check) => check(answer).is_ok(),
        }
    }
}

/// Why the guide ended early.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// The user stopped.
    Stopped,
    Failed(anyhow::Error),
    /// A file or the folder cannot be written.
    NotWritten(Failure),
}

impl From<Failure> for NoAnswer {
    fn from(failure: Failure) -> Self {
        Self::NotWritten(failure)
    }
}

impl From<anyhow::Error> for NoAnswer {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

/// Asks the questions that have no stored answer.
pub(crate) struct Interview {
    pub(crate) answers: Answers,
    /// Whether every other question gets its default.
    pub(crate) takes_defaults: bool,
}

impl Interview {
    /// The stored answer, the default, or the user's answer, which is then stored.
    ///
    /// # Errors
    /// When the user stops, or the answer cannot be stored.
    pub(crate) fn ask(&mut self, question: &Question<'_>) -> Result<String, NoAnswer> {
        let kept = self.answers.get(&question.name);
        if let Some(kept) = kept.filter(|kept| question.kind.takes(kept)) {
            return Ok(kept.into());
        }
        if self.takes_defaults {
            return Ok(question.default.clone());
        }
        let answer = prompt(question)?;
        self.answers.keep(&question.name, &answer)?;
        Ok(answer)
    }
}

fn prompt(question: &Question<'_>) -> Result<String, NoAnswer> {
    let answered = match &question.kind {
        Kind::Choice(options) => {
            let start = options
                .iter()
                .position(|(option, _)| *option == question.default);
            let labels = options.iter().map(|(_, label)| label.as_str()).collect();
            let chosen = Select::new(&question.text, labels)
                .with_help_message(question.why)
                .with_starting_cursor(start.unwrap_or(0))
                .with_page_size(SHOWN_MAX)
                .raw_prompt();
            chosen.map(|chosen| options[chosen.index].0.clone())
        }
        Kind::Text(check) => Text::new(&question.text)
            .with_help_message(question.why)
            .with_default(&question.default)
            .with_validator(|typed: &str| {
                Ok(match check(typed) {
                    Ok(()) => Validation::Valid,
                    Err(problem) => Validation::Invalid(problem.into()),
                })
            })
            .prompt(),
    };
    answered.map_err(|error| match error {
        InquireError::OperationCanceled | InquireError::OperationInterrupted => NoAnswer::Stopped,
        other => NoAnswer::Failed(other.into()),
    })
}
