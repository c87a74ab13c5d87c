"""Declared contracts: the parameters of signals, queries and updates, as recorded when the run was started.

A contract is `{name, parameters: [{name, position, required, variadic, default_available, default, type,
allows_null}]}`. Values are plain: None, bool, int, float, str, bytes, list, dict. Errors are listed per parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Errors = dict[str, list[str]]
Contract = Mapping[str, Any]

SURPLUS = "arguments"
"""The key of errors that belong to no parameter."""


def find(contracts: Sequence[Contract] | None, name: str) -> Contract | None:
    for contract in contracts or ():
        if contract.get("name") == name:
            return contract
    return None


def check(contract: Contract, values: Sequence[Any]) -> Errors:
    """The errors of arguments that were passed by position."""
    errors: Errors = {}
    parameters: Sequence[Mapping[str, Any]] = contract.get("parameters") or ()
    position = 0
    for parameter in parameters:
        if parameter.get("variadic"):
            for value in values[position:]:
                _complain(errors, parameter, _misfit(parameter, value))
            position = len(values)
        elif position < len(values):
            _complain(errors, parameter, _misfit(parameter, values[position]))
            position += 1
        elif parameter.get("required"):
            _complain(errors, parameter, "is missing")
    if position < len(values):
        surplus = len(values) - position
        errors[SURPLUS] = [f"{surplus} more than the {position} that {contract.get('name')!r} takes"]
    return errors


def arrange(contract: Contract, named: Mapping[str, Any]) -> tuple[list[Any], Errors]:
    """Arguments that were passed by name, in the order of the contract, with defaults in the gaps; and their errors."""
    listed: Sequence[Mapping[str, Any]] = contract.get("parameters") or ()
    parameters = {str(parameter["name"]): parameter for parameter in listed if not parameter.get("variadic")}
    names = list(parameters)
    errors: Errors = {
        name: [f"is unknown; {contract.get('name')!r} takes {', '.join(names) or 'no arguments'}"]
        for name in named
        if name not in names
    }
    last = max((position for position, name in enumerate(names) if name in named), default=-1)
    values: list[Any] = []
    for position, (name, parameter) in enumerate(parameters.items()):
        if name in named:
            _complain(errors, parameter, _misfit(parameter, named[name]))
        elif parameter.get("required"):
            _complain(errors, parameter, "is missing")
        if position <= last:
            values.append(named.get(name, parameter.get("default")))
    return values, errors


def _complain(errors: Errors, parameter: Mapping[str, Any], what: str | None) -> None:
    if what is not None:
        errors.setdefault(str(parameter["name"]), []).append(what)


def _misfit(parameter: Mapping[str, Any], value: Any) -> str | None:
    declared: str | None = parameter.get("type")
    if value is None:
        nullable = parameter.get("allows_null", True) or declared is None or _nullable(declared)
        return None if nullable else "must not be null"
    if declared is None or fits(declared, value):
        return None
    return f"must be {declared}, not {_kind(value)}"


def fits(declared: str, value: Any) -> bool:
    """Whether a value is of a declared type. Types that name classes accept any object."""
    declared = declared.strip()
    if declared.startswith("?"):
        return value is None or fits(declared[1:], value)
    if "|" in declared:
        return any(fits(part, value) for part in declared.split("|"))
    if "&" in declared:
        return all(fits(part, value) for part in declared.split("&"))
    rule = _TYPES.get(declared)
    return True if rule is None else rule(value)


def _nullable(declared: str) -> bool:
    return declared.startswith("?") or any(part.strip() in ("null", "mixed") for part in declared.split("|"))


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    for kind, name in ((int, "int"), (float, "float"), (str, "string"), (bytes, "bytes"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "mixed": lambda value: True,
    "null": lambda value: value is None,
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": _number,
    "string": lambda value: isinstance(value, str),
    "bytes": lambda value: isinstance(value, bytes),
    "bool": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list | dict),
    "object": lambda value: isinstance(value, dict),
    "iterable": lambda value: isinstance(value, list | dict),
    "scalar": lambda value: isinstance(value, int | float | str | bool),
}
