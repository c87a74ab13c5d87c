"""The pages of the documentation, and what is on them: programs, files, transcripts.

The Python blocks of one `##` section are one program, in order. A comment `# -> text` says what a line prints. A block whose
first line is a comment with a path (`# shop/apps.py`) is that file of the program.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md", *sorted(DOCS.rglob("*.md"))]

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w/]+\.py)\n")
_PRINTS = re.compile(r"# -> (.*)$", re.MULTILINE)


def name_of(page: Path) -> str:
    """The page's path in the repository."""
    return page.relative_to(ROOT).as_posix()


def sections(page: Path) -> dict[str, str]:
    """The text of each `##` section; what stands before the first one is under ''."""
    parts = _SECTION.split(page.read_text(encoding="utf-8"))
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def blocks(text: str) -> list[tuple[str, str]]:
    """Every fenced block that names its language: (language, content)."""
    return [(language, content) for language, content in _BLOCK.findall(text)]


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def programs(page: Path) -> dict[str, list[str]]:
    """By section: its Python blocks."""
    found = {
        name: [content for language, content in blocks(text) if language == "python"]
        for name, text in sections(page).items()
    }
    return {name: program for name, program in found.items() if program}


def write(program: list[str], directory: Path) -> Path:
    """Put a program's files into a directory. Returns the one to run: everything that names no file of its own."""
    main: list[str] = []
    for block in program:
        named = _FILE.match(block)
        if named is None:
            main.append(block)
        else:
            file = directory / named[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block, encoding="utf-8")
    start = directory / "program.py"
    start.write_text("\n\n".join(main), encoding="utf-8")
    return start


def printed(program: list[str]) -> list[str]:
    """What a program says that it prints."""
    return [line for block in program for line in _PRINTS.findall(block)]
