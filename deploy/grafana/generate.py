"""Write the dashboards of boards.py as the JSON that Grafana provisions, or check them.

python deploy/grafana/generate.py --write | --check
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from boards import BOARDS
from panels import Board

FOLDER = Path(__file__).parent / "dashboards"


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code: 1 if ``--check`` found a file that is not as it would be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the files anew")
    what.add_argument("--check", action="store_true", help="say which files are out of date")
    if parser.parse_args(arguments).write:
        FOLDER.mkdir(exist_ok=True)
        for path in stale():
            text = wanted().get(path)
            path.unlink() if text is None else path.write_text(text, encoding="utf-8")
        return 0
    for path in stale():
        print(
            f"{path}: not as boards.py says: run python deploy/grafana/generate.py --write",
            file=sys.stderr,
        )
    return 1 if stale() else 0


def wanted() -> dict[Path, str]:
    """Return the text of each file."""
    return {_path(board): _text(board) for board in BOARDS}


def stale() -> list[Path]:
    """Return the files that differ from what is wanted, that are missing, or too many."""
    found = {path: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    paths = sorted({*found, *wanted()})
    return [path for path in paths if found.get(path) != wanted().get(path)]


def _path(board: Board) -> Path:
    return FOLDER / f"{board.uid.removeprefix('swarmnode-')}.json"


def _text(board: Board) -> str:
    return json.dumps(board.to_json(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
