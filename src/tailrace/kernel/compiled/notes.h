/* The phase of a page of notes, which other processes look at: a note is in memory before the phase
 * says that it counts, for the compiler and for the processor. */
#ifndef TAILRACE_NOTES_H
#define TAILRACE_NOTES_H

#include <time.h>

static inline unsigned char tailrace_load_phase(const unsigned char *phase) {
    return __atomic_load_n(phase, __ATOMIC_ACQUIRE);
}

static inline void tailrace_store_phase(unsigned char *phase, unsigned char value) {
    __atomic_store_n(phase, value, __ATOMIC_RELEASE);
}

static inline void tailrace_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static inline long long tailrace_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Spin until none of some bits is set. Returns 0 if that takes longer than so many microseconds. */
static inline int tailrace_await_phase(const unsigned char *phase, unsigned char bits, int us) {
    long long end = 0;
    for (;;) {
        for (int i = 0; i < 16; i++) {
            if (!(tailrace_load_phase(phase) & bits))
                return 1;
            tailrace_pause();
        }
        long long now = tailrace_now_ns();
        if (!end)
            end = now + us * 1000LL;
        else if (now >= end)
            return 0;
    }
}

#endif
