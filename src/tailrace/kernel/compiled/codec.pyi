# The twins have the same functions; these types are the pure one's.
from tailrace.kernel.pure.codec import Draft as Draft
from tailrace.kernel.pure.codec import batches as batches
from tailrace.kernel.pure.codec import check as check
from tailrace.kernel.pure.codec import decode as decode
from tailrace.kernel.pure.codec import encode as encode
from tailrace.kernel.pure.codec import encode_one as encode_one
from tailrace.kernel.pure.codec import encode_placed as encode_placed
from tailrace.kernel.pure.codec import find_record_at_time as find_record_at_time
from tailrace.kernel.pure.codec import first_headers as first_headers
from tailrace.kernel.pure.codec import inflate as inflate
from tailrace.kernel.pure.codec import read_header as read_header
