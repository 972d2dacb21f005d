// Everything device code uses without including it: cuda_runtime.h includes this.
#pragma once

#include "qualifiers.h"
#include "vector_types.h"
#include "context.h"
#include "device_api.h"
#include "launch.h"
#include "shared.h"
#include "warp.h"
#include "atomics.h"
#include "math.h"
