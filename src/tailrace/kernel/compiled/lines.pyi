# The twins have the same functions; these types are the pure one's.
from tailrace.kernel.pure.lines import read_line as read_line
from tailrace.kernel.pure.lines import write_line as write_line
