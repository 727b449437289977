//! Generates a string that matches a simple regular expression: no look-around, no back-references.

use std::iter::Peekable;
use std::str::Chars;

/// Maximum number of repetitions.
const REPEATS_MAX: usize = 1_000;
const DEPTH_MAX: usize = 16;

/// String that matches the pattern, with `least` to `most` characters; `None` for unsupported patterns.
pub(super) fn fitting(pattern: &str, least: usize, most: usize) -> Option<String> {
    let mut reader = Reader {
        rest: pattern.chars().peekable(),
    };
    let parts = reader.sequence(0)?;
    if reader.rest.next().is_some() {
        return None;
    }
    let is_fitting = |text: &String| (least..=most).contains(&text.chars().count());
    // Add repetitions until the string is long enough.
    (0..=least)
        .map(|extra| written(&parts, extra))
        .find(is_fitting)
}

/// A character or group with its number of repetitions.
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
        // The first repeatable part takes as many extra repetitions as it can.
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
    /// Parses up to the end of the pattern or group; keeps only the first alternative.
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
            // Non-capturing groups only; look-around is unsupported.
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

    /// Character of a class such as `[A-Z0-9_]`.
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
            // Prefer a digit other than 0, or a plain letter.
            false => ['1', 'a', 'A']
                .into_iter()
                .find(holds)
                .or(Some(ranges[0].0)),
        }
    }

    /// Adds a class such as `\d` within a class; returns one of its characters.
    fn named(&mut self, range: (char, char), ranges: &mut Vec<(char, char)>) -> Option<char> {
        self.rest.next()?;
        ranges.push(range);
        Some(range.0)
    }

    /// Parses the quantifier of the last element.
    fn often(&mut self) -> Option<(usize, usize)> {
        let often = match self.rest.peek() {
            Some('?') => (0, 1),
            Some('*') => (0, REPEATS_MAX),
            Some('+') => (1, REPEATS_MAX),
            Some('{') => return self.counted(),
            _ => return Some((1, 1)),
        };
        self.rest.next();
        // A lazy quantifier matches the same strings.
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
