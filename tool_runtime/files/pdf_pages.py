"""The text of a PDF, page by page, for `tool_runtime.files.documents`: a program of its own, since PDFs are hostile. It
imports nothing of ours.

    python -I -S pdf_pages.py PLACE_OF_PYPDF < file

One line of JSON a page: {"page", "of", "text"}; or {"problem"}, the last line.
"""

from __future__ import annotations

import json
import logging
import sys


def main(place: str) -> None:
    """Print the pages, as they come."""
    sys.path.append(place)
    logging.disable(logging.CRITICAL)
    from pypdf import PdfReader

    try:
        reader = PdfReader(sys.stdin.buffer)
        if reader.is_encrypted and not reader.decrypt(""):
            _print_line(problem="it is encrypted, and needs a password")
            return
        count = len(reader.pages)
        for number in range(count):
            _print_line(page=number + 1, of=count, text=reader.pages[number].extract_text())
    except MemoryError:
        _print_line(problem="it needs more memory than is given to it")
    except Exception as error:  # noqa: BLE001 pypdf raises any exception for a broken file, which ends here
        _print_line(problem=f"{type(error).__name__}: {error}"[:300])


def _print_line(**line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
