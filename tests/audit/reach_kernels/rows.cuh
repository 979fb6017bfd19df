#pragma once
/* for (;;) { in a comment } */
__device__ inline float scaled(float value, float mean_square, float eps) {
  return value * __fdiv_rn(1.0f, __fsqrt_rn(mean_square + eps));
}
