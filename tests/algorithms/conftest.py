"""One thread for each test process, and claims that have to fail where nothing is exchanged."""

from collections.abc import Generator

import pytest
import torch

from swarmnode.testing.lab.isolation import isolated

torch.set_num_threads(1)  # the vectors are small, and two threads only wait


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Run a test of a claim once more with exchange switched off: it must not hold then."""
    result = yield
    if pyfuncitem.get_closest_marker("claim") is not None:
        _forget(pyfuncitem.module)
        names = pyfuncitem._fixtureinfo.argnames
        arguments = {name: pyfuncitem.funcargs[name] for name in names}
        # Whatever a figure of nothing leads to: an assertion that fails, or 0 / 0.
        with isolated(), pytest.raises((AssertionError, ArithmeticError, ValueError)):
            pyfuncitem.obj(**arguments)
        _forget(pyfuncitem.module)
    return result


def _forget(module: object) -> None:
    """Drop runs that the module has kept: they are those of the other way."""
    for kept in vars(module).values():
        if hasattr(kept, "cache_clear"):
            kept.cache_clear()
