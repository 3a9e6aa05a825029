"""What changed in the limits of ops between two renders."""

from __future__ import annotations

import ast
import re

from .trees import Tree


class _Spelled(ast.NodeTransformer):
    """Puts the tuples of a module in place of their names, which its next version may redefine."""

    def __init__(self, module: ast.Module) -> None:
        self.tuples = {
            ast.unparse(node.targets[0]): node.value
            for node in module.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
        }

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace a name that is read."""
        return self.tuples.get(node.id, node) if isinstance(node.ctx, ast.Load) else node


def _entries(tree: Tree) -> dict[str, ast.Call]:
    """Read the limits of each op that a fresh render records for the vendor."""
    found: dict[str, ast.Call] = {}
    for path, text in tree.items():
        if path != "vendor/capabilities.py" and not re.fullmatch(r"python/\w+/\w+\.py", path):
            continue
        module = ast.parse(text)
        for node in ast.walk(_Spelled(module).visit(module)):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if not isinstance(key, ast.Constant) or not isinstance(value, ast.Call):
                        continue
                    if getattr(value.func, "id", "") == "Limits":
                        found[str(key.value)] = value
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Op":
                for word in node.keywords:
                    if word.arg == "name" and isinstance(word.value, ast.Constant):
                        found.setdefault(str(word.value.value), node)
    return found


def _changes(old: ast.expr, new: ast.expr, where: str) -> list[str]:
    """Compare two expressions down to their differences."""
    if ast.dump(old) == ast.dump(new):
        return []
    if isinstance(old, ast.Call) and isinstance(new, ast.Call):
        before = {word.arg or "": word.value for word in old.keywords}
        after = {word.arg or "": word.value for word in new.keywords}
        if ast.dump(old.func) == ast.dump(new.func) and len(old.args) == len(new.args):
            places = {key: f"{where} {key}".strip() for key in before | after}
            both = [key for key in before if key in after]
            pairs = [(a, b, where) for a, b in zip(old.args, new.args, strict=True)]
            pairs += [(before[key], after[key], places[key]) for key in both]
            # Compare ranges as a whole.
            if all(isinstance(a, ast.Constant) for a, _, _ in pairs) and where:
                return [f"{where}: {ast.unparse(old)} -> {ast.unparse(new)}"]
            found = [text for a, b, place in pairs for text in _changes(a, b, place)]
            for word, known, others in (("new", after, before), ("gone", before, after)):
                found += [
                    f"{places[key]}: {ast.unparse(value)} ({word})"
                    for key, value in known.items()
                    if key not in others
                ]
            return found
    if isinstance(old, ast.Dict) and isinstance(new, ast.Dict):
        named = [
            {
                ast.unparse(key).strip("'"): value
                for key, value in zip(d.keys, d.values, strict=True)
                if key
            }
            for d in (old, new)
        ]
        if named[0].keys() == named[1].keys():
            return [
                text
                for key in named[0]
                for text in _changes(named[0][key], named[1][key], f"{where} {key}".strip())
            ]
    if isinstance(old, ast.Tuple) and isinstance(new, ast.Tuple) and len(old.elts) == len(new.elts):
        return [
            text for a, b in zip(old.elts, new.elts, strict=True) for text in _changes(a, b, where)
        ]
    return [f"{where}: {ast.unparse(old)} -> {ast.unparse(new)}".removeprefix(": ")]


def limit_changes(old: Tree, new: Tree) -> list[str]:
    """Say what changed in the limits of each op that both have."""
    before, after = _entries(old), _entries(new)
    return [
        f"{op}: {change}"
        for op in before
        if op in after
        for change in _changes(before[op], after[op], "")
    ]
