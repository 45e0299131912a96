// The grain of a dtype, from which bounds of tests and of `headwise verify` follow. No GoogleTest
// here.
#pragma once

#include "headwise/dtype.h"

namespace headwise::test {

// The distance from 1 to the next number.
inline double epsilon(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-52;
    case DType::bf16:
      return 0x1p-7;
    case DType::f16:
      return 0x1p-10;
    default:
      return 0x1p-23;
  }
}

}  // namespace headwise::test
