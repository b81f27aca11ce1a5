# The twins have the same functions; these types are the pure one's.
from tailrace.kernel.pure.outline import count_right as count_right
from tailrace.kernel.pure.outline import is_plain as is_plain
