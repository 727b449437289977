//! A text that fits a regular expression, where that is a simple one: no looking around, no references back.

use std::iter::Peekable;
use std::str::Chars;

/// How often something is repeated, whatever it asks for.
const REPEATS_MAX: usize = 1_000;
const DEPTH_MAX: usize = 16;

/// The text, of at least `least` and at most `most` letters; `None` where none can be made.
pub(super) fn fitting(pattern: &str, least: usize, most: usize) -> Option<String> {
    let mut reader = Reader {
        rest: pattern.chars().peekable(),
    };
    let parts = reader.sequence(0)?;
    if reader.rest.next().is_some() {
        return None;
    }
    let is_fitting = |text: &String| (least..=most).contains(&text.chars().count());
    // What may be repeated is repeated more until it is long enough.
    (0..=least)
        .map(|extra| written(&parts, extra))
        .find(is_fitting)
}

/// A letter, or several things, that come so often.
struct Part {
    what: What,
    least: usize,
    most: usize,
}

enum What {
    Letter(char),
    Group(Vec<Part>),
}

fn written(parts: &[Part], extra: usize) -> String {
    let mut text = String::new();
    let mut extra = extra;
    for part in parts {
        let more = extra.min(part.most.saturating_sub(part.least));
        // The first that can be repeated takes all of it.
        extra -= more;
        for _ in 0..part.least + more {
            match &part.what {
                What::Letter(letter) => text.push(*letter),
                What::Group(parts) => text.push_str(&written(parts, 0)),
            }
        }
    }
    text
}

struct Reader<'p> {
    rest: Peekable<Chars<'p>>,
}

impl Reader<'_> {
    /// Up to the end, or the end of the group; of alternatives the first.
    fn sequence(&mut self, depth: usize) -> Option<Vec<Part>> {
        let mut parts = Vec::new();
        let mut is_other = false;
        while let Some(&letter) = self.rest.peek() {
            if letter == ')' {
                break;
            }
            self.rest.next();
            if letter == '|' {
                is_other = true;
                continue;
            }
            if letter == '^' || letter == '$' {
                continue;
            }
            let what = self.one(letter, depth)?;
            let (least, most) = self.often()?;
            if !is_other {
                parts.push(Part { what, least, most });
            }
        }
        Some(parts)
    }

    fn one(&mut self, letter: char, depth: usize) -> Option<What> {
        match letter {
            '(' => self.group(depth + 1),
            '[' => self.class().map(What::Letter),
            '.' => Some(What::Letter('a')),
            '\\' => self.escape().map(What::Letter),
            '*' | '+' | '?' | '{' => None,
            letter => Some(What::Letter(letter)),
        }
    }

    fn group(&mut self, depth: usize) -> Option<What> {
        if depth > DEPTH_MAX {
            return None;
        }
        if self.rest.next_if_eq(&'?').is_some() {
            // Only groups that are not counted; looking around is not done.
            self.rest.next_if_eq(&':')?;
        }
        let parts = self.sequence(depth)?;
        self.rest.next_if_eq(&')')?;
        Some(What::Group(parts))
    }

    fn escape(&mut self) -> Option<char> {
        match self.rest.next()? {
            'd' => Some('1'),
            'w' => Some('a'),
            's' => Some(' '),
            'D' | 'S' => Some('a'),
            'W' => Some('-'),
            'n' => Some('\n'),
            't' => Some('\t'),
            letter if letter.is_ascii_alphanumeric() => None,
            letter => Some(letter),
        }
    }

    /// A letter of a class such as `[A-Z0-9_]`.
    fn class(&mut self) -> Option<char> {
        let is_negated = self.rest.next_if_eq(&'^').is_some();
        let mut ranges: Vec<(char, char)> = Vec::new();
        loop {
            let letter = match self.rest.next()? {
                ']' if !ranges.is_empty() => break,
                '\\' => match self.rest.peek()? {
                    'd' => self.named(('0', '9'), &mut ranges)?,
                    'w' => self.named(('a', 'z'), &mut ranges)?,
                    _ => self.escape()?,
                },
                letter => letter,
            };
            let mut ahead = self.rest.clone();
            let is_range = ahead.next() == Some('-') && ahead.next().is_some_and(|it| it != ']');
            if !is_range {
                ranges.push((letter, letter));
                continue;
            }
            self.rest.next();
            let end = match self.rest.next()? {
                '\\' => self.escape()?,
                end => end,
            };
            ranges.push((letter, end));
        }
        let holds = |letter: &char| {
            ranges
                .iter()
                .any(|(from, to)| (from..=to).contains(&letter))
        };
        match is_negated {
            true => ('a'..='z')
                .chain('0'..='9')
                .chain(['-', ' '])
                .find(|it| !holds(it)),
            // A digit that is not 0 and a plain letter where the class has them.
            false => ['1', 'a', 'A']
                .into_iter()
                .find(holds)
                .or(Some(ranges[0].0)),
        }
    }

    /// A class within a class; answers a letter of it.
    fn named(&mut self, range: (char, char), ranges: &mut Vec<(char, char)>) -> Option<char> {
        self.rest.next()?;
        ranges.push(range);
        Some(range.0)
    }

    /// How often the last thing comes.
    fn often(&mut self) -> Option<(usize, usize)> {
        let often = match self.rest.peek() {
            Some('?') => (0, 1),
            Some('*') => (0, REPEATS_MAX),
            Some('+') => (1, REPEATS_MAX),
            Some('{') => return self.counted(),
            _ => return Some((1, 1)),
        };
        self.rest.next();
        // Lazy or not is the same here.
        self.rest.next_if_eq(&'?');
        Some(often)
    }

    fn counted(&mut self) -> Option<(usize, usize)> {
        self.rest.next();
        let mut text = String::new();
        loop {
            match self.rest.next()? {
                '}' => break,
                letter => text.push(letter),
            }
        }
        self.rest.next_if_eq(&'?');
        let (least, most) = match text.split_once(',') {
            Some((least, "")) => (least.parse().ok()?, REPEATS_MAX),
            Some((least, most)) => (least.parse().ok()?, most.parse().ok()?),
            None => (text.parse().ok()?, text.parse().ok()?),
        };
        (least <= REPEATS_MAX).then_some((least, most.max(least)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simple_patterns_are_met_and_others_left_alone() {
        for (pattern, least, most, made) in [
            ("^[A-Z]{3}$", 0, 99, Some("AAA")),
            (r"^\d{4}-\d{2}$", 0, 99, Some("1111-11")),
            ("^(visa|card)-[a-f0-9]+$", 0, 99, Some("visa-1")),
            ("^(?:ab)?c*$", 3, 99, Some("abc")),
            (r"^\+[1-9]\d{1,14}$", 0, 99, Some("+11")),
            ("^[a-z]+$", 5, 8, Some("aaaaa")),
            ("^[^a-z]$", 0, 9, Some("0")),
            (r"^[\w-]{2}\.x$", 0, 9, Some("aa.x")),
            ("^a{9}$", 0, 5, None),
            ("^(?=a)b$", 0, 99, None),
            (r"(a)\1", 0, 99, None),
            ("(((", 0, 99, None),
            ("[", 0, 99, None),
            ("a{99999}", 0, 99, None),
        ] {
            let found = fitting(pattern, least, most);
            assert_eq!(found.as_deref(), made, "{pattern}");
        }
    }
}
