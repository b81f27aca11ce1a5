/* The phase of a page of notes, which other processes look at: a note is in memory before the phase
 * says that it counts, for the compiler and for the processor. */
#ifndef TAILRACE_NOTES_H
#define TAILRACE_NOTES_H

static inline unsigned char tailrace_load_phase(const unsigned char *phase) {
    return __atomic_load_n(phase, __ATOMIC_ACQUIRE);
}

static inline void tailrace_store_phase(unsigned char *phase, unsigned char value) {
    __atomic_store_n(phase, value, __ATOMIC_RELEASE);
}

#endif
