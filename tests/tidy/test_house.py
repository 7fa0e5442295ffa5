"""The figures of ``python -m swarmnode.tooling.house`` stay within their limits.

No module imports itself by way of others, not even for the types only: modules in a circle are one
module in several files, none of which can be read, tested or moved without the rest.
"""

from __future__ import annotations

import ast

import pytest

from swarmnode.tooling.house import (
    FIGURES,
    Figure,
    Tree,
    circles,
    imported_by,
    long_folders,
    none_tests,
    rooms,
    with_one_importer,
)
from tests.tidy.test_tidy import PACKAGE, sources_in, tree_of


@pytest.fixture(scope="module")
def tree() -> Tree:
    paths = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in sources_in(PACKAGE)
    }
    return Tree(paths, {name: tree_of(path) for name, path in paths.items()})


def made(tmp_path, **texts: str) -> Tree:
    """Return a package ``swarmnode`` of these modules, whose names have two underscores for /."""
    package = tmp_path / "swarmnode"
    for name, text in texts.items():
        path = package / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)
    return Tree.read(package)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_no_figure_passes_its_limit(tree: Tree, figure: Figure) -> None:
    assert figure.count(tree) <= figure.limit, "`python -m swarmnode.tooling.house --list`"


def test_imports_go_in_no_circle(tree: Tree) -> None:
    ties = [
        f"{module} imports {imported}"
        for circle in circles(tree.imports)
        for module in circle
        for imported in sorted(tree.imports[module] & {*circle})
    ]
    assert not ties, "\n".join(["a circle of imports:", *ties])


def test_a_circle_is_noticed() -> None:
    imports: dict[str, set[str]] = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a"}}
    assert circles(imports) == [["b", "c"]]
    assert circles({"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"c"}}) == [["a", "b"], ["c", "d"]]


def test_imports_are_those_of_modules_wherever_they_stand() -> None:
    text = """
import one.two
from one import three, name
def later():
    from one.four import anything
"""
    known = ["one", "one.two", "one.three", "one.four", "one.five"]
    assert imported_by(ast.parse(text), known) == {"one", "one.two", "one.three", "one.four"}


def test_what_is_counted(tmp_path) -> None:
    found = made(
        tmp_path,
        a="from swarmnode import b\nfrom swarmnode.daemon.room import one\n",
        b="x = 1\ny = x is None\n",
        daemon__driver="def f(x): return x is None or x is not None or x == 1\n",
        daemon__room__one="from swarmnode.daemon import driver\n",
        daemon__room__inner__two="from swarmnode.daemon.driver import f\n",
    )
    assert with_one_importer(found) == [
        ("swarmnode.b", "swarmnode.a"),
        ("swarmnode.daemon.room.one", "swarmnode.a"),
    ]
    assert none_tests(found) == 2
    assert rooms(found) == {"room": 2}
    assert not long_folders(found)


def test_a_long_folder_is_noticed(tmp_path) -> None:
    found = made(tmp_path, **{f"many__m{n}": "" for n in range(26)})
    assert long_folders(found) == [tmp_path / "swarmnode" / "many"]
