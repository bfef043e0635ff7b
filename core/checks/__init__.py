"""Checks of a verdict: a file for each, or for few that share their figures.

A file declares the figures with their labels, the check with its group, and the function that makes
its row of what was measured: its outcome and its sentence.
"""

from importlib import import_module
from pkgutil import iter_modules

from ..evidence import Check

_declared: list[Check] = []
for _each in iter_modules(__path__):
    _module = import_module(f"{__name__}.{_each.name}")
    _declared += [each for each in vars(_module).values() if isinstance(each, Check)]

# by the words that are stored for a check, in the order of the groups
CHECKS = {str(check): check for check in sorted(_declared, key=lambda check: check.order)}
