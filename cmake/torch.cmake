# LibTorch from the project-local venv, or from -DSHARDPROOF_TORCH=DIR (a folder with include/ and lib/).
# The wheel's own CMake config enables the CUDA language, so its libraries are linked directly.
if(NOT SHARDPROOF_TORCH)
  file(GLOB candidates ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  list(LENGTH candidates count)
  if(count GREATER 0)
    list(GET candidates 0 SHARDPROOF_TORCH)
  endif()
endif()
if(NOT EXISTS "${SHARDPROOF_TORCH}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "No LibTorch at '${SHARDPROOF_TORCH}'. Run ./shardproof build, or pass -DSHARDPROOF_TORCH=DIR.")
endif()
add_library(shardproof_torch INTERFACE)
target_include_directories(shardproof_torch SYSTEM INTERFACE
  ${SHARDPROOF_TORCH}/include ${SHARDPROOF_TORCH}/include/torch/csrc/api/include)
target_link_libraries(shardproof_torch INTERFACE
  ${SHARDPROOF_TORCH}/lib/libtorch_cpu.so ${SHARDPROOF_TORCH}/lib/libc10.so)
target_compile_definitions(shardproof_torch INTERFACE USE_C10D_GLOO)
