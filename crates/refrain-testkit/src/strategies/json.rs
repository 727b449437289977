//! JSON values that can be written in many equivalent ways.

use std::collections::BTreeMap;

use proptest::{collection, prelude::*, sample::Index};

/// A JSON value; numbers are kept as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

/// Formatting choices for a JSON text: each byte makes one choice, and the list repeats.
#[derive(Debug, Clone)]
pub(super) struct Spelling(Vec<u8>);

impl Arbitrary for Spelling {
    type Parameters = ();
    type Strategy = BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        collection::vec(any::<u8>(), 1..16).prop_map(Self).boxed()
    }
}

/// Objects with at least one member and a nesting depth of at most 3.
pub(super) fn objects() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::Bool),
        numbers().prop_map(Json::Number),
        texts().prop_map(Json::Text),
    ];
    let value = leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            collection::vec(inner.clone(), 0..4).prop_map(Json::List),
            collection::btree_map(texts(), inner, 0..4).prop_map(Json::Object),
        ]
    });
    collection::btree_map(texts(), value, 1..5).prop_map(Json::Object)
}

/// Includes numbers that no float can represent exactly.
fn numbers() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        (any::<i32>(), 0..1_000_u32).prop_map(|(whole, part)| format!("{whole}.{part}")),
        (1..10_u8, -20..20_i8).prop_map(|(digit, power)| format!("{digit}e{power}")),
        Just("9007199254740993".to_owned()),
        Just("0".to_owned()),
    ]
}

fn texts() -> impl Strategy<Value = String> {
    let letter = prop_oneof![
        6 => prop::char::range('a', 'z'),
        1 => Just('"'),
        1 => Just('\\'),
        1 => Just('\n'),
        1 => Just('é'),
        1 => Just('\u{1f511}'),
        1 => any::<char>(),
    ];
    collection::vec(letter, 0..8).prop_map(|letters| letters.into_iter().collect())
}

impl Json {
    pub(super) fn spelled(&self, spelling: &Spelling) -> String {
        let mut writer = Writer {
            choices: spelling.0.iter().copied().cycle(),
            text: String::new(),
        };
        writer.value(self);
        writer.space();
        writer.text
    }

    /// Returns a copy with one value changed.
    pub(super) fn changed(&self, at: Index) -> Self {
        let mut json = self.clone();
        let mut left = at.index(json.leaves().max(1));
        if !json.change(&mut left) {
            // The object contains no scalar value.
            json = Self::Object(BTreeMap::from([("more".into(), Self::Null)]));
        }
        json
    }

    fn children(&self) -> Box<dyn Iterator<Item = &Self> + '_> {
        match self {
            Self::List(values) => Box::new(values.iter()),
            Self::Object(members) => Box::new(members.values()),
            _ => Box::new(std::iter::empty()),
        }
    }

    fn leaves(&self) -> usize {
        match self {
            Self::List(_) | Self::Object(_) => self.children().map(Self::leaves).sum(),
            _ => 1,
        }
    }

    fn change(&mut self, left: &mut usize) -> bool {
        match self {
            Self::List(values) => return values.iter_mut().any(|it| it.change(left)),
            Self::Object(members) => return members.values_mut().any(|it| it.change(left)),
            _ if *left > 0 => {
                *left -= 1;
                return false;
            }
            Self::Null => *self = Self::Bool(false),
            Self::Bool(truth) => *truth = !*truth,
            // A number written differently makes another body, even if its value is equal.
            Self::Number(number) if number.contains(['.', 'e']) => number.push('0'),
            Self::Number(number) => number.push_str(".0"),
            Self::Text(text) => text.push('x'),
        }
        true
    }
}

struct Writer<C> {
    choices: C,
    text: String,
}

impl<C: Iterator<Item = u8>> Writer<C> {
    fn choice(&mut self) -> u8 {
        self.choices.next().unwrap_or_default()
    }

    fn space(&mut self) {
        let space = match self.choice() % 8 {
            0 => " ",
            1 => "\n  ",
            2 => "\t",
            3 => "\r\n",
            _ => "",
        };
        self.text.push_str(space);
    }

    fn value(&mut self, json: &Json) {
        self.space();
        match json {
            Json::Null => self.text.push_str("null"),
            Json::Bool(truth) => self.text.push_str(if *truth { "true" } else { "false" }),
            Json::Number(number) => self.text.push_str(number),
            Json::Text(text) => self.string(text),
            Json::List(values) => {
                self.text.push('[');
                for (at, value) in values.iter().enumerate() {
                    self.comma(at);
                    self.value(value);
                }
                self.space();
                self.text.push(']');
            }
            Json::Object(members) => self.object(members),
        }
    }

    fn object(&mut self, members: &BTreeMap<String, Json>) {
        let mut members: Vec<_> = members.iter().collect();
        let turn = usize::from(self.choice()) % members.len().max(1);
        members.rotate_left(turn);
        if self.choice() % 2 == 1 {
            members.reverse();
        }
        self.text.push('{');
        for (at, (name, value)) in members.into_iter().enumerate() {
            self.comma(at);
            self.space();
            self.string(name);
            self.space();
            self.text.push(':');
            self.value(value);
        }
        self.space();
        self.text.push('}');
    }

    fn comma(&mut self, at: usize) {
        if at > 0 {
            self.space();
            self.text.push(',');
        }
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for letter in text.chars() {
            let must_escape = matches!(letter, '"' | '\\') || letter.is_control();
            match must_escape || self.choice().is_multiple_of(4) {
                true => self.escaped(letter),
                false => self.text.push(letter),
            }
        }
        self.text.push('"');
    }

    fn escaped(&mut self, letter: char) {
        let mut units = [0; 2];
        let is_upper = self.choice().is_multiple_of(2);
        for unit in letter.encode_utf16(&mut units) {
            let digits = match is_upper {
                true => format!("\\u{unit:04X}"),
                false => format!("\\u{unit:04x}"),
            };
            self.text.push_str(&digits);
        }
    }
}
