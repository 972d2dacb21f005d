// Everything of this header is in cuda_runtime.h here.
#pragma once

#include "cuda_runtime.h"
