"""Checks of a verdict: a file for each, or for few that share their figures.

A file declares the figures with their labels, the check with its group, and the function that makes
its row of what was measured: its outcome and its sentence.
"""

from importlib import import_module
from pkgutil import iter_modules

from ..evidence import CHECK_GROUPS, Check

_modules = [import_module(f"{__name__}.{each.name}") for each in iter_modules(__path__)]
_declared = [each for module in _modules for each in vars(module).values() if type(each) is Check]
# by the words that are stored for a check, in the order of the groups
CHECKS = {
    str(check): check for group in CHECK_GROUPS for check in _declared if check.group == group
}
