# The twins have the same functions; these types are the pure one's.
from tailrace.kernel.pure.tally import tally as tally
