"""A fitted model with rows to report on, and the report read back."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

from autogp.report import write_report

HOSTILE = "<script>document.title = 'taken'</script>"  # a label that must be shown, and never run
VOID = {"meta", "link", "img", "br"}


class Fitted(NamedTuple):
    """An estimator, and rows that it has not seen."""

    estimator: Any
    X: Any
    y: Any


class Report(HTMLParser):
    """Tags with their attributes, and texts; fails where tags do not close in the order in which they open."""

    def __init__(self, text: str):
        super().__init__()
        self.text = text
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[tuple[str, str]] = []
        self.tables: list[list[list[str]]] = []
        self.words = ""  # everything that a person reads
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], f"never closed: {self._open}"
        self.words = " ".join(self.words.replace("\N{NO-BREAK SPACE}", " ").split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag in ("h1", "h2", "h3"):
            self.headings.append((tag, ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            return
        self.words += data + " "
        data = data.replace("\N{NO-BREAK SPACE}", " ")
        if "td" in self._open or "th" in self._open:
            self.tables[-1][-1][-1] += data
        elif self._open and self._open[-1] in ("h1", "h2", "h3"):
            self.headings[-1] = (self.headings[-1][0], self.headings[-1][1] + data)

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def report_on(fitted: Fitted, folder: Path, **options: Any) -> Report:
    path = folder / "report.html"
    write_report(path, fitted.estimator, fitted.X, fitted.y, **options)
    return Report(path.read_text())
