"""What Markdown quotes in a text: inline code and fences, as CommonMark has them."""

from __future__ import annotations

import re

from normalizers.read.scan import Wait

RUN = re.compile("`+|~{3,}")
"""The signs that begin and end quotes."""
LEFT_OUT = "\1"
"""Stands for what was left out of a text: a fence may begin behind it, and it is no white space."""
_TICKS = re.compile("`+")
_LINE_START = re.compile(rf"(?:[ \t>{LEFT_OUT}]|[-*+](?=[ \t])|\d{{1,9}}[.)](?=[ \t]))*")
"""What a fence may stand behind: blanks, and the signs of lists and quotations."""
LOOK_BACK = 64
"""So many characters before a run decide whether it begins a line, and so many of a run are its length."""
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")
_FENCE = 3
_WORD = re.compile(r"[\w+#-]*[ \t\r]*")
"""What may follow a fence that begins behind words; more words follow a sign that a sentence tells of."""
_MARKDOWN = re.compile(r"[ \t]*(?:md|mdx|markdown)\b", re.IGNORECASE)
"""The words behind a fence in which others may stand, though they are no longer than it: models write them so."""
_MAX_INDENT = 3
_MAX_CODE = 1024
"""Characters from a mark to the end of the inline code around it."""


def whole_runs(text: str) -> int:
    """The length of the text without the run that ends it, of which more may follow."""
    size = len(text.rstrip(text[-1:])) if text.endswith(("`", "~")) else len(text)
    return size if len(text) - size < LOOK_BACK else len(text)


