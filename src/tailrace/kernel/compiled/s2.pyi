# The twins have the same functions; these types are the pure one's.
from tailrace.kernel.pure.s2 import s2_decompress as s2_decompress
