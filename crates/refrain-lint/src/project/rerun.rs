//! Finds code that is rerun: retry loops, closures passed to a retrier, jobs, message handlers, and their callees.

use super::Project;
use crate::{file::File, item::Role, language::Lang, names};

const RETRY_LOOP: &str = "a retry loop";

/// Why an item is rerun, and by which enclosing item.
#[derive(Clone, Debug)]
pub(crate) struct Rerun {
    /// Reason in the words of a finding: "a retry loop".
    pub(crate) why: String,
    /// Index of the item that is rerun, if it is in the same file.
    pub(crate) around: usize,
    /// Whether the rerun is visible in the source itself: a retry loop, `retry`, or a recursive retry.
    pub(crate) is_loop: bool,
}

impl Project {
    /// What reruns an item, or `None`.
    pub(crate) fn rerun(&self, file: usize, item: usize) -> Option<Rerun> {
        let source = &self.files[file];
        for at in source.around(item) {
            let found = match source.items[at].role {
                Role::Loop => self
                    .retry_loop(source, at)
                    .then(|| Rerun::of(RETRY_LOOP, at, true)),
                Role::Try => {
                    reruns_itself(source, at).then(|| Rerun::of("`retry` in its rescue", at, true))
                }
                Role::Function => self.rerun_function(file, at),
                _ => None,
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn rerun_function(&self, file: usize, function: usize) -> Option<Rerun> {
        let source = &self.files[file];
        let item = &source.items[function];
        if source.lang == Lang::Ruby && reruns_itself(source, function) {
            return Some(Rerun::of("`retry` in its rescue", function, true));
        }
        if calls_itself_again(source, function) {
            return Some(Rerun::of("it calls itself", function, true));
        }
        if let Some(why) = self.handed_to_retrier(file, function) {
            let is_loop = why == RETRY_LOOP;
            return Some(Rerun::of(&why, function, is_loop));
        }
        if let Some(word) = self
            .words
            .rerun_attributes
            .iter()
            .find(|word| names::has(&item.base, word))
        {
            return Some(Rerun::of(
                &format!("the function is marked `{}`", word.trim_matches('*')),
                function,
                false,
            ));
        }
        if let Some(why) = self.job(source, function) {
            return Some(Rerun::of(&why, function, false));
        }
        self.rerun.get(&(file, function)).cloned().map(|mut it| {
            it.around = function;
            it
        })
    }

    /// Reason, if the function is a closure passed to a call that retries.
    fn handed_to_retrier(&self, file_at: usize, function: usize) -> Option<String> {
        let file = &self.files[file_at];
        let parent = file.items[function].parent;
        let mut at = parent;
        while matches!(file.items[at].role, Role::Pair) && file.items[at].parent != at {
            at = file.items[at].parent;
        }
        let call = &file.items[at];
        if call.role != Role::Call || at == function {
            return None;
        }
        let counted = matches!(call.tail(), "times" | "loop" | "upto" | "step");
        let body = file.low(&file.items[function].span);
        if counted {
            let says = names::has_any(body, &["attempt", "*retr", "tries"]);
            return says.then(|| RETRY_LOOP.into());
        }
        if names::fits_any(&call.name, &self.words.job_runners) {
            return Some(format!("a job of `{}` is retried when it fails", call.name));
        }
        let retries = names::fits_any(&call.name, &self.words.retriers)
            || self
                .callees(file_at, at)
                .iter()
                .any(|(file, helper)| self.reruns_param(*file, *helper));
        retries.then(|| format!("it is passed to `{}`", call.name))
    }

    /// Whether a helper calls one of its parameters in a retry loop.
    fn reruns_param(&self, file: usize, helper: usize) -> bool {
        let source = &self.files[file];
        let item = &source.items[helper];
        let loops = source
            .within(&item.value)
            .filter(|at| source.items[*at].role == Role::Loop && self.retry_loop(source, *at));
        loops.into_iter().any(|at| {
            source.calls(&source.items[at].span).any(|call| {
                let name = &source.items[call].name;
                let first = name.split('.').next().unwrap_or_default();
                let rest = name.get(first.len()..).unwrap_or_default();
                let runs = matches!(rest, "" | ".call" | ".get" | ".run" | ".apply" | ".execute");
                runs && item.args.iter().any(|arg| arg.name == first)
            })
        })
    }

    /// Reason, if the function is a method of a class that a job framework reruns.
    fn job(&self, file: &File, function: usize) -> Option<String> {
        let item = &file.items[function];
        let method = self.words.job_methods.contains(&item.name);
        let class = file.nearest(function, Role::Class)?;
        if !method || file.function(function).is_some() {
            return None;
        }
        let text = preamble(file, class);
        let word = self
            .words
            .job_classes
            .iter()
            .find(|word| names::has(&text, word))?;
        Some(format!(
            "a job (`{}`) is retried when it fails",
            word.trim_matches('*')
        ))
    }

    /// Whether a loop retries the same operation, and does not continue with the next one.
    pub(crate) fn retry_loop(&self, file: &File, at: usize) -> bool {
        let item = &file.items[at];
        let head = file.low(&item.value);
        if names::has_any(head, &["attempt", "*retr", "*tries", "backoff"]) {
            return true;
        }
        let text = file.low(&item.span);
        if is_for_each(file, at) || names::has_any(text, &self.words.polls) {
            return false;
        }
        let tries = names::has_any(text, &["attempt", "*retr", "*tries", "backoff"]);
        let sleeps = names::has_any(
            text,
            &["*sleep", "*delay", "*backoff", "settimeout", "time.after"],
        );
        let catches = file
            .within(&item.span)
            .any(|it| matches!(file.items[it].role, Role::Catch))
            || names::has_any(text, &["err ", "err(", "err{", "error"]);
        let counted = leaves_counted(file, at);
        catches && (tries || sleeps || counted) || sleeps && counted
    }

    /// Functions that a call causes to be rerun: callees of rerun code, and functions passed to a retrier.
    pub(super) fn spread_call(&self, file: usize, call: usize) -> Vec<((usize, usize), Rerun)> {
        let source = &self.files[file];
        let item = &source.items[call];
        let mut found = Vec::new();
        let told = ["retry", "retries", "maxretries", "attempts"];
        let is_told = item
            .args
            .iter()
            .any(|arg| told.contains(&arg.name.as_str()));
        let runs_jobs = names::fits_any(&item.name, &self.words.job_runners);
        if is_told || runs_jobs || names::fits_any(&item.name, &self.words.retriers) {
            for arg in &item.args {
                let text = source.text[arg.span.clone()].trim_start_matches('&');
                let plain = !text.contains(['(', ' ', '"', '\'']);
                let name = names::path(text);
                let name = name.rsplit('.').next().unwrap_or_default();
                if plain && !name.is_empty() {
                    let why = format!("it is passed to `{}`", item.name);
                    let it = self.named(file, name).into_iter();
                    found.extend(it.map(|at| (at, Rerun::of(&why, 0, false))));
                }
            }
        }
        // `send.retry(policy)` reruns the closure `send`.
        if item.tail().starts_with("retry") && !item.base.is_empty() && !item.base.contains('.') {
            let why = format!("it is passed to `{}`", item.name);
            let own = self.named(file, &item.base).into_iter();
            found.extend(
                own.filter(|(at, _)| *at == file)
                    .map(|at| (at, Rerun::of(&why, 0, false))),
            );
        }
        let callees = self.callees(file, call);
        if callees.is_empty() {
            return found;
        }
        if let Some(rerun) = self.rerun(file, call) {
            let who = source
                .method(call)
                .map_or("", |at| source.items[at].name.as_str());
            let why = match rerun.is_loop {
                true => format!("`{who}` calls it in a retry loop"),
                false => format!("`{who}` calls it, and is retried"),
            };
            found.extend(
                callees
                    .into_iter()
                    .map(|at| (at, Rerun::of(&why, 0, false))),
            );
        }
        found
    }
}

/// Whether the loop has few iterations and ends on success: `for i in range(3)` with a `return` after the call.
fn leaves_counted(file: &File, at: usize) -> bool {
    const TURNS_MAX: u32 = 12;
    let item = &file.items[at];
    let head = file.low(&item.value);
    let numbers = head.split(|c: char| !c.is_ascii_digit());
    let most = numbers.filter_map(|it| it.parse::<u32>().ok()).max();
    let few = most.is_some_and(|most| (2..=TURNS_MAX).contains(&most));
    few && file.within(&item.span).any(|it| {
        let inside = &file.items[it];
        let leaves = inside.role == Role::Return
            || inside.role == Role::Exit && file.low(&inside.span).starts_with("break");
        leaves
            && file
                .around(it)
                .take_while(|it| *it != at)
                .all(|it| !matches!(file.items[it].role, Role::Catch | Role::Function))
    })
}

impl Rerun {
    fn of(why: &str, around: usize, is_loop: bool) -> Self {
        Self {
            why: why.into(),
            around,
            is_loop,
        }
    }
}

/// Ruby: whether a rescue of this block itself calls `retry`.
fn reruns_itself(file: &File, at: usize) -> bool {
    let item = &file.items[at];
    (at + 1..item.last).any(|inside| {
        file.items[inside].role == Role::Rerun && {
            let owner = file.around(inside).find(|it| {
                let role = file.items[*it].role;
                matches!(role, Role::Try | Role::Function)
            });
            owner == Some(at)
        }
    })
}

/// Whether a function retries by calling itself with an attempt counter.
fn calls_itself_again(file: &File, function: usize) -> bool {
    let item = &file.items[function];
    let words = ["attempt", "*retr", "*tries"];
    let counts = item
        .args
        .iter()
        .any(|arg| names::has_any(&arg.name, &words));
    counts
        && !item.name.is_empty()
        && file.calls(&item.value).any(|call| {
            let it = &file.items[call];
            it.tail() == item.name && names::has_any(file.low(&it.value), &words)
        })
}

/// Whether the loop iterates over a collection, not over numbers.
fn is_for_each(file: &File, at: usize) -> bool {
    let head = file.low(&file.items[at].value);
    match file.lang {
        Lang::Python => head.starts_with("for") && !names::has_any(head, &["range(", "count("]),
        Lang::JavaScript | Lang::TypeScript | Lang::Tsx => names::has_any(head, &[" of ", " in "]),
        Lang::Go => head.contains("range "),
        Lang::Java => head.contains(" : ") && !head.contains(';'),
        Lang::Rust => head.starts_with("for") && !head.contains(".."),
        Lang::Ruby => head.starts_with("for"),
        Lang::Php => head.starts_with("foreach"),
    }
}

/// Lower-case text of a class without its methods: its head, includes and fields.
pub(super) fn preamble(file: &File, class: usize) -> String {
    let item = &file.items[class];
    let mut text = item.base.clone();
    let mut from = item.span.start;
    for at in class + 1..item.last {
        let inside = &file.items[at];
        let is_method = inside.role == Role::Function
            && file.nearest(at, Role::Class) == Some(class)
            && file.function(at).is_none();
        if is_method && inside.span.start >= from {
            text.push_str(file.low(&(from..inside.span.start)));
            from = inside.span.end;
        }
    }
    text.push_str(file.low(&(from..item.span.end)));
    text
}
