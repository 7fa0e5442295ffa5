"""No module imports itself by way of others, not even for the types only.

Modules in a circle are one module in several files: none of them can be read, tested or moved
without the rest.
"""

from __future__ import annotations

import grimp


def circles_in(graph: grimp.ImportGraph) -> set[tuple[str, ...]]:
    """Return each circle as its modules in order of their names."""
    found = set()
    for module in graph.modules:
        both_ways = graph.find_upstream_modules(module) & graph.find_downstream_modules(module)
        if both_ways - {module}:
            found.add(tuple(sorted({module, *both_ways})))
    return found


def ties_of(graph: grimp.ImportGraph, circle: tuple[str, ...]) -> list[str]:
    return [
        f"{detail['importer']}:{detail['line_number']} imports {detail['imported']}"
        for module in circle
        for imported in sorted(graph.find_modules_directly_imported_by(module) & {*circle})
        for detail in graph.get_import_details(importer=module, imported=imported)
    ]


def test_imports_go_in_no_circle() -> None:
    graph = grimp.build_graph("swarmnode", cache_dir=None)
    ties = [tie for circle in sorted(circles_in(graph)) for tie in ties_of(graph, circle)]
    assert not ties, "\n".join(["a circle of imports:", *ties])


def test_a_circle_is_noticed() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("c", "b"), ("c", "d"), ("e", "a")):
        graph.add_import(importer=importer, imported=imported, line_number=1, line_contents="")
    assert circles_in(graph) == {("b", "c")}
    assert ties_of(graph, ("b", "c")) == ["b:1 imports c", "c:1 imports b"]