class Quotes:
    """Reads a text's runs of back-ticks and tildes, and what is between them, in order.

    A fence begins a line, or ends one but for a word behind it. It ends with a run that is at least as long, with
    nothing behind it but blanks or a mark; in one of Markdown, such a run with words behind it begins another.
    Inline code ends with a run of the same length. Without one, it ends with its line, or if a mark begins it with its
    paragraph.
    """

    __slots__ = (
        "_code",
        "_ended",
        "_indent",
        "_info",
        "_line_end",
        "_markdown",
        "_nested",
        "_words",
        "directly",
        "fence",
        "in_line",
    )

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.fence = ""
        """The run that began the fence in which the text stands."""
        self.in_line = False
        """The line decides on something that was read."""
        self._indent = ""
        """What stands before that run."""
        self._info = False
        """This line begins the fence."""
        self._ended = ""
        """The fence that this line ends, if nothing else follows."""
        self._words: str | None = None
        """What begins the rest of this line, if a run before it may begin a fence."""
        self._markdown = False
        """The fence is one of Markdown."""
        self._nested = 0
        """The fences within it that are open."""
        self._code = 0
        """The length of the run that began inline code."""
        self.directly = False
        """It is certain that the inline code quotes the marks in it; of a fence in reasoning, that it does."""
        self._line_end = ""
        """The line break that such code ends with so far."""

    def run(self, run: str, before: str) -> None:
        """Reads a run. before: what stands before it, from a line break on if the line begins there."""
        if before.endswith(run[0]):
            return  # goes on with one that was too long to wait for
        run = run[:LOOK_BACK]
        line = before[before.rfind("\n") + 1 :] if "\n" in before else None
        if self._ended:
            self._go_on()
        elif self._info and run[0] == self.fence[0]:
            # No words behind a fence hold its sign: this was inline code, or nothing.
            self._code = len(self.fence) if run[0] == "`" else 0
            self.fence, self._info = "", False
            self._inline(run, before)
        elif self.fence:
            if run.startswith(self.fence) and line is not None and self._may_end(line):
                self.fence, self._ended, self.directly = "", self.fence, False
        elif len(run) >= _FENCE and line is not None and _LINE_START.fullmatch(line):
            self._begin_fence(run, line)
            self._info, self._words = True, ""
        else:
            self._inline(run, before)
        self.in_line = bool(self._info or self._ended or self._code)

    def _begin_fence(self, run: str, indent: str) -> None:
        self.fence, self._indent, self._nested = run, indent, 0

    def _may_end(self, line: str) -> bool:
        """Whether the fence may end behind this beginning of a line. One in a list is indented as its item is."""
        blank = not line.strip(f" \t{LEFT_OUT}{'>' if '>' in self._indent else ''}")
        return blank and len(line.expandtabs(4)) <= len(self._indent.expandtabs(4)) + _MAX_INDENT

    def _go_on(self) -> None:
        """The fence didn't end in this line: more stands behind the run."""
        self.fence, self._ended = self._ended, ""

    def _inline(self, run: str, before: str) -> None:
        self._line_end = ""
        size = len(run) if run[0] == "`" else 0
        if self._code in (0, size):
            escaped = not self._code and (len(before) - len(before.rstrip("\\"))) % 2
            self._code = 0 if self._code else max(size - escaped, 0)
            self.directly = False
            self._words = "" if self._code >= _FENCE else None
        else:
            self._words = None

    def read(self, text: str, start: int, end: int) -> None:
        """Reads text without runs, or with such as quote nothing."""
        if not self.in_line:
            return
        if self.directly and self._code:
            self._read_code(text[start:end])
            return
        line_end = text.find("\n", start, end)
        words = text[start : end if line_end < 0 else line_end]
        if self._words is not None:
            self._words = (self._words + words)[:LOOK_BACK]
        if self._ended and (behind := words.strip(" \t\r~")):
            self._nested += self._markdown and behind[0].isalnum()
            self._go_on()
        if line_end >= 0:
            self._end_line()

    def _end_line(self) -> None:
        if self._words is not None and self._code and _WORD.fullmatch(self._words):
            self._begin_fence("`" * self._code, "")
            self._info = True
        if self._info:
            self._markdown = bool(_MARKDOWN.match(self._words or ""))
        if self._ended and self._nested:
            self._end_nested()
        self._info = self.in_line = False
        self._ended, self._words, self._code = "", None, 0

    def _end_nested(self) -> None:
        self._nested -= 1
        self._go_on()

    def _read_code(self, text: str) -> None:
        text = self._line_end + text
        if _BLANK_LINE.search(text):
            self._code, self.directly, self.in_line = 0, False, False
        last = text.rfind("\n")
        self._line_end = "\n" if last >= 0 and not text[last:].strip() else ""

    def quote(self, text: str, at: int, before: str, *, opens: bool, closes: tuple[str, ...] = (), final: bool) -> bool:
        """Whether the mark there is quoted: in a fence, directly behind what begins inline code, or within such as its
        line ends. opens: it begins something, so a fence may end before it. closes: the marks that end what it begins.
        Raises `Wait`."""
        if self._ended and not opens:
            self._go_on()
        elif self._ended and self._nested:
            self._end_nested()
        if self.fence or not self._code or self.directly:
            return bool(self.fence or self._code)
        self.directly = before.endswith("`") or self._ends(text, at, closes, final)
        self._code = self._code if self.directly else 0
        return self.directly

    def begins_before(self, before: str) -> bool:
        """Whether a mark there stands directly behind the beginning of a quote, or behind such a mark in its line."""
        behind = before.endswith("`") and bool(self._code or self.fence)
        self.directly = self.directly or behind or self._info
        return self.directly

    def _ends(self, text: str, at: int, closes: tuple[str, ...], final: bool) -> bool:
        """Whether the inline code ends behind there, in the same line: back-ticks up to a mark that closes a call are
        its arguments'. Raises `Wait`."""
        line = text[at : at + _MAX_CODE].partition("\n")
        wait = not (line[1] or final or len(line[0]) == _MAX_CODE)
        closed = min((line[0].find(mark) for mark in closes if mark in line[0]), default=0)
        if wait and closes and not closed:
            raise Wait
        for run in _TICKS.finditer(line[0], closed):
            if wait and run.end() == len(line[0]):
                break
            if len(run[0]) == self._code:
                return True
        if wait:
            raise Wait
        return False
