"""XML from a stranger, as a small tree.

No document types, so no entities: neither the kind that explodes nor the kind that reads files.
At most PORTMAP_XML_NODES_MAX elements, PORTMAP_XML_DEPTH_MAX deep. Attributes are dropped, and so
are prefixes of names: routers write them in many ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from swarmnode.errors import LimitExceeded, MalformedMessage

# Descriptions have 2 to 20 KiB, and some hundred elements at most eight deep.
PORTMAP_XML_NODES_MAX = 2048
PORTMAP_XML_DEPTH_MAX = 32


@dataclass
class Node:
    """An element: its name without a prefix, its own text, its children."""

    name: str
    text: str = ""
    children: list[Node] = field(default_factory=list)

    def all(self, name: str) -> Iterator[Node]:
        """Yield every element of that name, this one included, in document order."""
        if self.name == name:
            yield self
        for child in self.children:
            yield from child.all(name)

    def value(self, name: str) -> str | None:
        """Return the text of the first element of that name, without space around it."""
        found = next(self.all(name), None)
        return None if found is None else found.text.strip()


class _Builder:
    def __init__(self) -> None:
        self.root: Node | None = None
        self._open: list[Node] = []
        self._nodes = 0

    def start(self, name: str, _attributes: object) -> None:
        node = Node(name.rpartition(":")[2])
        self._nodes += 1
        if self._nodes > PORTMAP_XML_NODES_MAX:
            raise LimitExceeded(f"XML: more than {PORTMAP_XML_NODES_MAX} elements")
        if len(self._open) >= PORTMAP_XML_DEPTH_MAX:
            raise LimitExceeded(f"XML: deeper than {PORTMAP_XML_DEPTH_MAX} elements")
        if self._open:
            self._open[-1].children.append(node)
        else:
            self.root = node
        self._open.append(node)

    def end(self, _name: str) -> None:
        self._open.pop()

    def text(self, data: str) -> None:
        if self._open:
            self._open[-1].text += data


def parse_xml(data: bytes) -> Node:
    """Return the root element.

    Raises:
        MalformedMessage: it is no XML, or has a document type.
        LimitExceeded: it has too many elements, or too deep ones.
    """
    builder = _Builder()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.text
    parser.StartDoctypeDeclHandler = _refuse_document_type
    try:
        # As text: whatever encoding the document claims, none of Python's is looked up for it.
        parser.Parse(data.decode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        raise MalformedMessage(f"XML: {error}") from error
    assert builder.root is not None  # expat insists on one
    return builder.root


def _refuse_document_type(*_: object) -> None:
    raise MalformedMessage("XML: a document type is not allowed")
