# The C calls of flock.py.
cdef extern from "sys/file.h" nogil:
    int LOCK_EX
    int LOCK_NB
    int LOCK_UN
    int flock(int, int)
