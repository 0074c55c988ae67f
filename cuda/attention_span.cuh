// Which keys a query sees (SPEC.md section 8). Query row q of a group is position q % T.
#pragma once
#include "common.cuh"

struct Span {
    i64 first, last;  // keys first .. last are seen by a query
};

__device__ __forceinline__ Span seen_by(i64 row, i64 tokens, i64 window) {
    i64 i = row % tokens;
    return Span{window > 0 && i >= window ? i - window + 1 : 0, i};
}

__device__ __forceinline__ bool sees(Span s, i64 j) { return j >= s.first && j <= s.last; }
