"""What ``tests/mutants/codecs.py`` changes."""

from __future__ import annotations

from tests.conftest import ROOT
from tests.mutants.codecs import mutants_of

SOURCE = """
/* 1 + 2 */
#define ELEMS 64
int f(int a) {
    float room[8];
    return a + 3; /* one of 5 */
}
"""


def test_each_operator_and_number_of_the_code_is_changed_and_no_comment() -> None:
    assert [each.after.strip() for each in mutants_of("f.c", SOURCE)] == [
        "return a - 3; /* one of 5 */",
        "return a + 4; /* one of 5 */",
    ]


def test_the_kernels_of_each_instruction_set_have_many() -> None:
    for name in ("avx2.c", "avx512.c", "ref.c"):
        text = (ROOT / "native" / "src" / name).read_text()
        assert len(mutants_of(name, text)) > 100, name
