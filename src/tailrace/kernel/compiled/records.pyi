# The twins have the same class and function; these types are the pure one's.
from tailrace.kernel.pure.records import Record as Record
from tailrace.kernel.pure.records import encode_headers as encode_headers
from tailrace.kernel.pure.records import find_header as find_header
from tailrace.kernel.pure.records import numbered as numbered
from tailrace.kernel.pure.records import stamped as stamped
