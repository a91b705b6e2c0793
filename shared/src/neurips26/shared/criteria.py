"""Criteria as they stand in source texts: what ``verify`` compares between two revisions, without running either."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping

__all__ = ["criteria", "criterion_of"]


def criteria(sources: Iterable[str]) -> dict[str, str]:
    """What decides each claim of some Python sources, as syntax trees, by a regular expression for the claim's id.

    A claim is a call that is given an id (as ``id=`` or first) and either a ``Criterion(…)`` or, where a function of the
    same sources makes the criterion, the numbers for it; then the tree is that function's criterion with these numbers. An
    id made by an f-string matches whatever can stand in its places.
    """
    trees = [ast.parse(source) for source in sources if "Criterion(" in source]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, (ast.Call, ast.FunctionDef))]
    makers = {node.name: made for node in nodes if isinstance(node, ast.FunctionDef) and (made := _made_in(node))}
    found = {}
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        pattern = _id_pattern(given.get("id") or (node.args[0] if node.args else None))
        if not pattern:
            continue
        own = [v for v in [*node.args, *given.values()] if _is_criterion(v)]
        if "criterion" in given or own:
            found[pattern] = ast.dump(given.get("criterion") or own[0])
        elif _called(node) in makers:
            # Wording may change; everything else that the maker is given may reach the criterion.
            rest = [ast.dump(v) for v in [*node.args, *node.keywords] if not _is_text(v)]
            found.setdefault(pattern, "\n".join([*makers[_called(node)], *rest]))
    return found


def criterion_of(claim: str, found: Mapping[str, str]) -> set[str]:
    """The criterion of a claim: of its own name, else of the f-strings that could have made its name; empty for none."""
    own = found.get(re.escape(claim))
    return {own} if own else {tree for pattern, tree in found.items() if re.fullmatch(pattern, claim)}


def _made_in(function: ast.FunctionDef) -> list[str]:
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    return [ast.dump(call) for call in calls if _is_criterion(call)]


def _called(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def _is_criterion(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _called(node) == "Criterion"


def _is_text(node: ast.AST) -> bool:
    inner = node.value if isinstance(node, ast.keyword) else node
    return isinstance(inner, ast.JoinedStr) or (isinstance(inner, ast.Constant) and isinstance(inner.value, str))


def _id_pattern(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.escape(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(re.escape(v.value) if isinstance(v, ast.Constant) else ".+" for v in node.values)
    return ""
