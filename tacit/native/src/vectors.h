// The instruction set that a source is being compiled for: its namespace and the width of its vectors.
//
// Nothing here or in the sources that include it may instantiate templates of the standard library:
// the linker would keep one copy of each for all instruction sets.
#pragma once

#if defined(TACIT_LEVEL_AVX512)
#define TACIT_LEVEL avx512
#define TACIT_LANES 16
#elif defined(TACIT_LEVEL_AVX2)
#define TACIT_LEVEL avx2
#define TACIT_LANES 8
#else
#define TACIT_LEVEL baseline
#define TACIT_LANES 4
#endif
