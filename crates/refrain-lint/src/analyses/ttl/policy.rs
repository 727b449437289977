//! Retry window of a file: how long its retry policy keeps retrying.

use super::duration::{has_unit, seconds, unit_of_name, without_unit};
use crate::{
    file::File,
    item::{Role, Span},
    language::Lang,
    names,
};

/// The longest retry window of a file in seconds, with the name of its policy.
pub(super) fn window(file: &File) -> Option<(f64, String)> {
    let mut found = sidekiq(file)
        .into_iter()
        .chain(direct_windows(file))
        .chain(window_of_attempts(file))
        .chain(windows_of_delays(file))
        .collect::<Vec<_>>();
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.into_iter().next()
}

/// Names with values: assignments, pairs, and calls with the value as first argument.
fn settings(file: &File) -> Vec<(String, Span)> {
    let mut all = Vec::new();
    for item in &file.items {
        match item.role {
            Role::Assign | Role::Pair => all.push((item.name.clone(), item.value.clone())),
            Role::Call if !item.args.is_empty() && item.args[0].name.is_empty() => {
                all.push((item.tail().into(), item.args[0].span.clone()));
            }
            _ => {}
        }
    }
    all
}

/// Windows that are given directly: "retry for three days".
fn direct_windows(file: &File) -> Vec<(f64, String)> {
    let words = [
        "retrywindow",
        "retryfor",
        "maxelapsed",
        "stopafterdelay",
        "retryuntil",
        "giveupafter",
        "maxretrytime",
        "retryduration",
        "retryperiod",
        "maxtime",
        "redeliveryfor",
        "retriesfor",
    ];
    let all = settings(file)
        .into_iter()
        .filter(|(name, _)| words.iter().any(|word| name.contains(word)));
    all.filter_map(|(name, span)| {
        let text = file.low(&span);
        let unit = [("hours", 3_600.0), ("days", 86_400.0), ("minutes", 60.0)]
            .iter()
            .find(|(end, _)| name.ends_with(end))
            .map_or(1.0, |(_, unit)| *unit);
        let value = seconds(text)?;
        let millis = name.ends_with("ms") || name.ends_with("millis");
        Some((
            value * unit * if millis { 0.001 } else { 1.0 },
            format!("`{name}`"),
        ))
    })
    .collect()
}

/// Windows as a list of delays: "after a minute, after an hour, after a day".
fn windows_of_delays(file: &File) -> Vec<(f64, String)> {
    let words = [
        "retrydelays",
        "retryschedule",
        "backoffschedule",
        "retryintervals",
        "retrybackoffs",
        "retrysteps",
    ];
    let all = settings(file);
    let lists = all
        .iter()
        .filter(|(name, _)| words.contains(&without_unit(name)));
    lists
        .filter_map(|(name, span)| {
            let text = file.low(span);
            let inside = &text[text.find(['[', '(', '{'])? + 1..];
            let parts: Vec<f64> = inside
                .split(',')
                .filter_map(|it| {
                    seconds(it.trim_matches(['[', ']', '(', ')', '{', '}', ';', ' ', '\n']))
                })
                .collect();
            let unit = unit_of_name(name)
                .filter(|_| !has_unit(text))
                .unwrap_or(1.0);
            (parts.len() > 1).then(|| (parts.iter().sum::<f64>() * unit, format!("`{name}`")))
        })
        .collect()
}

/// Window as number and delay: "ten times, an hour apart".
fn window_of_attempts(file: &File) -> Option<(f64, String)> {
    let all = settings(file);
    let attempts = [
        "maxretries",
        "maxattempts",
        "attempts",
        "tries",
        "retries",
        "maxtries",
        "stopafterattempt",
        "setretrycount",
        "maxretryattempts",
        "retryattempts",
        "retrycount",
        "maxretrycount",
        "retrylimit",
        "retrymax",
        "maxretry",
        "numretries",
        "maxdeliveries",
    ];
    let delays = [
        "defaultretrydelay",
        "retrydelay",
        "countdown",
        "delay",
        "backoff",
        "retrybackoffmax",
        "waitfixed",
        "wait",
        "interval",
        "retryinterval",
        "retrywait",
        "setretrywaittime",
        "retryafter",
        "retrybackoff",
        "basedelay",
        "backoffdelay",
        "retrybackoffdelay",
        "retrywaitmax",
        "retrypause",
    ];
    let number =
        |span: &Span| seconds(file.low(span)).filter(|it| *it >= 1.0 && !has_unit(file.low(span)));
    let times = all
        .iter()
        .filter(|(name, _)| attempts.contains(&name.as_str()))
        .filter_map(|(_, span)| number(span))
        .fold(0.0, f64::max);
    let mut wait = 0.0_f64;
    for (name, span) in all
        .iter()
        .filter(|(name, _)| delays.contains(&without_unit(name)))
    {
        let text = file.low(span);
        let list = text.trim_start_matches("array(").starts_with('[').then(|| {
            text.split(',')
                .filter_map(|it| seconds(it.trim_matches(['[', ']', ' '])))
                .fold(0.0, f64::max)
        });
        let value = list.or_else(|| seconds(text)).unwrap_or(0.0);
        let is_millis = matches!(
            file.lang,
            Lang::JavaScript | Lang::TypeScript | Lang::Tsx | Lang::Java
        ) && !has_unit(text);
        let unit = match unit_of_name(name).filter(|_| !has_unit(text)) {
            Some(unit) => unit,
            None if is_millis => 0.001,
            None => 1.0,
        };
        wait = wait.max(value * unit);
    }
    if times < 2.0 || wait <= 0.0 {
        return None;
    }
    let exponential = names::has_any(&file.lower, &["*exponential", "multiplier"]);
    let factor = if exponential {
        2_f64.powf((times - 1.0).min(24.0)) - 1.0
    } else {
        times - 1.0
    };
    Some((wait * factor, format!("a policy of {times:.0} attempts")))
}

/// Window of Sidekiq: before retry n it waits n^4 + 15 seconds; 25 retries by default.
fn sidekiq(file: &File) -> Option<(f64, String)> {
    if !names::has_any(&file.lower, &["*sidekiq::job", "*sidekiq::worker"]) {
        return None;
    }
    let set = file
        .lower
        .split("sidekiq_options")
        .nth(1)
        .and_then(|rest| rest.lines().next())
        .and_then(|line| line.split("retry:").nth(1));
    let count = match set.map(str::trim) {
        None => 25.0,
        Some(text) if text.starts_with("false") => return None,
        Some(text) if text.starts_with("true") => 25.0,
        Some(text) => text
            .chars()
            .take_while(char::is_ascii_digit)
            .collect::<String>()
            .parse()
            .ok()?,
    };
    let mut total = 0.0;
    let mut at = 0.0_f64;
    while at < count {
        total += at.powi(4) + 15.0;
        at += 1.0;
    }
    Some((total, format!("Sidekiq with {count:.0} retries")))
}
