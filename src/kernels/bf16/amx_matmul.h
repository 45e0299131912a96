// Products of bf16 rows with tables that are stored in bf16, on AMX: see amx_matmul.cc.
#pragma once

#include "kernels/matmul.h"

namespace headwise::kernels {

// Follows from dtypes and CPU alone, not from sizes: the bits must not depend on how many rows
// there are.
bool is_amx_product(const MatmulArgs& args);

// As matmul_block, for products of that kind.
void amx_matmul_block(const MatmulArgs& args, const MatmulBlock& block);

}  // namespace headwise::kernels
