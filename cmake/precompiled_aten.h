// The precompiled header of unity builds has the names that nearly every file uses. Every build of
// a file repeats the template instantiations that a precompiled header leaves pending.
// custom_function.h and c10d's Backend.hpp would cost 2.6 s in each, so only the few files that
// need them include them.
#pragma once
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>
