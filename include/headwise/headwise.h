// Everything headwise offers.
#pragma once

#include "headwise/attention.h"
#include "headwise/attention_backward.h"
#include "headwise/error.h"
#include "headwise/io.h"
#include "headwise/module_gradients.h"
#include "headwise/multihead_attention.h"
#include "headwise/optim.h"
#include "headwise/plan.h"
#include "headwise/random.h"
#include "headwise/runtime.h"
#include "headwise/tensor.h"
#include "headwise/version.h"
