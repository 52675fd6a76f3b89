"""A program that converts a page on stdin, HTML, JSON or text, to Markdown or a compact form on stdout.

Pages are hostile: HTML parsers hang on some inputs, and a deep JSON value indented is a thousand times longer. So
`pages.convert` runs this in a process with bounded processor time and memory. It imports nothing from the gateway and
holds none of its data.

    python extract.py markdown|compact URL SECONDS BYTES html|json|text CHARACTERS < page
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any
from urllib.parse import urljoin, urlsplit

REMOVED = ("script", "style", "noscript", "template", "svg", "iframe", "object", "embed", "canvas", "form", "button")
BLOCKS = ("h1", "h2", "h3", "h4", "h5", "h6")
CLOSES = {
    "li": ("li",),
    "p": ("p",),
    "dt": ("dt", "dd"),
    "dd": ("dt", "dd"),
    "tr": ("tr", "td", "th"),
    "td": ("td", "th"),
    "th": ("td", "th"),
}
"""Element → elements it closes when their end tag is missing (HTML, "implied end tags"). The parser nests them."""
LINKS, HEADINGS = 100, 100


def main() -> None:
    form, url, kind = sys.argv[1], sys.argv[2], sys.argv[5]
    seconds, size, maximum = int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[6])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # other systems don't enforce it
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    os.nice(10)  # engines go first
    sys.setrecursionlimit(5000)
    page = sys.stdin.buffer.read().decode("utf-8", "replace")
    if kind == "html":
        soup = parsed(page)
        result = markdown(soup, url) if form == "markdown" else compact(soup, url)
    else:
        text = (
            indented(page, form, maximum) if kind == "json" else " ".join(page.split()) if form == "compact" else page
        )
        result = {"title": "", "content": text.strip()}
    sys.stdout.buffer.write(json.dumps(cut(result, maximum)).encode())


def indented(page: str, form: str, maximum: int) -> str:
    """JSON in that form, not much longer than `maximum` characters; as it is if it's invalid or was truncated."""
    try:
        value = json.loads(page)
    except (ValueError, RecursionError):
        return page
    compact = form == "compact"
    encoder = json.JSONEncoder(
        ensure_ascii=False, indent=None if compact else 2, separators=(",", ":" if compact else ": ")
    )
    found, size = [] if compact else ["```json\n"], 0
    for piece in encoder.iterencode(value):
        found.append(piece)
        if (size := size + len(piece)) > maximum:
            break
    return "".join(found if compact else [*found, "\n```"])


def cut(page: dict[str, Any], maximum: int) -> dict[str, Any]:
    """Cuts the content to `maximum` characters; headings and links together get as much again."""
    result = {**page, "title": page["title"][:500], "content": page["content"][:maximum]}
    truncated, room = len(page["content"]) > maximum, maximum
    for key in ("headings", "links"):
        if key in page:
            result[key] = []
            for item in page[key]:
                room -= sum(len(str(value)) for value in item.values())
                if room < 0:
                    truncated = True
                    break
                result[key].append(item)
    return {**result, "truncated": truncated}


def parsed(page: str) -> Any:
    from bs4 import BeautifulSoup, Comment

    soup = BeautifulSoup(page, "html.parser")
    for element in soup(REMOVED):
        element.decompose()
    for comment in soup(string=lambda text: isinstance(text, Comment)):
        comment.extract()
    for element in soup([*CLOSES]):
        while element.parent is not None and element.parent.name in CLOSES[element.name]:
            element.parent.insert_after(element)
    return soup


def take_title(soup: Any) -> str:
    """The page's title, removed from the content."""
    heading = words(soup.title.get_text()) if soup.title is not None else ""
    for element in soup("title"):
        element.decompose()
    return heading


def markdown(soup: Any, url: str) -> dict[str, Any]:
    """`{title, content}`; links are absolute, images are their alternative text."""
    from markdownify import MarkdownConverter

    heading = take_title(soup)
    if soup.head is not None:
        soup.head.decompose()
    for image in soup("img"):
        image.replace_with(words(str(image.get("alt", ""))))
    for link in soup("a"):
        target = absolute(url, link.get("href"))
        if target:
            link["href"] = target
        else:
            link.unwrap()
    converter = MarkdownConverter(heading_style="ATX", bullets="-", escape_misc=False)
    lines = [line.rstrip() for line in converter.convert_soup(soup).splitlines()]
    folded = [line for at, line in enumerate(lines) if line or (at and lines[at - 1])]
    return {"title": heading, "content": "\n".join(folded).strip()}


def compact(soup: Any, url: str) -> dict[str, Any]:
    """`{title, description, headings, links: [{text, url}], content}`, with folded whitespace and unique links."""
    heading = take_title(soup)
    about = soup.find("meta", attrs={"name": "description"})
    headings = [{"level": int(found.name[1]), "text": words(found.get_text(" "))} for found in soup(BLOCKS)[:HEADINGS]]
    links: dict[str, str] = {}
    for link in soup("a", href=True):
        target = absolute(url, link.get("href"))
        if target and len(links) < LINKS:
            links.setdefault(target, words(link.get_text(" "))[:200])
    body = soup.body if soup.body is not None else soup
    return {
        "title": heading,
        "description": words(str(about.get("content", "")))[:1000] if about is not None else "",
        "headings": headings,
        "links": [{"text": text, "url": target} for target, text in links.items()],
        "content": words(body.get_text(" ")),
    }


def absolute(url: str, target: object) -> str | None:
    """An http or https URL without its fragment, else None."""
    try:
        joined = urljoin(url, str(target or "")).partition("#")[0]
        return joined if urlsplit(joined).scheme in ("http", "https") and len(joined) <= 2000 and target else None
    except ValueError:
        return None


def words(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    main()
