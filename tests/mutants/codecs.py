"""Mutants of the C codecs, by sample: ``python -m tests.mutants.codecs --count 20 --seed 1``.

One operator, number or instruction in the kernels of one instruction set is changed; what compares
them all must notice: the comparison by drawn values, the kept inputs, or the fuzzer in so many
seconds (``make -C native test fuzz``). Which mutants are tried follows from the seed; one that no
compiler takes, or compiles to the same, is not counted. Needs clang. It fails if fewer than
KILLED_SHARE_MIN are killed.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.conftest import ROOT

KILLED_SHARE_MIN = 0.9
_NATIVE = ROOT / "native"
# Each is compared with the others; what they share (headers) is for the tests in Python to find.
_SOURCES = ("avx2.c", "avx512.c", "ref.c")
_SWAPPED = (
    (r" \+ ", " - "),
    (r" - ", " + "),
    (r" < ", " <= "),
    (r" == ", " != "),
    (r" & ", " | "),
    (r"_add_", "_sub_"),
    (r"_sub_", "_add_"),
    (r"_min_", "_max_"),
    (r"_max_", "_min_"),
    (r"_and_", "_or_"),
    (r"_or_", "_and_"),
    (r"_srli_", "_slli_"),
    (r"_slli_", "_srli_"),
)
_NUMBER = re.compile(r"(?<![\w.])(0x[0-9A-Fa-f]+|\d+)(?![\w.])")
_ROOM = re.compile(r"\w+ \w+\[\w+\];")  # more of it does no harm
_SANITIZED = ["clang", "-fsanitize=address,undefined"]
_COMPILED = [*_SANITIZED, "-fno-sanitize-recover=all", "-fsanitize=fuzzer-no-link", "-std=c11"]
_COMPILED += ["-fno-sanitize-coverage=trace-cmp", "-O1", "-ffp-contract=off", "-Iinclude", "-c"]


class Mutant(NamedTuple):
    name: str  # of the file
    line: int  # from 0
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.name}:{self.line + 1} {self.before.strip()} -> {self.after.strip()}"


def mutants_of(name: str, text: str) -> list[Mutant]:
    """Return all that one change to one line of code makes."""
    found = []
    for number, line in enumerate(text.splitlines()):
        code = line.split("/*")[0]
        if code.lstrip().startswith(("*", "#")) or _ROOM.fullmatch(code.strip()):
            continue
        spans = [(m.span(), new) for old, new in _SWAPPED for m in re.finditer(old, code)]
        spans += [(m.span(), str(int(m[0], 0) + 1)) for m in _NUMBER.finditer(code)]
        found += [Mutant(name, number, line, line[:a] + new + line[b:]) for (a, b), new in spans]
    return found


def _is_fine(command: list[str], where: Path, timeout_s: float = 300) -> bool:
    try:
        done = subprocess.run(command, cwd=where, capture_output=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return False  # one that never ends is found, too
    return done.returncode == 0


class Workshop:
    """The objects that no mutant changes, and the programs that are made of them."""

    def __init__(self, where: Path) -> None:
        self.native = where / "native"
        shutil.copytree(_NATIVE, self.native)
        sources = [*(self.native / "src").glob("*.c"), *(self.native / "tests").glob("*.c")]
        for path in sources:
            assert self._compiled(path), f"expected that clang takes {path.name} as it is"

    def _compiled(self, path: Path) -> bool:
        made = self.native / f"{path.stem}.o"
        return _is_fine([*_COMPILED, str(path), "-o", str(made)], self.native)

    def is_quiet(self, seconds: int, seed: int) -> bool:
        kept = sorted(str(path) for path in self.native.glob("*.o"))
        compared = [each for each in kept if not each.endswith("/fuzz.o")]
        fuzzed = [each for each in kept if not each.endswith("/differential.o")]
        assert _is_fine([*_SANITIZED, *compared, "-o", "compared", "-lm"], self.native)
        assert _is_fine(
            [*_SANITIZED, "-fsanitize=fuzzer", *fuzzed, "-o", "fuzzed", "-lm"], self.native
        )
        found = self.native / "found"
        shutil.rmtree(found, ignore_errors=True)
        found.mkdir()
        run = ["./fuzzed", "found", "tests/corpus", f"-max_total_time={seconds}", f"-seed={seed}"]
        return _is_fine(["./compared"], self.native) and _is_fine(
            [*run, "-max_len=8192", "-entropic=0"], self.native
        )

    def killed(self, mutant: Mutant, seconds: int, seed: int) -> bool | None:
        """Return whether a check fails of it; None if it is no other program."""
        path = self.native / "src" / mutant.name
        made = self.native / f"{path.stem}.o"
        text, object_before = path.read_text(), made.read_bytes()
        lines = text.splitlines()
        lines[mutant.line] = mutant.after
        path.write_text("\n".join(lines) + "\n")
        try:
            if not self._compiled(path) or made.read_bytes() == object_before:
                return None
            return not self.is_quiet(seconds, seed)
        finally:
            path.write_text(text)
            made.write_bytes(object_before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=30, help="of the fuzzer, for each")
    asked = parser.parse_args()
    drawn = [
        each for name in _SOURCES for each in mutants_of(name, (_NATIVE / "src" / name).read_text())
    ]
    random.Random(asked.seed).shuffle(drawn)
    verdicts: list[bool] = []
    with tempfile.TemporaryDirectory() as name:
        workshop = Workshop(Path(name))
        assert workshop.is_quiet(asked.seconds, asked.seed), "expected no fault without a mutant"
        for mutant in drawn:
            killed = workshop.killed(mutant, asked.seconds, asked.seed)
            if killed is not None:
                verdicts.append(killed)
                print("killed  " if killed else "SURVIVES", mutant, flush=True)
            if len(verdicts) == asked.count:
                break
    share = sum(verdicts) / len(verdicts)
    print(f"{sum(verdicts)} of {len(verdicts)} killed, of {len(drawn)} there are")
    return 0 if share >= KILLED_SHARE_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
