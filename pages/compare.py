"""Compare: runs side by side, the sides of one run as classes of equal bits, the cells of a sweep
as a matrix.
"""

from app.compare import runs, sweeps, watches
from app.navigation import COMPARE
from app.shell import selection, widgets

parts = {
    "side_by_side": runs.draw,
    "classes": runs.draw_classes,
    "sweeps": sweeps.draw,
    "watches": watches.draw,
}
widgets.tabs(COMPARE, selection.current_view(), parts)
