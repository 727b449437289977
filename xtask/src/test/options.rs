//! Command-line options of `cargo xtask test`; the rest is passed to `cargo test`.

/// Parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// Number of test runs.
    pub(super) repeat: u32,
    /// Whether all cores are kept busy meanwhile.
    pub(super) busy: bool,
    /// Arguments for cargo.
    pub(super) cargo: Vec<String>,
}

impl Options {
    /// Extracts our own options, in any position before `--`.
    pub(super) fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self {
            repeat: 1,
            busy: false,
            cargo: Vec::new(),
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.split_once('=') {
                _ if argument == "--" => {
                    options.cargo.push(argument.clone());
                    options.cargo.extend(rest.cloned());
                    break;
                }
                _ if argument == "--busy" => options.busy = true,
                _ if argument == "--repeat" => options.repeat = count(rest.next())?,
                Some(("--repeat", number)) => options.repeat = count(Some(number))?,
                _ => options.cargo.push(argument.clone()),
            }
        }
        Ok(options)
    }
}

/// Returns whether these arguments for cargo name a package. Cargo would ignore it beside `--workspace`.
pub(super) fn names_package(arguments: &[String]) -> bool {
    let ours = arguments.iter().take_while(|argument| *argument != "--");
    let is_package =
        |argument: &str| argument.starts_with("--package") || argument.starts_with("-p");
    ours.map(String::as_str).any(is_package)
}

fn count(number: Option<impl AsRef<str>>) -> Result<u32, String> {
    let number = number.as_ref().map_or("", AsRef::as_ref);
    match number.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(format!(
            "invalid number of runs `{number}`; write a positive number, such as --repeat 5"
        )),
    }
}

#[cfg(test)]
mod tests {
    //! An option passed to cargo by mistake fails the run; an argument swallowed by mistake drops a test filter.

    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        let arguments: Vec<String> = line.split_whitespace().map(ToOwned::to_owned).collect();
        Options::parse(&arguments)
    }

    #[track_caller]
    fn check(line: &str, repeat: u32, busy: bool, cargo: &str) {
        let cargo = cargo.split_whitespace().map(ToOwned::to_owned).collect();
        let expected = Options {
            repeat,
            busy,
            cargo,
        };
        assert_eq!(parse(line), Ok(expected), "{line}");
    }

    #[test]
    fn own_options_are_removed_and_the_rest_is_forwarded() {
        check("", 1, false, "");
        check("--repeat 5", 5, false, "");
        check("--repeat=3 --busy", 3, true, "");
        check("-p refrain --busy keys", 1, true, "-p refrain keys");
        check(
            "kill --repeat 2 -- --nocapture",
            2,
            false,
            "kill -- --nocapture",
        );
        check("-- --busy --repeat 2", 1, false, "-- --busy --repeat 2");
    }

    #[test]
    fn package_is_found_before_the_arguments_of_the_tests() {
        for (line, expected) in [
            ("", false),
            ("keys -- -p", false),
            ("-p refrain", true),
            ("-prefrain keys", true),
            ("keys --package=refrain -- --nocapture", true),
        ] {
            let parsed = parse(line).unwrap();
            assert_eq!(names_package(&parsed.cargo), expected, "{line}");
        }
    }

    #[test]
    fn rejects_invalid_number_of_runs() {
        for line in [
            "--repeat",
            "--repeat 0",
            "--repeat=",
            "--repeat many",
            "--repeat -1",
        ] {
            assert!(
                parse(line).is_err_and(|problem| problem.contains("--repeat 5")),
                "{line}"
            );
        }
    }
}
