//! How the worker's page looks: at a desk and on a phone, light and dark. The tests of every worker include this file.

#![allow(dead_code, reason = "not every worker's tests use all of it")]

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::browser::{self, Browser, Look};

const PHONE: (u32, u32) = (390, 844);
const DESK: (u32, u32) = (1280, 800);

/// Asked in one go, because the page is loaded anew every few seconds: what it says, what is wider than it or sticks out, which texts are
/// too faint to read (WCAG's contrast below 4.5), where what asks for a person begins and ends, and in which colours.
const LOOK: &str = r"(() => {
  const rgb = colour => colour.match(/[\d.]+/g).map(Number);
  const light = c => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  const back = e => {
    for (; e; e = e.parentElement) {
      const colour = rgb(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [0, 0, 0];
  };
  const contrast = e => {
    const [a, b] = [luminance(rgb(getComputedStyle(e).color)), luminance(back(e))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const all = [...document.querySelectorAll('body, body *')];
  const box = e => e.getBoundingClientRect();
  const said = e => [...e.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  const matters = [...document.querySelectorAll('.matters li')];
  const loud = document.querySelector('tr.loud td');
  return {
    title: document.title, text: document.body.innerText, scripts: document.scripts.length, width: innerWidth,
    scroll: document.documentElement.scrollWidth, ground: getComputedStyle(document.body).backgroundColor,
    out: all.filter(e => box(e).right > innerWidth + 0.5 || box(e).left < 0).map(e => e.outerHTML),
    faint: all.filter(e => said(e) && !(contrast(e) >= 4.5 && getComputedStyle(e).opacity == 1))
      .map(e => `${contrast(e).toFixed(2)} ${e.outerHTML}`),
    matters: matters.map(e => [e.innerText, Math.round(box(e).bottom), getComputedStyle(e).backgroundColor]),
    commands: [...document.querySelectorAll('code')].map(e => e.innerText),
    links: [...document.querySelectorAll('a')].map(e => e.href),
    loud: loud && [getComputedStyle(loud).color, getComputedStyle(loud).fontWeight],
    plain: getComputedStyle(document.body).color,
  };
})()";

/// The facts about a page in a browser.
pub(crate) struct Seen(Value);

impl Seen {
    pub(crate) fn title(&self) -> &str {
        self.0["title"].as_str().expect("a title")
    }

    pub(crate) fn text(&self) -> &str {
        self.0["text"].as_str().expect("a text")
    }

    /// The matters that need a person, in their order.
    pub(crate) fn matters(&self) -> Vec<&str> {
        self.0["matters"].as_array().expect("a list").iter().filter_map(|matter| matter[0].as_str()).collect()
    }

    pub(crate) fn commands(&self) -> Vec<&str> {
        self.0["commands"].as_array().expect("a list").iter().filter_map(Value::as_str).collect()
    }

    pub(crate) fn links(&self) -> Vec<&str> {
        self.0["links"].as_array().expect("a list").iter().filter_map(Value::as_str).collect()
    }

    /// Fails with all of the page unless it says this.
    pub(crate) fn says(&self, text: &str) {
        assert!(self.text().contains(text), "{text:?} is not shown:\n{}", self.text());
    }

    /// Checks the conditions that every page must meet, under every look.
    fn is_fit(&self, look: Look) {
        let seen = &self.0;
        assert_eq!((&seen["scripts"], &seen["width"]), (&0.into(), &look.width.into()), "{look:?}");
        assert_eq!((&seen["scroll"], &seen["out"]), (&look.width.into(), &serde_json::json!([])), "{look:?}");
        assert_eq!(seen["faint"], serde_json::json!([]), "too faint to read, {look:?}");
        let matters = seen["matters"].as_array().expect("a list");
        for (matter, number) in matters.iter().zip(0..) {
            let bottom = matter[1].as_u64().expect("a number");
            assert!(number > 0 || bottom <= u64::from(look.height), "{matter} is below the fold, {look:?}");
            assert_ne!(matter[2], seen["ground"], "it has no colour of its own, {look:?}");
        }
        if let Some(loud) = seen["loud"].as_array() {
            assert_ne!(loud[0], seen["plain"], "a conflict looks like any number, {look:?}");
        }
        let is_dark = seen["ground"].as_str().expect("a colour") == "rgb(13, 17, 23)";
        assert_eq!(is_dark, look.is_dark, "the scheme is not obeyed: {}", seen["ground"]);
    }
}

/// Looks at a page in all four ways, and answers what was seen on a phone. With `IDEM_PICTURES`, a whole path of a folder, a page with a
/// name leaves two pictures there, which are those of the documentation.
pub(crate) async fn look_at(folder: &Path, url: &str, picture: Option<&str>) -> Seen {
    browser::is_installed().await;
    let mut browser = Browser::start(folder).await;
    let mut on_a_phone = None;
    let looks = [(PHONE, false), (PHONE, true), (DESK, false), (DESK, true)];
    for ((width, height), is_dark) in looks {
        let look = Look { width, height, is_dark };
        browser.open(url, look).await;
        let seen = Seen(browser.evaluate(LOOK).await);
        seen.is_fit(look);
        let ending = match ((width, height), is_dark) {
            (PHONE, true) => Some("-dark"),
            (DESK, false) => Some("-desktop"),
            _ => None,
        };
        if let (Some(picture), Some(ending), Some(pictures)) = (picture, ending, std::env::var_os("IDEM_PICTURES")) {
            let file = PathBuf::from(pictures).join(format!("{picture}{ending}.png"));
            std::fs::write(file, browser.screenshot().await).expect("the picture can be written");
        }
        on_a_phone.get_or_insert(seen);
    }
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
    browser.close().await;
    on_a_phone.expect("it was looked at")
}
