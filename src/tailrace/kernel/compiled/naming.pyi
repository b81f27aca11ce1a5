# The twins have the same functions; these types are the pure one's.
from tailrace.kernel.pure.naming import write_names as write_names
