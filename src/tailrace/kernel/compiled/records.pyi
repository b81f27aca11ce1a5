# The twins have the same classes; these types are the pure one's.
from tailrace.kernel.pure.records import Record as Record
