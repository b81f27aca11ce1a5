# The twins have the same classes; these types are the pure one's.
from tailrace.kernel.pure.notes import Notes as Notes
