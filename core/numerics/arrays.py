"""Names of the types that pass between rooms: arrays, tables, ranges."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pandas import DataFrame
else:
    # importing pandas takes a third of a second: who makes a table imports it then
    DataFrame = Any

Array = NDArray[Any]
Bits = NDArray[np.unsignedinteger]  # of values of a float format, in its carrier
Floats = NDArray[np.float64]
Values = NDArray[np.floating]  # floats of any width
Ints = NDArray[np.int64]
Places = NDArray[np.int32]  # of rows: prompt and position [rows, 2]
Flags = NDArray[np.bool_]
Span = tuple[int, int]  # half open
Record = dict[str, Any]  # a row of a table, or an object of JSON, by its names
