//! A lint run: parses and lowers every file, then analyses each with facts of the whole project.

use std::{
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use ast_grep_core::{AstGrep, tree_sitter::StrDoc};

use crate::{
    analyses::{self, Hit},
    file::File,
    finding::{Finding, Report},
    item::Span,
    lower::lower,
    predicate,
    project::Project,
    rule::{Rule, Rules, Severity},
    suppress::{self, Allow},
    walk::{self, Limits, NoSuchPath, Source},
};

/// Maximum number of threads.
const THREADS_MAX: usize = 8;

/// A match of a pattern; its predicates are checked when the project is complete.
#[derive(Debug)]
struct Fit {
    rule: usize,
    pattern: usize,
    span: Span,
}

/// Analyses all files under the paths.
///
/// # Errors
///
/// When a path cannot be read.
pub fn lint(paths: &[PathBuf], rules: &Rules, limits: &Limits) -> Result<Report, NoSuchPath> {
    let mut report = Report::default();
    let sources = walk::files(paths, limits, &mut report)?;
    let read = each(&sources, |source| match source {
        Source::Sql(path) => walk::read(path, limits).map(Read::Sql),
        Source::Code(path, lang) => {
            let text = walk::read(path, limits)?;
            let name = path.display().to_string();
            let name = name.strip_prefix("./").unwrap_or(&name).to_string();
            source_file(name, *lang, text, rules)
        }
    });
    let (mut files, mut fits, mut sql) = (Vec::new(), Vec::new(), Vec::new());
    for read in read {
        match read {
            Ok(Read::Code(file, found)) => {
                files.push(file);
                fits.push(found);
            }
            Ok(Read::Sql(text)) => sql.push(text),
            Err(note) => report.notes.push(note),
        }
    }
    judge_all(files, &fits, &sql, rules, &mut report);
    Ok(report)
}

/// Analyses texts in memory as one project.
#[must_use]
pub fn lint_texts(texts: &[(&str, &str)], rules: &Rules) -> Report {
    let mut report = Report::default();
    let (mut files, mut fits, mut sql) = (Vec::new(), Vec::new(), Vec::new());
    for (name, text) in texts {
        let Some(lang) = crate::Lang::of(std::path::Path::new(name)) else {
            sql.push((*text).to_string());
            continue;
        };
        match source_file((*name).into(), lang, (*text).into(), rules) {
            Ok(Read::Code(file, found)) => {
                files.push(file);
                fits.push(found);
            }
            Ok(Read::Sql(_)) => {}
            Err(note) => report.notes.push(note),
        }
    }
    judge_all(files, &fits, &sql, rules, &mut report);
    report
}

enum Read {
    Code(File, Vec<Fit>),
    Sql(String),
}

fn source_file(
    name: String,
    lang: crate::Lang,
    text: String,
    rules: &Rules,
) -> Result<Read, String> {
    if is_packed(&text) {
        return Err(format!("{name}: minified or generated, skipped"));
    }
    let doc = StrDoc::try_new(&text, lang).map_err(|error| format!("{name}: {error}"))?;
    let items = lower(lang, &text, &doc.tree);
    let fits = fits(rules, lang, doc);
    Ok(Read::Code(File::new(name, lang, text, items), fits))
}

/// Whether the text is minified or generated: the average line is longer than 400 bytes.
fn is_packed(text: &str) -> bool {
    const LINE_BYTES_MAX: usize = 400;
    text.len() > 20_000 && text.len() / text.lines().count().max(1) > LINE_BYTES_MAX
}

/// Matches of all patterns in a file.
fn fits(rules: &Rules, lang: crate::Lang, doc: StrDoc<crate::Lang>) -> Vec<Fit> {
    let tree = AstGrep::doc(doc);
    let root = tree.root();
    let text = root.text();
    let mut fits = Vec::new();
    for (rule, it) in rules
        .rules
        .iter()
        .enumerate()
        .filter(|(_, it)| it.is_for(lang))
    {
        for (at, pattern) in it.patterns.iter().enumerate() {
            let compiled = pattern
                .compiled
                .iter()
                .filter(|(of, compiled)| *of == lang && text.contains(&*compiled.fixed_string()));
            for (_, compiled) in compiled {
                fits.extend(root.find_all(compiled).map(|found| Fit {
                    rule,
                    pattern: at,
                    span: found.range(),
                }));
            }
        }
    }
    fits
}

fn judge_all(
    files: Vec<File>,
    fits: &[Vec<Fit>],
    sql: &[String],
    rules: &Rules,
    report: &mut Report,
) {
    report.files = files.len();
    report.lines = files.iter().map(|file| file.text.lines().count()).sum();
    let project = Project::new(files, sql, rules.words.clone());
    let indexes: Vec<usize> = (0..project.files.len()).collect();
    for (findings, allowed, notes) in
        each(&indexes, |file| judge(&project, *file, &fits[*file], rules))
    {
        report.findings.extend(findings);
        report.allowed += allowed;
        report.notes.extend(notes);
    }
    report.findings.sort();
    report
        .findings
        .dedup_by(|a, b| (&a.path, a.line, &a.rule) == (&b.path, b.line, &b.rule));
}

/// Calls a function for every element on several threads; the results keep the order.
fn each<T: Sync, R: Send>(all: &[T], run: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(THREADS_MAX);
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(all.len()));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(one) = all.get(at) else {
                        break;
                    };
                    let result = run(one);
                    done.lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .push((at, result));
                }
            });
        }
    });
    let mut done = done
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Findings of a file, the number of allowed ones, and notes for the report.
fn judge(
    project: &Project,
    file: usize,
    fits: &[Fit],
    rules: &Rules,
) -> (Vec<Finding>, usize, Vec<String>) {
    let source = &project.files[file];
    let mut found = Vec::new();
    for rule in rules.rules.iter().filter(|rule| rule.is_for(source.lang)) {
        if let Some(analysis) = rule.analysis.as_deref().and_then(analyses::named) {
            found.extend(
                analysis(project, file)
                    .iter()
                    .map(|hit| finding(source, rule, hit)),
            );
        }
    }
    for fit in fits {
        let rule = &rules.rules[fit.rule];
        let pattern = &rule.patterns[fit.pattern];
        let mentioned = pattern.mentions.is_empty()
            || pattern
                .mentions
                .iter()
                .any(|word| source.lower.contains(word.as_str()));
        let excused = pattern
            .unless
            .iter()
            .any(|word| source.lower.contains(word.as_str()));
        if mentioned && !excused && predicate::holds(project, file, &fit.span, &pattern.when) {
            let hit = Hit {
                at: fit.span.start,
                severity: pattern.severity,
                note: pattern.note.clone(),
            };
            found.push(finding(source, rule, &hit));
        }
    }
    let allows = suppress::allows(source);
    let before = found.len();
    found.retain(|it| !allows.iter().any(|allow| allow.covers(&it.rule, it.line)));
    let allowed = before - found.len();
    (found, allowed, notes(source, &allows, rules))
}

