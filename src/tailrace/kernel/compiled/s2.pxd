cdef enum:
    # Copied at once where there is room: the compiler makes one load and one store of it.
    CHUNK = 16
