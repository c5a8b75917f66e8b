"""A page of a report taken apart."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """Cells of each table by its id, every attribute, and the text."""

    def __init__(self, page: str):
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self._table: list[list[str]] = []
        self._open = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "table":
            self._table = self.tables.setdefault(dict(attrs).get("id") or "settings", [])
        elif tag == "tr":
            self._table.append([])
        elif tag in ("td", "th"):
            self._table[-1].append("")
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._open = False

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._open:
            self._table[-1][-1] += data.strip().replace("\N{NO-BREAK SPACE}", " ")  # an interval stays on one line
