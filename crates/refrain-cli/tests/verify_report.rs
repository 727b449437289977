//! The HTML report must be readable on every screen and on paper.
//!
//! Well-formed markup may still be unreadable: text wider than the window, a chart without bars, dark text on a dark
//! page. So the page is opened in Chromium, measured and photographed. The pictures stay in the target folder for
//! inspection.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod browser;
mod support;
mod verify_support;

use std::{collections::HashMap, fs, path::Path};

use browser::Browser;
use serde_json::{Value, json};
use verify_support::{arguments, naive, run};

const CASES: [&str; 8] = [
    "sequential-duplicate",
    "concurrent-duplicates",
    "lost-answer",
    "duplicate-in-flight",
    "other-credential",
    "key-missing",
    "replay-marked",
    "kill-mid-request",
];

/// Height of the pictures: the table and the first cases.
const HEIGHT: u32 = 2_000;

type Colour = [u8; 3];

/// Colours of the background, of failures and of passes.
const LIGHT: [Colour; 3] = [[0xf6, 0xf7, 0xf9], [0xc6, 0x28, 0x28], [0x2e, 0x7d, 0x32]];
const DARK: [Colour; 3] = [[0x12, 0x16, 0x1c], [0xff, 0x7b, 0x72], [0x6c, 0xcf, 0x75]];

/// Everything that is measured in the page.
const MEASURES: &str = r#"(() => {
    const all = [...document.querySelectorAll('main, main *')].filter(it => !it.closest('thead'));
    const seen = it => it.checkVisibility() && it.getBoundingClientRect().height > 0;
    const box = it => it.getBoundingClientRect();
    const pair = [...document.querySelectorAll('.pair')].find(seen);
    const [request, answer] = pair.querySelectorAll('pre');
    return {
        rows: [...document.querySelectorAll('tbody tr')].map(it => [seen(it), it.querySelector('.verdict').textContent]),
        cards: document.querySelectorAll('.case').length,
        pictures: document.querySelectorAll('.case svg').length,
        bars: [...document.querySelectorAll('.case svg rect')].filter(it => box(it).width < 1 || box(it).height < 1).length,
        wide: all.filter(it => box(it).right > innerWidth + 0.5 || box(it).left < -0.5).map(it => it.outerHTML.slice(0, 120)),
        cut: [...document.querySelectorAll('svg text')].filter(it => box(it).right > innerWidth).map(it => it.textContent),
        scrolls: document.documentElement.scrollWidth > innerWidth,
        sideBySide: Math.abs(box(request).top - box(answer).top) < 1 && box(answer).left > box(request).right,
        letters: document.body.innerText.length,
    };
})()"#;

/// A report about an app without keys.
fn page(folder: &Path) -> String {
    let upstream = naive();
    let html = folder.join("report.html").display().to_string();
    let mut more = vec!["--html", &html];
    more.extend(CASES.iter().flat_map(|case| ["--case", case]));
    let url = format!("http://{}", upstream.address);
    let output = run(&arguments(&url, &upstream), &more);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    format!("file://{html}")
}

/// Checks that the page loads nothing but itself, without errors.
fn check_quiet(events: &[Value], url: &str) {
    let of =
        |name: &str| -> Vec<&Value> { events.iter().filter(|it| it["method"] == name).collect() };
    let asked = of("Network.requestWillBeSent");
    let asked: Vec<_> = asked
        .iter()
        .map(|it| &it["params"]["request"]["url"])
        .collect();
    assert_eq!(asked, [url]);
    for name in [
        "Log.entryAdded",
        "Runtime.consoleAPICalled",
        "Runtime.exceptionThrown",
    ] {
        assert_eq!(of(name), Vec::<&Value>::new());
    }
}

fn check_measures(measures: &Value, is_wide: bool) {
    let said = format!("{measures:#}");
    let rows = measures["rows"].as_array().unwrap();
    assert_eq!(rows.len(), CASES.len(), "{said}");
    assert!(rows.iter().all(|row| row[0] == true), "{said}");
    let many = |verdict: &str| rows.iter().filter(|row| row[1] == verdict).count();
    let counts = ["fail", "warn", "pass", "skipped"].map(many);
    assert_eq!(counts, [4, 1, 1, 2], "{said}");
    assert_eq!(
        (&measures["cards"], &measures["pictures"]),
        (&json!(5), &json!(5)),
        "{said}"
    );
    assert_eq!(measures["bars"], 0, "invisible bars: {said}");
    assert_eq!(
        (&measures["wide"], &measures["cut"]),
        (&json!([]), &json!([])),
        "{said}"
    );
    assert_eq!(measures["scrolls"], false, "{said}");
    assert_eq!(measures["sideBySide"], is_wide, "{said}");
    assert!(measures["letters"].as_u64().unwrap() > 2_000, "{said}");
}

/// Checks that the picture has the background at its edge, and enough of the failure and pass colours.
fn check_picture(bytes: &[u8], width: u32, colours: [Colour; 3]) {
    let mut reader = png::Decoder::new(std::io::Cursor::new(bytes))
        .read_info()
        .unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    let size = info.color_type.samples();
    assert_eq!((info.width, info.height), (width, HEIGHT));
    let mut seen: HashMap<Colour, usize> = HashMap::new();
    for pixel in pixels[..info.buffer_size()].chunks(size) {
        *seen.entry([pixel[0], pixel[1], pixel[2]]).or_default() += 1;
    }
    assert_eq!(pixels[..3], colours[0]);
    for colour in colours {
        let many = seen.get(&colour).copied().unwrap_or_default();
        assert!(many > 300, "{colour:02x?} is there {many} times");
    }
    assert!(seen.len() > 60, "only {} colours: no letters", seen.len());
}

#[test]
fn the_page_can_be_read_on_every_screen_and_on_paper() {
    let folder = tempfile::tempdir().unwrap();
    let url = page(folder.path());
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut browser = Browser::start();
    for (width, scheme, colours) in [
        (1280, "light", LIGHT),
        (1280, "dark", DARK),
        (390, "light", LIGHT),
        (390, "dark", DARK),
    ] {
        browser.look(width, scheme);
        let events = browser.open(&url);
        check_quiet(&events, &url);
        check_measures(&browser.evaluate(MEASURES), width > 1000);
        let picture = browser.screenshot(width, HEIGHT);
        fs::write(
            pictures.join(format!("report-{width}-{scheme}.png")),
            &picture,
        )
        .unwrap();
        check_picture(&picture, width, colours);
    }
    let printed = browser.printed();
    fs::write(pictures.join("report.pdf"), &printed).unwrap();
    assert!(
        printed.starts_with(b"%PDF-") && printed.len() > 20_000,
        "{}",
        printed.len()
    );
    let is_page = |it: &&[u8]| it.starts_with(b"/Type /Page") && !it.ends_with(b"s");
    let pages = printed.windows(12).filter(is_page).count();
    assert!((3..=16).contains(&pages), "{pages} pages");
}
