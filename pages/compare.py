"""Compare: runs side by side, the sides of one run as classes of equal bits, the cells of a sweep
as a matrix.
"""

from app.compare import PAGE, runs, sweeps, watches
from app.shell import selection, widgets

parts = {
    "side_by_side": runs.draw,
    "classes": runs.draw_classes,
    "sweeps": sweeps.draw,
    "watches": watches.draw,
}
widgets.tabs(PAGE, selection.current_view(), parts)
