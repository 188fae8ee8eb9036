"""Write `text.txt`: about 20,000 tokens of English prose in the public domain.

    python -m bench.parity.text jargon.txt.gz

The source is the Jargon File 4.4.7 (29 Dec 2003), which its authors put in the public domain, as
the Debian package `jargon-text` carries it (`usr/share/doc/jargon-text/jargon.txt.gz`). Its first
chapters are taken, paragraphs unwrapped to one line each.
"""

import argparse
import gzip
import re
from pathlib import Path

_FIRST = "Chapter 1. Hacker Slang and Hacker Culture"
_SIZE = 88_000


def prose(source: str) -> str:
    """The paragraphs of `source` from its first chapter on, to about `_SIZE` characters."""
    source = source.replace("\u00a0", " ")
    start = source.rindex(_FIRST)
    paragraphs: list[str] = []
    size = 0
    for block in re.split(r"\n\s*\n", source[start:]):
        paragraph = re.sub(r"\s+", " ", block).strip()
        if not paragraph or set(paragraph) <= set("═─-= "):
            continue
        paragraphs.append(paragraph)
        size += len(paragraph) + 2
        if size >= _SIZE:
            break
    return "\n\n".join(paragraphs) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the text for perplexity.")
    parser.add_argument("source", type=Path, help="jargon.txt.gz of the package jargon-text")
    parser.add_argument("--out", type=Path, default=Path("tests/golden/parity/text.txt"))
    options = parser.parse_args()
    text = prose(gzip.decompress(options.source.read_bytes()).decode())
    options.out.write_text(text)
    print(f"{options.out}: {len(text)} characters")


if __name__ == "__main__":
    main()
