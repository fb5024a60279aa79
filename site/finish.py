"""What mdBook leaves: links out of docs/ go to the repository, every other link has to lead somewhere, and each page is there as Markdown."""

import os
import posixpath
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
DOCS, SITE = ROOT / "docs", ROOT / "target" / "site"
REPOSITORY = "https://github.com/idem-rs/idem/blob/main/"
LINK = re.compile(r'(<(?:a|img)\b[^>]*?\b(?:href|src)=")([^"]*)(")')
ID = re.compile(r'\bid="([^"]*)"')
problems = []


def where(page, link):
    """The link as it should be in this page of the site, or None if it leads nowhere."""
    parts = urlsplit(link)
    if parts.scheme or link.startswith("//"):
        return link
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(parts.path))) if parts.path else page
    path = re.sub(r"(^|/)README\.html$", r"\1index.html", path)
    anchor = f"#{parts.fragment}" if parts.fragment else ""
    if (SITE / path).is_file():
        known = not anchor or not path.endswith(".html") or unquote(parts.fragment) in ids(path)
        relative = posixpath.relpath(path, posixpath.dirname(page) or ".")
        return (relative + anchor if parts.path else link) if known else None
    outside = posixpath.normpath(posixpath.join("docs", path))
    for source in (outside, re.sub(r"\.html$", ".md", outside), re.sub(r"index\.html$", "README.md", outside)):
        if not source.startswith("..") and (ROOT / source).exists():
            return REPOSITORY + source + anchor
    return None


def ids(path, seen={}):
    if path not in seen:
        seen[path] = set(ID.findall((SITE / path).read_text()))
    return seen[path]


def mended(page):
    def link(found):
        to = where(page, found[2].replace("&amp;", "&"))
        if to is None:
            problems.append(f"docs/{page}: {found[2]} leads nowhere")
        return found[1] + (to or found[2]).replace("&", "&amp;") + found[3]

    return LINK.sub(link, (SITE / page).read_text())


def main():
    shutil.copy(sys.argv[1], SITE / "mermaid.min.js")
    # mdBook makes this a copy of the first page, whose links would begin in another folder.
    (SITE / "index.html").write_text('<!doctype html><meta http-equiv="refresh" content="0; url=guide/index.html"><a href="guide/index.html">idem</a>\n')
    (SITE / "404.html").unlink(missing_ok=True)
    pages = sorted(str(page.relative_to(SITE)) for page in SITE.rglob("*.html"))
    done = {page: mended(page) for page in pages}
    for page, text in done.items():
        (SITE / page).write_text(text)
    for source in DOCS.rglob("*.md"):
        page = source.relative_to(DOCS)
        if page.name == "SUMMARY.md":
            continue
        rendered = page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html")
        if not (SITE / rendered).is_file():
            problems.append(f"docs/{page} is not in docs/SUMMARY.md")
        shutil.copy(source, SITE / page)
    for link in re.findall(r"\]\(([^)]*)\)", (DOCS / "llms.txt").read_text()):
        if not (SITE / link).is_file():
            problems.append(f"docs/llms.txt: {link} leads nowhere")
    print("\n".join(problems) or f"{len(pages)} pages in {os.path.relpath(SITE)}")
    sys.exit(bool(problems))


main()
