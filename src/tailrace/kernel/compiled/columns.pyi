# The twins have the same functions; these types are the pure one's.
from tailrace.kernel.pure.columns import encode_columns as encode_columns
from tailrace.kernel.pure.columns import fill_columns as fill_columns
from tailrace.kernel.pure.columns import measure_columns as measure_columns
from tailrace.kernel.pure.columns import split_rows as split_rows
from tailrace.kernel.pure.columns import write_names as write_names
