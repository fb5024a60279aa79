//! The conditions that need an operator, worst first, each with the command to type and a page to read on.

use idem_core::{
    internal::Roughly,
    standing::{Level, Row},
};

use super::html::Page;
use crate::status::Status;

/// Shows them, or that there is nothing.
pub(super) fn show(page: &mut Page, status: &Status, rows: &[Row]) {
    if rows.is_empty() {
        return page.classed("p", "calm", "nothing needs an operator");
    }
    page.raw("<ul class=\"matters\">");
    for row in rows {
        page.raw(if row.level == Level::Error { "<li class=\"bad\">" } else { "<li class=\"wait\">" });
        page.element("strong", &row.what);
        let time = row.time.map(|time| format!("for {}", Roughly(time)));
        let more: Vec<String> =
            time.into_iter().chain(Some(row.more.clone()).filter(|more| !more.is_empty())).collect();
        if !more.is_empty() {
            page.element("div", more.join("; "));
        }
        page.raw("<div class=\"do\">");
        if let Some(fix) = &row.fix {
            page.element("code", status.command(fix));
        }
        page.docs(row.docs, "what to do");
        page.raw("</div></li>");
    }
    page.raw("</ul>");
}
