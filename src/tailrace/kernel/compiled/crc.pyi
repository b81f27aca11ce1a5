# The twins have the same functions; these types are the pure one's.
from typing_extensions import Buffer

from tailrace.kernel.pure.crc import crc32c as crc32c
from tailrace.kernel.pure.crc import crc32c_combine as crc32c_combine

CRC_BACKEND: str

def crc32c_by_table(data: Buffer, value: int = 0) -> int: ...
