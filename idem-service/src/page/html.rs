//! HTML that is written with every text escaped.

use std::fmt::{self, Display, Write as _};

use super::words;

/// A page in the making.
#[derive(Debug, Default)]
pub(super) struct Page(pub(super) String);

impl Page {
    /// Text that is HTML already, and ours.
    pub(super) fn raw(&mut self, html: &'static str) {
        self.0.push_str(html);
    }

    pub(super) fn element(&mut self, tag: &'static str, text: impl Display) {
        // Writing to a String cannot fail, here and below.
        let _ = write!(self.0, "<{tag}>");
        self.text(text);
        let _ = write!(self.0, "</{tag}>");
    }

    pub(super) fn classed(&mut self, tag: &'static str, class: &'static str, text: impl Display) {
        let _ = write!(self.0, "<{tag} class=\"{class}\">");
        self.text(text);
        let _ = write!(self.0, "</{tag}>");
    }

    /// A link to a page of the documentation, by its path under `docs/`.
    pub(super) fn docs(&mut self, path: &str, text: impl Display) {
        self.raw("<a rel=\"noreferrer\" href=\"");
        self.text(format_args!("{}{path}", words::DOCS));
        self.raw("\">");
        self.text(text);
        self.raw("</a>");
    }

    pub(super) fn section(&mut self, title: impl Display, content: impl FnOnce(&mut Self)) {
        self.raw("<section>");
        self.element("h2", title);
        content(self);
        self.raw("</section>");
    }

    /// Names with their values; one that is 0 is quiet.
    pub(super) fn rows(&mut self, rows: &[(&'static str, &dyn Display)]) {
        self.raw("<dl>");
        for (name, value) in rows {
            let value = value.to_string();
            let class = words::loudness(&value);
            self.classed("dt", class, name);
            self.classed("dd", class, value);
        }
        self.raw("</dl>");
    }

    /// A table, whose first column are names; a value that is 0 is quiet.
    pub(super) fn table(&mut self, heads: &[&'static str], rows: &[(&'static str, Vec<String>)]) {
        self.raw("<table><thead><tr>");
        for head in heads {
            self.element("th", head);
        }
        self.raw("</tr></thead><tbody>");
        for (class, cells) in rows {
            let _ = write!(self.0, "<tr class=\"{class}\">");
            for cell in cells {
                self.classed("td", words::loudness(cell), cell);
            }
            self.raw("</tr>");
        }
        self.raw("</tbody></table>");
    }

    pub(super) fn text(&mut self, text: impl Display) {
        let _ = write!(Escaped(&mut self.0), "{text}");
    }
}

/// Escapes the characters that HTML interprets, and those that a terminal or an eye would misread.
struct Escaped<'a>(&'a mut String);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                c if words::misleads(c) => self.0.push('\u{fffd}'),
                c => self.0.push(c),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_escaped() {
        let mut page = Page::default();
        page.element("p", "<script>alert('x')</script> & \"y\"\u{202e}\u{7}");
        assert_eq!(
            page.0,
            "<p>&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &quot;y&quot;\u{fffd}\u{fffd}</p>"
        );
    }
}
