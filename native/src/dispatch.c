/* Which instruction sets this machine can run, best first; the scalar reference is always there.
 *
 * A processor that has AVX is not enough: the operating system must save the wide registers at a
 * context switch, or they change under us. __builtin_cpu_supports (gcc and clang) answers for
 * both: it clears every AVX, FMA and AVX-512 feature unless OSXSAVE is set and XGETBV shows that
 * XCR0 covers the state (bits 1-2 for AVX, 5-7 too for AVX-512).
 */
#include "sn_kernels.h"

static int always(void)
{
    return 1;
}

#if defined(__x86_64__)
static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int has_avx512(void) /* it measures with AVX2 */
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}
#endif

#define SN_CODECS(isa)                                                                             \
    {                                                                                              \
        [SN_RAW32] = &sn_raw32_##isa, [SN_BF16] = &sn_bf16_##isa, [SN_Q8] = &sn_q8_##isa,          \
        [SN_Q4] = &sn_q4_##isa, [SN_E3M0] = &sn_e3m0_##isa, [SN_SIGN] = &sn_sign_##isa,            \
        [SN_TK4] = &sn_tk4_##isa, [SN_TK2] = &sn_tk2_##isa, [SN_Q2] = &sn_q2_##isa,                \
        [SN_T3] = &sn_t3_##isa,                                                                    \
    }

static const sn_isa isas[] = {
#if defined(__x86_64__)
    /* Eight lanes are what AVX2 has, and it is as fast as memory: AVX-512 measures with it too. */
    {"avx512", has_avx512, SN_CODECS(avx512), sn_measure_avx2, &sn_wide_avx512},
    {"avx2", has_avx2, SN_CODECS(avx2), sn_measure_avx2, &sn_wide_avx2},
#elif defined(__aarch64__)
    {"neon", always, SN_CODECS(neon), sn_measure_neon, &sn_wide_neon}, /* part of every 64-bit ARM */
#endif
    {"ref", always, SN_CODECS(ref), sn_measure_ref, &sn_wide_ref},
};

const sn_isa *sn_isa_at(size_t index)
{
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        if (isas[i].is_supported() && index-- == 0) {
            return &isas[i];
        }
    }
    return NULL;
}
