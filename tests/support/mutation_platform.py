"""What only another platform runs: no test here can notice an error in it."""

from __future__ import annotations

import ast
import sys


def is_platform(node: ast.AST) -> bool:
    """A comparison of `sys.platform` with a name."""
    return isinstance(node, ast.Compare) and ast.unparse(node.left) == "sys.platform"


def is_elsewhere(test: ast.expr) -> bool:
    """A condition that never holds on this platform."""
    match test:
        case ast.BoolOp(op=ast.And()):
            return any(map(is_elsewhere, test.values))
        case ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant(name)]) if is_platform(test):
            return name != sys.platform
        case ast.Compare(ops=[ast.NotEq()], comparators=[ast.Constant(name)]) if is_platform(test):
            return name == sys.platform
    return False
