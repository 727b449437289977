//! The words of a command line, as far as examples need them: quotes, comments, and the symbols that end a command.

/// Lines joined where one ends with a backslash or within quotes, each with the number of lines before it.
pub(super) fn joined(lines: &[&str]) -> Vec<(usize, String)> {
    let mut whole: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (at, line) in lines.iter().enumerate() {
        let part = line.strip_suffix('\\');
        let text = part.unwrap_or(line);
        match whole.last_mut().filter(|_| goes_on) {
            Some((_, before)) => before.push_str(text),
            None => whole.push((at, text.into())),
        }
        let is_quoted = |(_, line): &(usize, String)| matches!(arguments(line), Some(Err(_)));
        goes_on = part.is_some() || whole.last().is_some_and(is_quoted);
    }
    whole
}

/// The words up to a comment, a pipe, a redirection or the next command; `None` if a quote is not closed.
pub(super) fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars().peekable();
    while let Some(symbol) = chars.next() {
        match symbol {
            ' ' | '\t' => words.extend(word.take()),
            '#' if word.is_none() => break,
            '|' | '>' | '&' | ';' => break,
            '\'' | '"' => {
                let within = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        end if end == symbol => break,
                        '\\' if symbol == '"' => within.push(chars.next()?),
                        inside => within.push(inside),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(chars.next()?),
            symbol => word.get_or_insert_default().push(symbol),
        }
    }
    words.extend(word);
    Some(words)
}

/// The arguments, with `refrain` first, if this line runs the command; `cargo run … --` counts, too.
pub(super) fn arguments(line: &str) -> Option<Result<Vec<String>, String>> {
    let line = line.trim();
    let line = line.strip_prefix("$ ").unwrap_or(line);
    let is_run = |line: &str| {
        let words = line.split_whitespace();
        let mut words = words.skip_while(|word| is_assignment(word));
        match (words.next(), words.next()) {
            (Some("refrain"), Some(_)) => true,
            (Some("cargo"), Some("run")) => line.contains(" -- "),
            _ => false,
        }
    };
    if !is_run(line) {
        return None;
    }
    let Some(words) = words(line) else {
        return Some(Err("a quote is left open".into()));
    };
    let run = words.iter().skip_while(|word| is_assignment(word));
    let run: Vec<_> = run.cloned().collect();
    // The arguments start after the command itself, or after cargo's `--`.
    let first = match run.first().map(String::as_str) {
        Some("cargo") => run.iter().position(|word| word == "--"),
        _ => Some(0),
    };
    let rest = run.into_iter().skip(first.unwrap_or_default() + 1);
    let arguments = std::iter::once("refrain".to_owned()).chain(rest).collect();
    Some(Ok(arguments))
}

fn is_assignment(word: &str) -> bool {
    let name = word.split_once('=').map_or("", |(name, _)| name);
    !name.is_empty() && name.bytes().all(|it| it.is_ascii_uppercase() || it == b'_')
}

#[test]
fn words_are_those_of_a_shell() {
    let cases = [
        ("refrain demo    # shows it", vec!["refrain", "demo"]),
        (
            "$ A=b refrain verify --op 'POST /x' --body \"{\\\"a\\\":1}\" > out",
            vec![
                "refrain",
                "verify",
                "--op",
                "POST /x",
                "--body",
                "{\"a\":1}",
            ],
        ),
        (
            "cargo run --release -- demo --once",
            vec!["refrain", "demo", "--once"],
        ),
    ];
    for (line, expected) in cases {
        assert_eq!(arguments(line).unwrap().unwrap(), expected);
    }
    assert!(arguments("curl -i localhost").is_none());
    assert!(arguments("refrain key --entity 'a").unwrap().is_err());
    let lines = joined(&["refrain a \\", "  --b", "refrain c 'd", "e'"]);
    assert_eq!(
        lines,
        [(0, "refrain a   --b".into()), (2, "refrain c 'de'".into())]
    );
}
