// The precompiled header of unity builds: what nearly every piece names. Template instantiations
// that a precompiled header leaves pending are made again in each: custom_function.h and c10d's
// Backend.hpp would cost 2.6 s in each, so the few pieces that need them parse them.
#pragma once
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>
