"""Text that a user supplied, made safe for where it goes.

Names, notes, paths and values out of files reach terminals, comments of code, web pages, pictures,
spreadsheets and reviews. Each of these reads some characters as more than text; here is what each needs.
"""

import html as _html
import re
from collections.abc import Iterable, Sequence
from typing import Final

# What XML 1.0 cannot hold, not even as a reference; and what acts in a page instead of being seen: controls,
# also those that turn the direction of writing.
_NO_XML: Final = re.compile(
    "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
    "|[\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
_MARKUP: Final = re.compile(r"([\\`*_{}\[\]<>#|~$&])")
_RUNS_IN_SHEETS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_SHOWN_CHARACTERS: Final = 60


def shown(text: str, limit: int = _SHOWN_CHARACTERS) -> str:
    """`text` for a message: visible characters only, and its middle left out where it is long."""
    if len(text) > limit:
        half = (limit - 3) // 2
        text = f"{text[: limit - 3 - half]}...{text[-half:]}"
    return terminal(text)


def terminal(text: str) -> str:
    """`text` with its lines, and every other character that acts instead of being seen as an escape.

    That is control characters, also those that turn the direction of writing, and lone surrogates.
    """
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escape(c) for c in text)


def json_text(text: str) -> str:
    """JSON text that means the same, without characters that act on a terminal."""
    return "".join(c if c.isprintable() or c in "\n\r\t" else _json_escape(c) for c in text)


def writable(name: str) -> str:
    """The name of a file as text of UTF-8: bytes of it that are none are escapes."""
    return name.encode("utf-8", "backslashreplace").decode()


def described(thing: object) -> str:
    """What Python gave in the place of something else."""
    return f"{type(thing).__name__} {shown(str(thing), 40)!r}"


def comment(text: str) -> str:
    """`text` on one comment line of C or Python: nothing joins it to the next line, nothing hides in it."""
    visible = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(visible.split()).replace("\\", "/").replace("??/", "?").replace("*/", "* /")


def identifier(text: str) -> str:
    """`text` as an identifier of C and Python."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text.encode("ascii", "replace").decode()).strip("_") or "tile"
    return f"t{name}" if name[0].isdigit() else name


def xml_text(text: str) -> str:
    """`text` for a library that writes XML: what it cannot hold, or what acts, is replaced."""
    return _NO_XML.sub("\ufffd", text)


def xml(text: str) -> str:
    """`text` as the content or the quoted attribute of an element of HTML or SVG."""
    return _html.escape(xml_text(text))


def titled(name: str, text: str) -> str:
    """A line of HTML that starts with a name."""
    return f"<div><b>{xml(name)}</b>: {xml(text)}</div>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows under a head, in HTML."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{xml(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line(head, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


def script(json: str) -> str:
    """JSON text inside a script element: no "<" can close the element."""
    return json.replace("<", "\\u003c")


def csv_cell(value: object) -> object:
    """A cell that no spreadsheet runs as a formula; what is no text stays."""
    if isinstance(value, str) and value.startswith(_RUNS_IN_SHEETS):
        return f"'{value}"
    return value


def markdown(text: str) -> str:
    """`text` as Markdown of one line, in a table or outside, without markup."""
    return _MARKUP.sub(r"\\\1", " ".join(terminal(text).split()))


def markdown_code(text: str) -> str:
    """`text` as code within a line of Markdown, in a table too."""
    inner = " ".join(terminal(text).split()).replace("`", "'").replace("|", r"\|")
    return f"`{inner}`"


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[k : k + 2].hex()}" for k in range(0, len(units), 2))
