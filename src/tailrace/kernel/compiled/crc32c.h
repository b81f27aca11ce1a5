/* CRC-32C (Castagnoli), in hardware where the CPU has it.
 *
 * A "state" here is the CRC's register: a CRC is the complement of a state, and a message starts
 * with the state of all ones. Polynomials are reflected: the highest bit is x^0.
 *
 * Call tailrace_crc_init() once before anything else; everything after it only reads.
 */
#ifndef TAILRACE_CRC32C_H
#define TAILRACE_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
/* The function below may use the instruction whatever the rest is compiled for; whether it may be
 * called is found out at run time. */
#include <nmmintrin.h>
#define TAILRACE_CRC_HARDWARE "sse4.2"
#define TAILRACE_CRC_TARGET __attribute__((target("sse4.2")))
#define TAILRACE_CRC_STEP8(state, word) _mm_crc32_u64((state), (word))
#define TAILRACE_CRC_STEP1(state, byte) _mm_crc32_u8((uint32_t)(state), (byte))
#define TAILRACE_CRC_DETECT() (__builtin_cpu_init(), __builtin_cpu_supports("sse4.2"))
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define TAILRACE_CRC_HARDWARE "armv8"
#define TAILRACE_CRC_TARGET
#define TAILRACE_CRC_STEP8(state, word) __crc32cd((uint32_t)(state), (word))
#define TAILRACE_CRC_STEP1(state, byte) __crc32cb((uint32_t)(state), (byte))
#define TAILRACE_CRC_DETECT() 1
#endif

#define TAILRACE_CRC_POLYNOMIAL 0x82F63B78u
#define TAILRACE_CRC_ONE 0x80000000u
/* The hardware takes three cycles for an instruction but can start one in each, so three parts of
 * the input are read side by side and joined. Two sizes of part: joining costs some 20 cycles. */
#define TAILRACE_CRC_LONG 4096
#define TAILRACE_CRC_SHORT 256

typedef uint32_t (*tailrace_crc_function)(uint32_t, const unsigned char *, size_t);

static uint32_t tailrace_crc_slices[8][256];
static uint32_t tailrace_crc_squares[31]; /* x^(2^n); x has order 2^31 - 1 */
static tailrace_crc_function tailrace_crc_update;

/* The product of two polynomials modulo the CRC's. */
static uint32_t tailrace_crc_multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (; a; a <<= 1) {
        product ^= b & (0u - (a >> 31));
        b = (b >> 1) ^ (TAILRACE_CRC_POLYNOMIAL & (0u - (b & 1)));
    }
    return product;
}

/* What a CRC is multiplied by when `length` bytes follow: x^(8 * length). */
static uint32_t tailrace_crc_shift(uint64_t length)
{
    uint32_t factor = TAILRACE_CRC_ONE;
    unsigned power = 3;
    for (; length; length >>= 1, power++)
        if (length & 1)
            factor = tailrace_crc_multiply(factor, tailrace_crc_squares[power % 31]);
    return factor;
}

static uint64_t tailrace_crc_load(const unsigned char *p)
{
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24 |
           (uint64_t)p[4] << 32 | (uint64_t)p[5] << 40 | (uint64_t)p[6] << 48 |
           (uint64_t)p[7] << 56;
}

/* Eight bytes at a time by tables, on any CPU. */
static uint32_t tailrace_crc_by_table(uint32_t state, const unsigned char *p, size_t size)
{
    for (; size >= 8; p += 8, size -= 8) {
        uint64_t word = tailrace_crc_load(p) ^ state;
        state = 0;
        for (int i = 0; i < 8; i++)
            state ^= tailrace_crc_slices[7 - i][word >> (8 * i) & 0xFF];
    }
    for (; size; p++, size--)
        state = state >> 8 ^ tailrace_crc_slices[0][(state ^ *p) & 0xFF];
    return state;
}

#ifdef TAILRACE_CRC_HARDWARE

