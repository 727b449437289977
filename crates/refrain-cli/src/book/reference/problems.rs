//! The problem codes, with the tables and headings of their pages.

use refrain::http::Code;

use super::{cell, check};

#[test]
fn problem_codes() {
    let mut page = String::from(
        "# Problem codes\n\n\
         Refrain's own responses are `application/problem+json`: `code` names the problem, `advice` what the client should do, and `type` links to the page of the problem.\n\
         `refrain explain CODE` prints the same page.\n\n\
         | code | status | advice | what happened |\n|---|---|---|---|\n",
    );
    for code in Code::ALL {
        let heading = code.page().lines().next().unwrap().trim_start_matches("# ");
        let rows: Vec<Vec<&str>> = rows(code.page());
        assert!(!rows.is_empty(), "{}: no table of answers", code.code());
        for row in rows {
            let [status, named, advice] = row[..] else {
                panic!("{}: a row of {} cells", code.code(), row.len());
            };
            assert_eq!(named, format!("`{}`", code.code()));
            page += &format!(
                "| [`{0}`](../problems/{0}.md) | {status} | {advice} | {1} |\n",
                code.code(),
                cell(heading)
            );
        }
    }
    check("problems.md", &page);
}

/// The rows of the first table.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let table = page.lines().skip_while(|line| !line.starts_with('|'));
    let rows = table.take_while(|line| line.starts_with('|')).skip(2);
    let cells = rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect());
    cells.collect()
}
