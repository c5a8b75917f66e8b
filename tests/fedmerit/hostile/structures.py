"""Hostile values, and hostile changes to what JSON, TOML, CSV and messages hold; all drawn from a seeded generator."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from fedmerit.evidence.ledger import GENESIS
from fedmerit.files import record_hash

EXECUTE = "touch {marker}"  # what hostile files have a shell do
TEXTS = (
    "", " ", "\0", "a\nb", "a\r\nb", "\x1b[2Jx", "\ud800", "\u2028",
    "\u202e", "A" * 5000, "\U0001f600" * 300, "../../x",
    "/etc/passwd", "{outside}/secret.json", "../outside/secret.json", "file:///etc/passwd", "http://127.0.0.1:9/x",
    "handed_over:Net", "os:system", "monai.losses.perceptual:PerceptualLoss", "$import os", "${{x}}", "@network_def",
    "__import__('os').system('touch {marker}')", "$__import__('os').system('touch {marker}')", "$(touch {marker})",
    "!!python/object/apply:os.system ['touch {marker}']", "%s%n{{0}}", "<script>", "=cmd|'/C'!A0", "nan", "1e999", "-0",
    "\u0663", "true", "site1", "0" * 64, ".", "..", "-", "--out", "con", "a/b", "a\\b", "a,b", "a=b", "1_000", "0x10",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 7, 255, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**400, 0.5, -0.5, 1e308, -1e308, 1e-320, -0.0,
    float("nan"), float("inf"), float("-inf"), True, False, None,
)  # fmt: skip
DEEP = ("[" * 40 + "]" * 40, "[" * 70 + "]" * 70, "[" * 5000, '{"a":' * 60 + "1" + "}" * 60, '{"a":' * 3000)
LEXEMES = (
    "1e999", "-", "00", "1.", ".5", "NaN", "Infinity", "9" * 5000, "'a'", "tru", '"', "\\", ",", "/**/", '"\\ud800"'
)  # fmt: skip


class Drawing:
    """What is drawn for one artefact; ``marker`` is a file that only executed code makes, ``outside`` a folder."""

    def __init__(self, seed: str, marker: str, outside: str):
        self.random = Random(seed)
        self._named = {"marker": marker, "outside": outside}

    def text(self) -> str:
        """A hostile text."""
        return self.random.choice(TEXTS).format(**self._named)

    def value(self) -> Any:
        """A hostile value of JSON."""
        kind = self.random.random()
        if kind < 0.45:
            return self.random.choice(NUMBERS)
        if kind < 0.85:
            return self.text()
        return self.random.choice(
            [[], {}, [[]], [None] * 50, {"": {}}, [self.text()], {self.text(): self.random.choice(NUMBERS)}, [0.5] * 3]
        )

    def changed(self, content: Any, value: Callable[[], Any] | None = None) -> Any:
        """Containers of whatever depth with one to three changes; they are changed in place."""
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            content = self._change(content, value or self.value)
        return content

    def _change(self, content: Any, value: Callable[[], Any]) -> Any:
        places = list(_places(content))
        if not places or self.random.random() < 0.02:
            return value()
        holder, key = self.random.choice(places)
        old = holder[key]
        other, other_key = self.random.choice(places)
        change = self.random.randrange(13)
        if change < 5:
            holder[key] = value()
        elif change == 5:
            del holder[key]
        elif change == 6 and isinstance(holder, dict):
            holder[self.text()] = holder.pop(key)
        elif change == 7 and isinstance(holder, dict):
            holder[self.random.choice([self.text(), str(other_key)])] = value()
        elif change == 7:
            holder.append(old)
        elif change == 8:
            holder[key] = other[other_key] if not isinstance(other[other_key], dict | list) else str(old)
        elif change == 9:
            holder[key] = [old]
        elif change == 10:
            holder[key] = str(old) if not isinstance(old, str) else len(old)
        elif change == 11 and isinstance(old, int | float):
            holder[key] = self.random.choice([-old, old + 1, old - 1, old // 3, old * 10**9])
        elif isinstance(old, list) and old:
            holder[key] = self.random.choice([old[:-1], old[::-1], old * 2, old[:1]])
        else:
            holder[key] = type(old)() if type(old) in (dict, str) else value()
        return content

    def bytes(self, content: bytes) -> bytes:
        """Bytes with one to four changes."""
        changed, random = bytearray(content), self.random
        for _ in range(random.choice((1, 1, 2, 4))):
            at = (
                random.randrange(len(changed) + 1)
                if random.random() < 0.5
                else random.randrange(min(400, len(changed)) + 1)
            )
            size = random.choice((1, 2, 4, 8, 64))
            match random.randrange(7):
                case 0:
                    changed[at : at + 1] = bytes(random.randbytes(1))
                case 1:
                    if at < len(changed):
                        changed[at] ^= 1 << random.randrange(8)
                case 2:
                    del changed[at:]
                case 3:
                    changed[at : at + size] = random.choice((b"\xff", b"\0", b"\x7f", b"\x80")) * size
                case 4:
                    changed[at:at] = random.choice(
                        (random.randbytes(size), b"\0" * size, bytes(changed[at : at + 200]))
                    )
                case 5:
                    del changed[at : at + size]
                case 6:
                    changed[at : at + size] = (
                        random.randrange(2**16).to_bytes(size, random.choice(("big", "little")))[:size]
                        if size > 1
                        else b"A"
                    )
        return bytes(changed)

    def json(self, content: bytes) -> bytes:
        """A JSON text, changed."""
        return self._raw(self._dumped(self.changed(json.loads(content))))

    def _dumped(self, content: Any) -> bytes:
        whole = json.dumps(content, ensure_ascii=self.random.random() < 0.7, indent=self.random.choice((None, 2)))
        return whole.encode(errors="surrogatepass")

    def _raw(self, whole: bytes) -> bytes:
        """Now and then a change of the text itself: what no program would write."""
        kind, random = self.random.random(), self.random
        if kind < 0.06:
            return self.bytes(whole)
        if kind < 0.12:
            parts = whole.split(b":")
            parts[random.randrange(len(parts))] = random.choice((*DEEP, *LEXEMES)).encode()
            return b":".join(parts)
        if kind < 0.15 and whole.startswith(b"{"):
            return whole[:-1].rstrip() + b"," + whole[1:]  # each name twice
        if kind < 0.17:
            return random.choice((b"\xef\xbb\xbf", b"\xff\xfe")) + whole
        return whole

    def chain(self, content: bytes) -> bytes:
        """A chain of records, changed; mostly sealed again, as its owner can."""
        records, random = [json.loads(line) for line in content.splitlines()], self.random
        kind = random.random()
        if kind < 0.1:
            random.shuffle(records)
        elif kind < 0.2:
            records.insert(random.randrange(len(records)), random.choice(records))
        else:
            at = random.randrange(len(records))
            records[at] = self.changed(records[at])
        return b"".join(
            self._raw(line) + b"\n" for line in (_sealed(records) if random.random() < 0.8 else _plain(records))
        )

    def table(self, content: bytes) -> bytes:
        """A CSV file, changed."""
        rows, random = list(csv.reader(io.StringIO(content.decode()))), self.random
        for _ in range(random.choice((1, 1, 2, 5))):
            at = random.choice((0, random.randrange(len(rows))))
            place = random.randrange(max(len(rows[at]), 1))
            match random.randrange(9):
                case 0 | 1 | 2:
                    value = self.value()
                    rows[at][place : place + 1] = [value if isinstance(value, str) else repr(value)]
                case 3:
                    del rows[at][place : place + 1]
                case 4:
                    rows[at].insert(place, self.text())
                case 5:
                    rows.append(list(rows[at]))
                case 6:
                    for row in rows:
                        del row[place : place + 1]
                case 7:
                    rows[at] = rows[at] * random.choice((2, 30))
                case 8:
                    del rows[at]
            rows = rows or [[]]
        text = io.StringIO()
        csv.writer(
            text, delimiter=random.choice(",,,,,,;\t"), lineterminator=random.choice(("\n", "\n", "\r\n", "\r"))
        ).writerows(rows)
        whole = text.getvalue().encode(errors="surrogatepass")
        return self.bytes(whole) if random.random() < 0.15 else whole

    def toml(self, content: bytes) -> bytes:
        """A TOML file, changed."""
        import tomllib

        changed = self.changed(tomllib.loads(content.decode()))
        whole = (
            "".join(f"{_toml_name(name)} = {_toml(one)}\n" for name, one in changed.items())
            if isinstance(changed, dict)
            else str(changed)
        )
        return self._raw(whole.encode(errors="surrogatepass"))


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in the content, with each of its keys or positions."""
    waiting = [content]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict | list):
            for key in list(one) if isinstance(one, dict) else range(len(one)):
                yield one, key
                waiting.append(one[key])


def _sealed(records: list[Any]) -> Iterator[bytes]:
    previous = GENESIS
    for record in records:
        if not isinstance(record, dict):
            yield json.dumps(record).encode()
            continue
        signature = {"signature": record["signature"]} if "signature" in record else {}
        plain = {name: value for name, value in record.items() if name not in ("hash", "signature")}
        plain["previous"] = previous
        previous = record_hash(plain)
        yield json.dumps(plain | {"hash": previous} | signature).encode()


def _plain(records: list[Any]) -> Iterator[bytes]:
    return (json.dumps(record).encode() for record in records)


def _toml_name(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else json.dumps(name)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_name(name)} = {_toml(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value).replace("None", '""') if isinstance(value, float) else json.dumps(value)
