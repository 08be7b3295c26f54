# The NCCL plugin: built where the CUDA toolkit (cuda_runtime.h, nccl.h) and a CUDA LibTorch are there.
#   -DSHARDPROOF_NCCL=AUTO      build it when possible (default)
#   -DSHARDPROOF_NCCL=REQUIRED  stop when it is not
#   -DSHARDPROOF_NCCL=OFF       never
set(SHARDPROOF_NCCL AUTO CACHE STRING "The NCCL plugin: AUTO, REQUIRED or OFF")
set_property(CACHE SHARDPROOF_NCCL PROPERTY STRINGS AUTO REQUIRED OFF)

function(shardproof_nccl_plugin)
  if(SHARDPROOF_NCCL STREQUAL "OFF")
    return()
  endif()
  set(hints $ENV{CUDA_HOME}/include /usr/local/cuda/include)
  find_path(SHARDPROOF_CUDA_INCLUDE cuda_runtime.h HINTS ${hints})
  find_path(SHARDPROOF_NCCL_INCLUDE nccl.h HINTS ${hints})
  set(libraries ${SHARDPROOF_TORCH}/lib/libtorch_cuda.so ${SHARDPROOF_TORCH}/lib/libc10_cuda.so)
  shardproof_cuda_missing(missing "NCCL plugin" SHARDPROOF_NCCL
    "SHARDPROOF_CUDA_INCLUDE;cuda_runtime.h;SHARDPROOF_NCCL_INCLUDE;nccl.h" ${libraries})
  if(missing)
    return()
  endif()

  add_library(shardproof_nccl SHARED ${CMAKE_SOURCE_DIR}/src/comm/nccl_plugin.cpp)
  set_target_properties(shardproof_nccl PROPERTIES DEFINE_SYMBOL "" UNITY_BUILD OFF)
  target_include_directories(shardproof_nccl PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_include_directories(shardproof_nccl SYSTEM PRIVATE
    ${SHARDPROOF_CUDA_INCLUDE} ${SHARDPROOF_NCCL_INCLUDE})
  target_link_libraries(shardproof_nccl PRIVATE shardproof_torch shardproof_fmt shardproof_warnings ${libraries})
  # What libtorch_cuda needs (cuDNN, NCCL, ...) is found when the plugin is loaded, not when it is linked.
  target_link_options(shardproof_nccl PRIVATE -Wl,--allow-shlib-undefined)
  target_precompile_headers(shardproof_nccl REUSE_FROM shardproof_pch)
endfunction()
