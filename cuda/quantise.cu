// Rows and columns to fixed point (SPEC.md section 3), as digit planes for exact_dot.cu. Rows are read once where registers hold them
// (quantise_rows.cuh). Longer ones, columns, and both at once take two passes, the first of which finds the largest magnitudes
// (quantise_tile.cuh), and so do heads, which are not merged in memory (quantise_heads.cuh), and columns of a matrix in parts
// (quantise_parts.cuh).
//
//   x          float [batch][m][k]; heads are float [sequences][heads][tokens][dim], a matrix of sequences * tokens by heads * dim
//   exponents  i32 [batch][m] of rows, [batch][k] of columns
//   planes     i8 in blocks (exact_dot_planes.cuh), of the rows of x or of the rows of its transpose
//   largest    u32, as exponents: the largest magnitudes as bits, 0 before the first pass, which may be another op's (swiglu.cu)
//   status     u32, bit 0 is set when an element is infinite or NaN
//
// The exponent of a row comes from its exact maximum, and each integer from one element alone: no order enters, and no launch shape.
//
// Test: pytest tests/kernels/test_quantise.py tests/kernels/test_quantise_heads.py
#include "quantise_heads.cuh"
#include "quantise_parts.cuh"
#include "quantise_rows.cuh"
#include "quantise_tile.cuh"

// Blocks of a multiprocessor that share its registers: enough of them wait for memory at a time.
#if __CUDA_ARCH__ >= 800
#define TILES_TOGETHER 5
#else
#define TILES_TOGETHER 4
#endif

#define QUANTISE_ROWS(bits, held)                                                                                              \
    GLOBAL void __launch_bounds__(1024) quantise_rows_##bits##_##held(const float* x, i32* exponents, i8* planes, u32* status, \
                                                                      i64 batch, i64 m, i64 k, i64 padded, i32 warps) {        \
        quantise_rows<bits, held>(Plain{x, k}, exponents, planes, status, batch, m, k, padded, warps);                                   \
    }
QUANTISE_ROWS(14, 1)
QUANTISE_ROWS(14, 2)
QUANTISE_ROWS(14, 4)
QUANTISE_ROWS(14, 8)
QUANTISE_ROWS(21, 1)
QUANTISE_ROWS(21, 2)
QUANTISE_ROWS(21, 4)
QUANTISE_ROWS(21, 8)

// across, down: blocks side by side and one below the other in a matrix.
#define LARGEST(name, by_rows, by_columns)                                                                               \
    GLOBAL void __launch_bounds__(256, 4) largest_of_##name(const float* x, u32* of_rows, u32* of_columns, i64 m, i64 k, \
                                                         u32 across, u32 down, i32 height) {                             \
        Largest largest[1] = {{of_rows, of_columns}};                                                                    \
        find_largest<by_rows, by_columns, 2, 4>(Plain{x, k}, largest, m, k, across, down, height);                       \
    }
LARGEST(rows, true, false)
LARGEST(columns, false, true)
LARGEST(both, true, true)

#define QUANTISE_TILE(name, bits, by_rows, by_columns)                                                                             \
    GLOBAL void __launch_bounds__(256, TILES_TOGETHER) quantise_##name##_##bits(                                                   \
        const float* x, const u32* of_rows, i32* row_exponents, i8* row_planes, i64 row_padded, const u32* of_columns,             \
        i32* column_exponents, i8* column_planes, i64 column_padded, u32* status, i64 batch, i64 m, i64 k, u32 across, u32 down) { \
        Out rows{of_rows, row_exponents, row_planes, row_padded};                                                                  \
        Out columns{of_columns, column_exponents, column_planes, column_padded};                                                   \
        quantise_tile<bits, by_rows, by_columns>(Plain{x, k}, rows, columns, status, batch, m, k, across, down);                   \
    }
