//! `Replied`: the documentation pages of problems, and their index, as Markdown or for browsers as HTML.

use std::fmt::Write as _;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, header, request::Parts};

use super::{Code, body::Body};

mod html;

/// Nothing but the style in the page itself: no script, no image, no request to anywhere.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
                                       form-action 'none'; frame-ancestors 'none'";

/// The page of one problem, or the index of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Page {
    Index,
    Problem(Code),
}

impl Page {
    fn markdown(self) -> String {
        match self {
            Self::Index => index(),
            Self::Problem(code) => code.page().into(),
        }
    }

    /// The page as HTML; `None` if its Markdown has a construct that the renderer does not know.
    fn html(self, has_index: bool) -> Option<String> {
        let own = match self {
            Self::Index => "",
            Self::Problem(code) => code.code(),
        };
        let is_page = |name: &str| name != own && Code::ALL.iter().any(|code| code.code() == name);
        let rendered = html::render(&self.markdown(), is_page);
        let (title, content) = rendered
            .inspect_err(|error| tracing::error!(page = own, %error, "cannot render a page"))
            .ok()?;
        Some(html::document(
            &title,
            &content,
            has_index && self != Self::Index,
        ))
    }
}

impl Code {
    /// The contents of the documentation page as HTML, with a heading and without a frame.
    /// It links to the other pages by their names. `None` if it cannot be rendered, which a test excludes.
    #[must_use]
    pub fn page_html(self) -> Option<String> {
        let is_page = |name: &str| Self::ALL.iter().any(|code| code.code() == name);
        let (_, content) = html::render(self.page(), is_page).ok()?;
        Some(content)
    }
}

/// The index in Markdown.
fn index() -> String {
    let mut page = String::from(
        "# Problems\n\n\
         A response of Refrain itself is `application/problem+json`.\n\
         Its `code` names one of these problems, and its `advice` says what the client should do.\n\n\
         | code | status | advice | what happened |\n|---|---|---|---|\n",
    );
    for code in Code::ALL {
        let (name, status) = (code.code(), code.status().as_u16());
        let (advice, title) = (code.advice(), code.title());
        // Writing to a string cannot fail.
        let _ = writeln!(
            page,
            "| [`{name}`]({name}) | {status} | `{advice}` | {title} |"
        );
    }
    page
}

/// The page of this name as a response to a request with this head; `None` if there is no such page.
/// The index has no name.
pub(super) fn find<R>(name: &str, has_index: bool, head: &Parts) -> Option<Response<Body<R>>> {
    let page = match name {
        "" if has_index => Page::Index,
        name => Page::Problem(Code::ALL.into_iter().find(|code| code.code() == name)?),
    };
    let html = match prefers_html(&head.headers) {
        true => page.html(has_index),
        false => None,
    };
    let is_html = html.is_some();
    let text = Bytes::from(html.unwrap_or_else(|| page.markdown()));
    Some(reply(text, is_html, head.method == Method::HEAD))
}

fn reply<R>(text: Bytes, is_html: bool, is_to_head: bool) -> Response<Body<R>> {
    let len = text.len();
    let body = match is_to_head {
        true => Bytes::new(),
        false => text,
    };
    let mut response = Response::new(Body::full(body));
    let headers = response.headers_mut();
    let media_type = match is_html {
        true => "text/html; charset=utf-8",
        false => "text/markdown; charset=utf-8",
    };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    let as_is = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, as_is);
    if is_html {
        let policy = HeaderValue::from_static(CONTENT_SECURITY_POLICY);
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    if is_to_head {
        headers.insert(header::CONTENT_LENGTH, len.into());
    }
    response
}

/// Whether the client accepts HTML with a higher quality than Markdown. Browsers do; `*/*` alone does not.
fn prefers_html(headers: &HeaderMap) -> bool {
    let quality = |subtype| quality(headers, subtype);
    quality("html") > quality("markdown")
}

/// The quality of `text/SUBTYPE` in thousandths: that of the most specific range that matches it.
fn quality(headers: &HeaderMap, subtype: &str) -> u16 {
    let values = headers.get_all(header::ACCEPT).iter();
    let ranges = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    let matching = ranges.filter_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let (kind, sub) = parts.next()?.split_once('/')?;
        let specificity = match (kind, sub) {
            ("*", "*") => 0,
            (kind, "*") if kind.eq_ignore_ascii_case("text") => 1,
            (kind, sub)
                if kind.eq_ignore_ascii_case("text") && sub.eq_ignore_ascii_case(subtype) =>
            {
                2
            }
            _ => return None,
        };
        let written = parts.find_map(|part| part.strip_prefix(['q', 'Q'])?.strip_prefix('='));
        Some((specificity, written.map_or(1_000, thousandths)))
    });
    matching.max().map_or(0, |(_, quality)| quality)
}

/// A quality such as `0.8`, in thousandths; 0 if it is invalid.
fn thousandths(text: &str) -> u16 {
    let quality = text.trim().parse::<f32>().ok();
    let valid = quality.filter(|it| (0.0..=1.0).contains(it));
    valid.map_or(0, |it| (it * 1_000.0).round() as u16)
}

#[cfg(test)]
mod tests {
    //! A page with a construct that the renderer does not know would be shown to browsers as raw Markdown.

    use super::*;

    #[test]
    fn every_page_can_be_rendered() {
        for page in [Page::Index]
            .into_iter()
            .chain(Code::ALL.map(Page::Problem))
        {
            let rendered = html::render(&page.markdown(), |_| true);
            let (title, content) = rendered.unwrap_or_else(|error| panic!("{page:?}: {error}"));
            assert!(content.contains(&format!("<h1>{title}</h1>")), "{page:?}");
            assert!(content.contains("<table>"), "{page:?}");
            for raw in ["](", "|---", "```", "\n- ", "## "] {
                assert!(!content.contains(raw), "{raw} in {page:?}");
            }
        }
    }

    #[test]
    fn pages_link_to_each_other_and_not_to_themselves() {
        let page = Page::Problem(Code::InFlight).html(true).unwrap();
        assert!(page.contains("<a href=\"key-reused\"><code>key-reused</code></a>"));
        assert!(!page.contains("href=\"in-flight\""));
        assert!(page.contains("<a href=\"./\">"));
        let index = Page::Index.html(true).unwrap();
        for code in Code::ALL {
            assert!(
                index.contains(&format!("<a href=\"{}\">", code.code())),
                "{code:?}"
            );
        }
    }

    #[test]
    fn html_is_for_clients_that_prefer_it() {
        let firefox = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        for (accept, expected) in [
            (firefox, true),
            ("text/html", true),
            ("TEXT/HTML; level=1; q=0.4", true),
            ("text/markdown;q=0.5, text/html", true),
            ("*/*;q=0.1, text/html;q=0.2", true),
            ("text/html;q=0.5, text/markdown", false),
            ("text/html, text/markdown", false),
            ("text/html;q=0", false),
            ("text/html;q=0.1, */*", false),
            ("text/html;q=high", false),
            ("text/*", false),
            ("*/*", false),
            ("application/json", false),
            ("html", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(prefers_html(&headers), expected, "{accept}");
        }
        assert!(!prefers_html(&HeaderMap::new()));
        let mut headers = HeaderMap::new();
        for accept in ["text/markdown;q=0.1", "text/html"] {
            headers.append(header::ACCEPT, HeaderValue::from_static(accept));
        }
        assert!(prefers_html(&headers));
    }
}
