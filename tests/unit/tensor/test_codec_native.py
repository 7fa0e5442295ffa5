"""The extension: it is built, it is chosen, and it survives the sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarmnode.tensor import _native
from swarmnode.tensor.codec import active_isa, available_isas
from tests.conftest import ROOT


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "SWARMNODE_NATIVE"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment | variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_reference_in_c_is_always_there_and_numpy_the_last_resort() -> None:
    assert available_isas()[-2:] == ("ref", "numpy")
    assert active_isa() in available_isas()


@pytest.mark.parametrize("isa", available_isas())
def test_the_environment_forces_an_instruction_set(isa: str) -> None:
    code = "from swarmnode.tensor.codec import active_isa; print(active_isa())"
    assert run_python(code, SWARMNODE_NATIVE=isa).stdout == f"{isa}\n"


def test_an_instruction_set_that_cannot_run_is_one_line() -> None:
    code = "from swarmnode.tensor.codec import get_codec; get_codec('Q8B64')"
    result = run_python(code, SWARMNODE_NATIVE="avx1024")
    assert result.stderr.splitlines()[-1] == (
        "swarmnode.errors.ConfigError: SWARMNODE_NATIVE='avx1024' cannot run here: choose "
        f"{', '.join(available_isas()[:-1])} or numpy, or unset it"
    )


def test_numpy_is_not_imported_with_the_extension() -> None:
    code = (
        "import sys; from swarmnode.tensor.codec import get_codec\n"
        "codec = get_codec('Q4B64'); payload = bytearray(34)\n"
        "codec.encode(bytes(256), payload); codec.merge(payload, bytearray(256), 0.5, 0.5)\n"
        "assert 'numpy' not in sys.modules"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr


def test_without_the_extension_numpy_works_and_says_so_once() -> None:
    code = (
        "import sys; sys.modules['swarmnode.tensor._native'] = None\n"
        "from swarmnode.tensor.codec import active_isa, available_isas, get_codec\n"
        "assert active_isa() == 'numpy' and available_isas() == ('numpy',)\n"
        "get_codec('Q8B64').encode(bytes(256), bytearray(66)); get_codec('Q4B64')\n"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("the C extension is missing") == 1


def test_an_extension_of_other_sources_is_not_used() -> None:
    """One that was built before the last change of the kernels; each payload would be refused."""
    code = (
        "from swarmnode.tensor import _native\n"
        "del _native.measure_payload, _native.products\n"
        "from swarmnode.tensor.codec import active_isa\n"
        "assert active_isa() == 'numpy'\n"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert "older than this swarmnode, and lacks measure_payload, products" in result.stderr


def test_the_binding_checks_sizes_itself() -> None:
    """Memory safety must not rest on the Python above it."""
    for call in (
        lambda: _native.encode(0, 3, 0, bytes(256), bytearray(65), None),
        lambda: _native.encode(0, 3, 0, bytes(255), bytearray(66), None),
        lambda: _native.encode(0, 3, 0, bytes(256), bytearray(66), bytes(252)),
        lambda: _native.encode(0, 1, 0, bytes(256), bytearray(256), bytes(256)),
        lambda: _native.validate(0, 3, 0, bytes(66), 65),
        lambda: _native.validate(0, 3, 0, bytes(66), -1),
        lambda: _native.validate(0, 3, 0, bytes(66), sys.maxsize),
        lambda: _native.decode(0, 4, 0, bytes(34), bytearray(260), None),
        lambda: _native.decode(0, 4, 0, bytes(34), bytearray(256), bytes(260)),
        lambda: _native.decode_measured(0, 4, 0, bytes(34), bytearray(260), None),
        lambda: _native.decode_measured(0, 4, 0, bytes(34), bytearray(256), bytes(260)),
        lambda: _native.decode_measured(99, 3, 0, bytes(66), bytearray(256), None),
        lambda: _native.merge(0, 4, 0, bytes(33), bytearray(256), None, 0.5, 0.5),
        lambda: _native.merge(0, 6, 0, bytes(10), bytearray(256), bytes(256), 0.5, 0.5),
        lambda: _native.measure_payload(0, 3, 0, bytes(66), 65),
        lambda: _native.measure_payload(0, 3, 0, bytes(66), -1),
        lambda: _native.mean(0, 3, 0, (), (), 1.0, 64, bytearray(66)),
        lambda: _native.mean(0, 3, 0, (bytes(66),) * 65, (1.0,) * 65, 1.0, 64, bytearray(66)),
        lambda: _native.mean(0, 3, 0, (bytes(66),), (1.0, 1.0), 1.0, 64, bytearray(66)),
        lambda: _native.mean(0, 3, 0, (bytes(66), bytes(65)), (1.0,) * 2, 1.0, 64, bytearray(66)),
        lambda: _native.mean(0, 3, 0, (bytes(66),), (1.0,), 1.0, 64, bytearray(65)),
        lambda: _native.mean(0, 3, 0, (bytes(66),), (1.0,), 1.0, -64, bytearray(66)),
        lambda: _native.mean(0, 9, 0, (bytes(8),), (1.0,), 1.0, 1, bytearray(8)),
        lambda: _native.products(0, 3, 0, (bytes(66),), 64, bytearray(16)),
        lambda: _native.products(0, 3, 0, (bytes(65),), 64, bytearray(8)),
        lambda: _native.products(99, 3, 0, (bytes(66),), 64, bytearray(8)),
        lambda: _native.decode(99, 3, 0, bytes(66), bytearray(256), None),
        lambda: _native.decode(-1, 3, 0, bytes(66), bytearray(256), None),
        lambda: _native.decode(0, 0, 0, bytes(66), bytearray(256), None),
        lambda: _native.decode(0, 8, 0, bytes(66), bytearray(256), None),
        lambda: _native.decode(0, 3, 64, bytes(66), bytearray(256), None),
        lambda: _native.decode(0, 7, 0, bytes(2), bytearray(256), None),
        lambda: _native.decode(0, 7, 3, bytes(8), bytearray(256), None),
        lambda: _native.decode(0, 7, 2050, bytes(4102), bytearray(256), None),
        lambda: _native.decode(0, 7, -2, bytes(2), bytearray(256), None),
    ):
        with pytest.raises(ValueError):  # noqa: PT011 (all of them: nothing was touched)
            call()


def test_instruction_sets_agree_under_the_sanitizers(tmp_path: Path) -> None:
    """Thousands of hostile values and payloads in C, addresses and undefined behaviour watched."""
    result = subprocess.run(
        ["make", "--no-print-directory", "-C", ROOT / "native", "test", f"BUILD={tmp_path}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "agree on" in result.stdout
