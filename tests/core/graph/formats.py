"""Read drawings back: small checkers of the two languages, which refuse all that a drawing has no reason to contain."""

import re
from typing import NamedTuple

#: The brackets of each shape of Mermaid's, as ``drawing.py`` writes them.
_BRACKETS = {"((": "))", "(((": ")))", "([": "])", "[": "]", "[[": "]]", ">": "]", "{{": "}}"}
_MERMAID_NODE = re.compile(r'    (n\d+)(\(\(\(|\(\(|\(\[|\[\[|\[|>|\{\{)"([^"]*)"(\)\)\)|\)\)|\]\)|\]\]|\]|\}\})')
_MERMAID_EDGE = re.compile(r'    (n\d+) (-->|-\.->)(?:\|"([^"]*)"\|)? (n\d+)')
#: What may stand in a label: letters and digits, a few signs, numbers of characters, and line ends.
_MERMAID_LABEL = re.compile(r"(?:[^\W_]|(?<=[^\W_])[_.](?=[^\W_])|[ ,()]|#\d+;|<br/>)*")
_DOT_TEXT = r'"((?:[^"\\]|\\.)*)"'
_DOT_MARK = r'(?:, color="(#\w{6})", penwidth=3)?'
_DOT_NODE = re.compile(rf"    (n\d+) \[label={_DOT_TEXT}, shape=\w+(?:, \w+=(?:[\w.]+|\"[\w,]+\"|\"#\w{{6}}\"))*?{_DOT_MARK}\];")
_DOT_EDGE = re.compile(rf"    (n\d+) -> (n\d+)(?: \[(?:label={_DOT_TEXT})?(?:, )?(style=dashed)?{_DOT_MARK}\])?;")
#: The lines that mark nodes and edges of Mermaid's.
_MERMAID_CLASS = re.compile(r"    classDef (\w+) fill:#\w{6},stroke:(#\w{6}),color:#000000")
_MERMAID_NODES = re.compile(r"    class (n\d+(?:,n\d+)*) (\w+)")
_MERMAID_EDGES = re.compile(r"    linkStyle (\d+(?:,\d+)*) stroke:(#\w{6}),stroke-width:3px")


class Read(NamedTuple):
    """A drawing that was read: the labels of nodes, and edges with their labels, in one text each."""

    nodes: dict[str, str]
    edges: list[tuple[str, str, str, bool]]  #: from, to, label, dashed
    colours: dict[str, str]  #: of marked nodes, and by their numbers of marked edges


def read_mermaid(text: str) -> Read:
    """Read a drawing in Mermaid's language; raise ``AssertionError`` if it is none."""
    first, *lines = text.split("\n")
    assert first == "flowchart TD"
    read, classes = Read({}, [], {}), dict[str, str]()
    for line in lines:
        if found := _MERMAID_CLASS.fullmatch(line):
            classes[found[1]] = found[2]
            continue
        if (found := _MERMAID_NODES.fullmatch(line)) or (found := _MERMAID_EDGES.fullmatch(line)):
            parts = found[1].split(",")
            assert {*parts} <= {*read.nodes, *map(str, range(len(read.edges)))}, line
            read.colours.update(dict.fromkeys(parts, classes.get(found[2], found[2])))
            continue
        assert not read.colours, "marks are the last lines"
        if node := _MERMAID_NODE.fullmatch(line):
            id, opening, label, closing = node.groups()
            assert _BRACKETS[opening] == closing, line
            assert id not in read.nodes, line
            read.nodes[id] = _mermaid_label(label)
            continue
        edge = _MERMAID_EDGE.fullmatch(line)
        assert edge, line
        start, arrow, label, end = edge.groups()
        assert {start, end} <= read.nodes.keys(), line
        read.edges.append((start, end, _mermaid_label(label or ""), arrow == "-.->"))
    return read


def _mermaid_label(label: str) -> str:
    assert _MERMAID_LABEL.fullmatch(label), label
    return re.sub(r"#(\d+);", lambda found: chr(int(found[1])), label.replace("<br/>", "\n"))


def read_dot(text: str) -> Read:
    """Read a drawing in Graphviz' language; raise ``AssertionError`` if it is none."""
    first, *lines, last = text.split("\n")
    assert re.fullmatch(rf"digraph {_DOT_TEXT} {{", first), first
    assert last == "}"
    read = Read({}, [], {})
    for line in lines:
        if node := _DOT_NODE.fullmatch(line):
            assert node[1] not in read.nodes, line
            read.nodes[node[1]] = _dot_label(node[2])
            read.colours.update({node[1]: node[3]} if node[3] else {})
            continue
        edge = _DOT_EDGE.fullmatch(line)
        assert edge, line
        assert {edge[1], edge[2]} <= read.nodes.keys(), line
        read.colours.update({str(len(read.edges)): edge[5]} if edge[5] else {})
        read.edges.append((edge[1], edge[2], _dot_label(edge[3] or ""), edge[4] is not None))
    return read


def _dot_label(label: str) -> str:
    escapes = {"n": "\n", '"': '"', "\\": "\\"}
    shown = re.sub(r"\\(.)", lambda found: escapes[found[1]], label)
    assert not re.search(r"&(?!amp;)", shown), label
    return shown.replace("&amp;", "&")
