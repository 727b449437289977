//! Checks that every page is in the table of contents exactly once.

use std::{fs, path::Path};

const SUMMARY: &str = "SUMMARY.md";

/// Returns the pages that are missing from `SUMMARY.md` or listed twice. mdbook itself checks that listed pages exist.
pub(super) fn check(sources: &Path) -> Result<Vec<String>, String> {
    let path = sources.join(SUMMARY);
    let summary =
        fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(compare(&summary, &super::files(sources, ".md")?))
}

fn compare(summary: &str, pages: &[String]) -> Vec<String> {
    let named: Vec<&str> = summary
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .collect();
    let count = |page: &str| named.iter().filter(|name| **name == page).count();
    let pages = pages.iter().filter(|page| *page != SUMMARY);
    let findings = pages.filter_map(|page| match count(page) {
        0 => Some(format!(
            "docs/{page}: missing in the table of contents; add a line to docs/{SUMMARY}"
        )),
        1 => None,
        times => Some(format!(
            "docs/{SUMMARY}: {page} is listed {times} times; keep one line"
        )),
    });
    findings.collect()
}

#[cfg(test)]
mod tests {
    //! Readers do not find a page that the table of contents omits.

    #[test]
    fn pages_that_are_missing_or_there_twice_are_found() {
        let pages = ["SUMMARY.md", "a.md", "b/c.md", "d.md"].map(String::from);
        let summary = "# Summary\n\n[A](a.md)\n\n- [D](d.md)\n  - [D again](d.md)\n";
        let found = super::compare(summary, &pages);
        assert_eq!(
            found,
            [
                "docs/b/c.md: missing in the table of contents; add a line to docs/SUMMARY.md",
                "docs/SUMMARY.md: d.md is listed 2 times; keep one line"
            ]
        );
        let summary = "[A](a.md)\n- [C](b/c.md)\n- [D](d.md)\n";
        assert!(super::compare(summary, &pages).is_empty());
    }
}
