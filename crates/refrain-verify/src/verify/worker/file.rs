//! `verify.toml` for consumers: the same settings as the flags, for several messages.

use std::path::Path;

use refrain::{Guarantee, policy::Address};
use serde::Deserialize;

use super::Template;
use crate::verify::{
    file::{self, BadFile, Effects, Restart, body, mistake},
    plan::{BadPlan, Counting, Process, header},
};

const MESSAGES_MAX: usize = 100;

/// Contents of a `verify.toml` for a consumer.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct File {
    /// Address of the broker.
    pub broker: Option<Address>,
    /// Queue that the consumer reads.
    pub queue: Option<String>,
    /// Dead-letter destination of the consumer.
    pub dead_letter: Option<String>,
    /// Guarantee of the consumer.
    pub guarantee: Option<Guarantee>,
    /// Number of consumers that each receive every message.
    pub consumers: Option<u64>,
    /// Command that redrives dead letters.
    pub redrive_command: Option<String>,
    /// How effects are counted.
    pub counting: Option<Counting>,
    /// The consumer's process.
    pub process: Process,
    /// The messages under test.
    pub messages: Vec<Template>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Typed {
    broker: Option<String>,
    queue: Option<String>,
    dead_letter: Option<String>,
    guarantee: Option<Guarantee>,
    consumers: Option<u64>,
    redrive_command: Option<String>,
    effects: Option<Effects>,
    restart: Option<Restart>,
    #[serde(default)]
    message: Vec<toml::Spanned<TypedMessage>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TypedMessage {
    name: Option<String>,
    body: String,
    #[serde(default)]
    headers: Vec<String>,
    content_type: Option<String>,
    message_id: Option<String>,
    slow_body: Option<String>,
    failing_body: Option<String>,
    poison_body: Option<String>,
}

impl File {
    /// Reads a file. A body written `@FILE` is read from a path relative to this file.
    ///
    /// # Errors
    /// [`BadFile`] with the position of the first error.
    pub fn read(path: &Path) -> Result<Self, BadFile> {
        let (text, name, folder) = file::text(path)?;
        Self::parse(&text, &name, &folder)
    }

    /// Parses the text of a file with this `name`; paths are relative to `folder`.
    ///
    /// # Errors
    /// [`BadFile`] with the position of the first error.
    pub fn parse(text: &str, name: &str, folder: &Path) -> Result<Self, BadFile> {
        let at = |offset: usize, message: String| mistake(name, text, offset, message);
        let typed: Typed = file::typed(text, name)?;
        if typed.message.len() > MESSAGES_MAX {
            return Err(at(0, format!("more than {MESSAGES_MAX} messages")));
        }
        let messages = (1..).zip(typed.message).map(|(number, message)| {
            let start = message.span().start;
            let built = message.into_inner().build(number, folder);
            built.map_err(|error| at(start, error.to_string()))
        });
        let counting = typed.effects.map(file::counting).transpose();
        Ok(Self {
            broker: typed.broker.map(Address::from),
            queue: typed.queue,
            dead_letter: typed.dead_letter,
            guarantee: typed.guarantee,
            consumers: typed.consumers,
            redrive_command: typed.redrive_command,
            counting: counting.map_err(|error| at(0, error.to_string()))?,
            process: typed.restart.map(Process::from).unwrap_or_default(),
            messages: messages.collect::<Result<_, _>>()?,
        })
    }
}

impl TypedMessage {
    fn build(self, number: usize, folder: &Path) -> Result<Template, BadPlan> {
        let other = |text: Option<String>| text.map(|text| body(&text, folder)).transpose();
        let name = self.name.unwrap_or_else(|| format!("message {number}"));
        let mut template = Template::new(name, body(&self.body, folder)?);
        let headers = self.headers.iter().map(|it| header(it));
        template.headers = headers.collect::<Result<_, _>>()?;
        template.set_content_type(self.content_type.as_deref());
        template.message_id = self.message_id;
        template.slow_body = other(self.slow_body)?;
        template.failing_body = other(self.failing_body)?;
        template.poison_body = other(self.poison_body)?;
        Ok(template)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_what_flags_say_and_mistakes_have_a_place() {
        let text = "broker = 'redis://h'\nqueue = 'q'\nguarantee = 'exactly-once'\nconsumers = 2\n\
                    [effects]\nurl = 'http://h/{id}'\n[restart]\ncommand = 'run'\n\
                    [[message]]\nbody = '{\"id\":\"{id}\"}'\nheaders = ['x-id: {id}']\npoison_body = 'p'";
        let file = File::parse(text, "verify.toml", Path::new("")).unwrap();
        assert_eq!(file.guarantee, Some(Guarantee::ExactlyOnce));
        assert_eq!(file.consumers, Some(2));
        assert_eq!(file.process.command.as_deref(), Some("run"));
        assert_eq!(file.messages[0].name, "message 1");
        assert_eq!(file.messages[0].poison_body.as_deref(), Some(&b"p"[..]));
        for (text, said) in [
            ("queue = 7", "verify.toml:1:9"),
            ("\nguarantee = 'twice'", "verify.toml:2:13"),
            ("[[message]]\nname = 'a'", "missing field `body`"),
            ("[[message]]\nbody = '@no-such'", "no-such: cannot be read"),
            (
                "[[message]]\nbody = ''\nheaders = ['x']",
                "verify.toml:1:1: invalid header `x`",
            ),
            ("[effects]", "either url or sql"),
        ] {
            let error = File::parse(text, "verify.toml", Path::new(""));
            let error = error.unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
