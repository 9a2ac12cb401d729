"""Labels: one printable line each, of a bounded length."""

import ast
from typing import Final

#: The most characters of a label's line, and of a piece of code within one.
LINE: Final = 60
CODE: Final = 40


def shortened(text: str, characters: int = LINE) -> str:
    """Return the beginning of a text, in one printable line."""
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text[: characters + 1])
    return shown if len(shown) <= characters else f"{shown[: characters - 1]}…"


def expression(node: ast.AST) -> str:
    """Return the beginning of an expression."""
    return shortened(ast.unparse(node), CODE)


def code(node: ast.AST) -> str:
    """Return the beginning of an expression; of a call no arguments, which may be secret."""
    text = f"{code(node.func)}(…)" if isinstance(node, ast.Call) else ast.unparse(node)
    return shortened(text, CODE)