/// Notes about suppression comments without a reason or with an unknown rule.
fn notes(file: &File, allows: &[Allow], rules: &Rules) -> Vec<String> {
    let mut notes = Vec::new();
    for allow in allows {
        let place = format!("{}:{}", file.path, allow.line);
        if !allow.has_reason {
            notes.push(format!(
                "{place}: an allow comment without a reason has no effect; add a reason"
            ));
        }
        let is_known =
            |name: &String| name == suppress::ALL || rules.rules.iter().any(|it| it.id == *name);
        for name in allow.rules.iter().filter(|name| !is_known(name)) {
            notes.push(format!(
                "{place}: unknown rule `{name}`, so this comment has no effect; `refrain lint --list` prints the rules"
            ));
        }
    }
    notes
}

fn finding(file: &File, rule: &Rule, hit: &Hit) -> Finding {
    let before = &file.text[..hit.at.min(file.text.len())];
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = file.text[start..].lines().next().unwrap_or_default();
    Finding {
        path: file.path.clone(),
        line: before.matches('\n').count() + 1,
        column: before[start..].chars().count() + 1,
        rule: rule.id.clone(),
        severity: hit
            .severity
            .unwrap_or(rule.severity)
            .min(rule.severity.max(Severity::Hint)),
        title: rule.title.clone(),
        note: hit.note.clone(),
        why: rule.why.clone(),
        fix: rule.fix.clone(),
        link: rule.link.clone(),
        source: line.chars().take(300).collect(),
    }
}