QUANTISE_TILE(long_rows, 14, true, false)
QUANTISE_TILE(columns, 14, false, true)
QUANTISE_TILE(both, 14, true, true)
QUANTISE_TILE(long_rows, 21, true, false)
QUANTISE_TILE(columns, 21, false, true)
QUANTISE_TILE(both, 21, true, true)

// Rows and columns of heads (quantise_heads.cuh), a matrix of m rows and k columns.
GLOBAL void __launch_bounds__(256, 4) largest_of_heads(const float* x, u32 heads, u32 tokens, u32 dim, u32* of_rows, u32* of_columns,
                                                       i64 m, i64 k, u32 across, u32 down, i32 height) {
    Largest largest[1] = {{of_rows, of_columns}};
    find_largest<true, true, 2, 4>(Heads{x, heads, tokens, dim}, largest, m, k, across, down, height);
}

#define QUANTISE_HEADS(bits)                                                                                                      \
    GLOBAL void __launch_bounds__(256, TILES_TOGETHER) quantise_heads_##bits(                                                     \
        const float* x, u32 heads, u32 tokens, u32 dim, const u32* of_rows, i32* row_exponents, i8* row_planes, i64 row_padded,   \
        const u32* of_columns, i32* column_exponents, i8* column_planes, i64 column_padded, u32* status, i64 batch, i64 m, i64 k, \
        u32 across, u32 down) {                                                                                                   \
        Out rows{of_rows, row_exponents, row_planes, row_padded};                                                                 \
        Out columns{of_columns, column_exponents, column_planes, column_padded};                                                  \
        quantise_tile<bits, true, true>(Heads{x, heads, tokens, dim}, rows, columns, status, batch, m, k, across, down);          \
    }
QUANTISE_HEADS(14)
QUANTISE_HEADS(21)

#define QUANTISE_HEAD_ROWS(bits, held)                                                                                          \
    GLOBAL void __launch_bounds__(1024) quantise_head_rows_##bits##_##held(                                                       \
        const float* x, u32 heads, u32 tokens, u32 dim, i32* exponents, i8* planes, u32* status, i64 batch, i64 m, i64 k,         \
        i64 padded, i32 warps) {                                                                                                  \
        quantise_rows<bits, held>(Heads{x, heads, tokens, dim}, exponents, planes, status, batch, m, k, padded, warps);           \
    }
QUANTISE_HEAD_ROWS(14, 1)
QUANTISE_HEAD_ROWS(14, 2)
QUANTISE_HEAD_ROWS(14, 4)
QUANTISE_HEAD_ROWS(14, 8)

// Columns of a matrix in parts (quantise_parts.cuh), m rows and k of its columns.
GLOBAL void __launch_bounds__(256, 4) largest_of_parts(const u64* table, u32 part, i64 width, i64 first, u32* of_rows, u32* of_columns,
                                                       i64 m, i64 k, u32 across, u32 down, i32 height) {
    Largest largest[1] = {{of_rows, of_columns}};
    find_largest<false, true, 2, 4>(Parts{table, part, width, first, k}, largest, m, k, across, down, height);
}

#define QUANTISE_PARTS(bits)                                                                                                          \
    GLOBAL void __launch_bounds__(256, TILES_TOGETHER) quantise_parts_##bits(                                                         \
        const u64* table, u32 part, i64 width, i64 first, const u32* of_rows, i32* row_exponents, i8* row_planes, i64 row_padded,     \
        const u32* of_columns, i32* column_exponents, i8* column_planes, i64 column_padded, u32* status, i64 batch, i64 m, i64 k,     \
        u32 across, u32 down) {                                                                                                       \
        Out rows{of_rows, row_exponents, row_planes, row_padded};                                                                     \
        Out columns{of_columns, column_exponents, column_planes, column_padded};                                                      \
        quantise_tile<bits, false, true>(Parts{table, part, width, first, k}, rows, columns, status, batch, m, k, across, down);      \
    }
QUANTISE_PARTS(14)
QUANTISE_PARTS(21)