/* A multiplication by a constant, as four lookups. */
typedef uint32_t tailrace_crc_factor[4][256];
static tailrace_crc_factor tailrace_crc_long, tailrace_crc_short;

static void tailrace_crc_make_factor(tailrace_crc_factor factor, uint64_t length)
{
    uint32_t shift = tailrace_crc_shift(length);
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t byte = 0; byte < 256; byte++)
            factor[i][byte] = tailrace_crc_multiply(shift, byte << (8 * i));
}

static inline uint32_t tailrace_crc_apply(tailrace_crc_factor factor, uint32_t state)
{
    return factor[0][state & 0xFF] ^ factor[1][state >> 8 & 0xFF] ^
           factor[2][state >> 16 & 0xFF] ^ factor[3][state >> 24];
}

/* Three parts of `part` bytes side by side. */
TAILRACE_CRC_TARGET static inline uint32_t tailrace_crc_three(
    uint32_t state, const unsigned char *p, size_t part, tailrace_crc_factor factor)
{
    uint64_t a = state, b = 0, c = 0;
    for (const unsigned char *end = p + part; p < end; p += 8) {
        a = TAILRACE_CRC_STEP8(a, tailrace_crc_load(p));
        b = TAILRACE_CRC_STEP8(b, tailrace_crc_load(p + part));
        c = TAILRACE_CRC_STEP8(c, tailrace_crc_load(p + 2 * part));
    }
    state = tailrace_crc_apply(factor, (uint32_t)a) ^ (uint32_t)b;
    return tailrace_crc_apply(factor, state) ^ (uint32_t)c;
}

TAILRACE_CRC_TARGET static uint32_t tailrace_crc_by_hardware(
    uint32_t state, const unsigned char *p, size_t size)
{
    uint64_t wide;
    for (; size >= 3 * TAILRACE_CRC_LONG; p += 3 * TAILRACE_CRC_LONG, size -= 3 * TAILRACE_CRC_LONG)
        state = tailrace_crc_three(state, p, TAILRACE_CRC_LONG, tailrace_crc_long);
    for (; size >= 3 * TAILRACE_CRC_SHORT;
         p += 3 * TAILRACE_CRC_SHORT, size -= 3 * TAILRACE_CRC_SHORT)
        state = tailrace_crc_three(state, p, TAILRACE_CRC_SHORT, tailrace_crc_short);
    wide = state;
    for (; size >= 8; p += 8, size -= 8)
        wide = TAILRACE_CRC_STEP8(wide, tailrace_crc_load(p));
    for (; size; p++, size--)
        wide = TAILRACE_CRC_STEP1(wide, *p);
    return (uint32_t)wide;
}

#endif

/* Fills the tables and picks the fastest way that this CPU knows; returns its name. */
static const char *tailrace_crc_init(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++)
            state = (state >> 1) ^ (TAILRACE_CRC_POLYNOMIAL & (0u - (state & 1)));
        tailrace_crc_slices[0][byte] = state;
    }
    for (int slice = 1; slice < 8; slice++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t state = tailrace_crc_slices[slice - 1][byte];
            tailrace_crc_slices[slice][byte] = state >> 8 ^ tailrace_crc_slices[0][state & 0xFF];
        }
    tailrace_crc_squares[0] = TAILRACE_CRC_ONE >> 1;
    for (int n = 1; n < 31; n++)
        tailrace_crc_squares[n] =
            tailrace_crc_multiply(tailrace_crc_squares[n - 1], tailrace_crc_squares[n - 1]);
    tailrace_crc_update = tailrace_crc_by_table;
#ifdef TAILRACE_CRC_HARDWARE
    if (TAILRACE_CRC_DETECT()) {
        tailrace_crc_make_factor(tailrace_crc_long, TAILRACE_CRC_LONG);
        tailrace_crc_make_factor(tailrace_crc_short, TAILRACE_CRC_SHORT);
        tailrace_crc_update = tailrace_crc_by_hardware;
        return TAILRACE_CRC_HARDWARE;
    }
#endif
    return "table";
}

#endif
