// MultiheadAttention as Python holds it.
#pragma once

#include <memory>

#include "bindings.h"
#include "headwise/multihead_attention.h"

namespace headwise::python {

// Calls run without the GIL, so another thread may load parameters meanwhile: then the handle gets
// a new module, and a running call ends on the one that it began with.
struct Module {
  std::shared_ptr<MultiheadAttention> now;

  const MultiheadAttentionOptions& options() const { return now->options(); }
};

// forward_with_state and backward.
void def_gradients(nb::module_& m, nb::class_<Module>& type);

}  // namespace headwise::python
