//! Debug.
fn main() {
    let rules = refrain_lint::Rules::built_in().unwrap();
    let paths: Vec<std::path::PathBuf> = std::env::args().skip(1).map(Into::into).collect();
    let limits = refrain_lint::Limits::default();
    let r = refrain_lint::lint(&paths, &rules, &limits).unwrap();
    for f in &r.findings {
        println!(
            "{}:{}:{} {} {} | {} | {}",
            f.path,
            f.line,
            f.column,
            f.severity,
            f.rule,
            f.note,
            f.source.trim()
        );
    }
    println!(
        "{} files {} lines {} others {} tests {} findings; notes {:?}",
        r.files,
        r.lines,
        r.other_files,
        r.test_files,
        r.findings.len(),
        r.notes.len()
    );
}
